"""LocalJev reads attachments in this process: the embedded model answers from what they say."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import struct
import sys
import threading
import wave
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import docx
import pymupdf
import pytest
from PIL import Image

from jev import (
    Choice,
    ChoiceAnswer,
    InvalidRequestError,
    LocalJev,
    MissingExtraError,
    ModelUnavailableError,
    UploadedFile,
)
from jev.engine import Engine
from jev.settings import Settings

WORDS = ["Lisbon", "Berlin", "Tokyo", "Boston"]
QUESTIONS = {"city": Choice("Where was the parcel sent?", WORDS)}


def sentence(word: str) -> str:
    return f"The parcel with the lamps was sent to {word} on Monday."


def as_txt(word: str) -> bytes:
    return sentence(word).encode()


def as_docx(word: str) -> bytes:
    document, out = docx.Document(), io.BytesIO()
    document.add_heading("Shipping note")
    document.add_paragraph(sentence(word))
    document.save(out)
    return out.getvalue()


def as_pdf(word: str) -> bytes:
    document = pymupdf.open()
    document.new_page().insert_text((72, 72), sentence(word))
    return document.tobytes()


def as_png() -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (40, 30), "white").save(out, "PNG")
    return out.getvalue()


@pytest.fixture(scope="module")
def jev(engine: Engine) -> Iterator[LocalJev]:
    with LocalJev(engine=engine, ocr="off") as local:
        yield local


def city(jev: LocalJev, *attachments: object) -> ChoiceAnswer:
    decision = jev.decide("A shipping note is attached.", QUESTIONS, attachments=attachments)  # type: ignore[arg-type]
    return decision.choices["city"]


@pytest.mark.parametrize(
    ("make", "name"), [(as_txt, "note.txt"), (as_docx, "note.docx"), (as_pdf, "note.pdf")]
)
def test_the_answer_comes_from_the_attachment(jev: LocalJev, tmp_path: Path, make, name: str) -> None:
    without, answers = city(jev), {}
    for word in WORDS:
        file = tmp_path / name  # a name that does not give it away
        file.write_bytes(make(word))
        answers[word] = city(jev, file)
        assert answers[word].choice == word
        assert answers[word].probabilities[word] > without.probabilities[word]
    for word in WORDS:
        own = answers[word].probabilities[word]
        assert all(own > answers[other].probabilities[word] + 0.3 for other in WORDS if other != word)


def test_bytes_need_no_name(jev: LocalJev) -> None:
    assert city(jev, as_docx("Tokyo")).choice == "Tokyo"
    assert city(jev, io.BytesIO(as_pdf("Berlin"))).choice == "Berlin"


def test_attachments_follow_the_state_in_their_order(jev: LocalJev) -> None:
    first, second = ("a.txt", b"one"), ("b.txt", b"two")
    reports = [
        jev.decide("s", QUESTIONS, attachments=files, diagnostics="full").diagnostics
        for files in ([first, second], [second, first], [first, second])
    ]
    one_two, two_one, again = (report["prefix_token_ids"] for report in reports if report)
    assert one_two == again
    assert one_two != two_one
    assert sorted(one_two[0]) == sorted(two_one[0])


def test_it_works_inside_an_event_loop(jev: LocalJev) -> None:
    async def decide() -> ChoiceAnswer:
        return city(jev, as_txt("Boston"))

    assert asyncio.run(decide()).choice == "Boston"


def test_what_a_server_refuses_is_refused(jev: LocalJev) -> None:
    def refused(*attachments: object) -> InvalidRequestError:
        with pytest.raises(InvalidRequestError) as caught:
            city(jev, *attachments)
        return caught.value

    damaged = refused(b"fine", ("note.pdf", b"not a PDF"))
    assert damaged.issues[0].loc == ["body", "files", 1]
    assert damaged.issues[0].msg.startswith("Attachment 'note.pdf': It is named .pdf")
    assert refused(b"").issues[0].loc == ["body", "files", 0, "data"]
    assert refused(*[b"x"] * 9).issues[0].loc == ["body", "files"]
    gone = refused(UploadedFile(id="file-1", name="a", bytes=1, kind="text"))
    assert "no uploaded file with this id" in gone.issues[0].msg
    with pytest.raises(FileNotFoundError):
        city(jev, Path("/no/such/file"))


def test_a_picture_without_a_vision_tower_or_ocr_is_refused(jev: LocalJev) -> None:
    assert not jev._engine.has_vision
    with pytest.raises(ModelUnavailableError, match="no vision tower"):
        city(jev, as_png())


def test_limits_are_those_given(engine: Engine) -> None:
    with LocalJev(engine=engine, limits={"max_file_bytes": 10}) as local:
        with pytest.raises(InvalidRequestError, match="the limit is 10"):
            city(local, b"x" * 11)
        city(local, b"x" * 10)
    with LocalJev(engine=engine, limits={"max_flie_bytes": 10}) as local:
        with pytest.raises(ValueError, match="did you mean 'max_file_bytes'"):
            city(local, b"x")
        local.decide("s", QUESTIONS)


def test_settings_stand_for_all_of_them(engine: Engine) -> None:
    settings = Settings(limits={"max_text_chars": 5})
    with (
        LocalJev(engine=engine, settings=settings, limits={"max_text_chars": 50}) as local,
        pytest.raises(InvalidRequestError, match="max_text_chars"),
    ):
        city(local, b"six...")


def test_speech_settings_that_contradict_are_named(engine: Engine) -> None:
    both = LocalJev(engine=engine, speech_model="m", speech_url="http://127.0.0.1:9/")
    with pytest.raises(ValueError, match="either a model or the URL"):
        city(both, b"x")


class Transcriber(BaseHTTPRequestHandler):
    """A transcription service that hears the same in every recording."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        body = json.dumps({"text": sentence("Boston")}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


def tone() -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(b"".join(struct.pack("<h", 9000 * (-1) ** (i // 9)) for i in range(8000)))
    return out.getvalue()


def test_recordings_go_to_the_service_that_is_named(jev: LocalJev, engine: Engine) -> None:
    with pytest.raises(ModelUnavailableError, match="no speech model is configured"):
        city(jev, tone())
    service = ThreadingHTTPServer(("127.0.0.1", 0), Transcriber)
    threading.Thread(target=service.serve_forever, daemon=True).start()
    try:
        url = f"http://127.0.0.1:{service.server_port}/v1/audio/transcriptions"
        with LocalJev(engine=engine, speech_url=url) as local:
            assert city(local, tone()).choice == "Boston"
    finally:
        service.shutdown()
        service.server_close()


def test_workers_start_with_the_first_attachment_and_end_with_close(engine: Engine) -> None:
    local = LocalJev(engine=engine)
    local.decide("s", QUESTIONS)
    assert local._reader is None
    city(local, as_txt("Berlin"))
    reader = local._reader
    assert reader is not None
    (worker,) = [place for place in list(reader.pool._places.queue) if place is not None]
    assert worker._process.poll() is None
    local.close()
    assert worker._process.poll() is not None
    local.close()
    assert city(local, as_txt("Berlin")).choice == "Berlin"
    local.close()


@pytest.mark.parametrize("missing", ["PIL", "pydantic_settings"])
def test_a_package_that_is_missing_is_named(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    local = LocalJev(engine=engine)
    for name in ("jev.attachments", "jev.settings"):
        monkeypatch.delitem(sys.modules, name, raising=False)

    class Missing:
        def __getattr__(self, attribute: str) -> object:
            raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)

    monkeypatch.setitem(sys.modules, "jev.attachments", Missing())
    with pytest.raises(MissingExtraError, match=f"needs {missing}: pip install 'jev-server"):
        city(local, b"x")


@pytest.mark.parametrize(
    ("placeholder", "data", "words"),
    [("[nowhere]", as_png(), "occurs nowhere"), ("[here]", b"no picture", "neither a PNG nor a JPEG")],
)
def test_assets_are_checked_as_a_server_checks_them(
    jev: LocalJev, placeholder: str, data: bytes, words: str
) -> None:
    asset = {"type": "image", "format": "png", "data_base64": base64.b64encode(data).decode()}
    with pytest.raises(InvalidRequestError) as refused:
        jev.decide("It is [here].", QUESTIONS, extra_body={"assets": {placeholder: asset}})
    (row,) = refused.value.issues
    assert row.loc[:3] == ["body", "assets", placeholder]
    assert words in row.msg
