"""A file cut short, misnamed, in the wrong field or built to harm costs its request a 422 that names it."""

from __future__ import annotations

import base64
import io
import random
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pymupdf
import pytest
from sample_files import NAMES, clip, picture, sample, text_pdf, tone, word

if TYPE_CHECKING:
    from tests.server.conftest import Seeing

MIB = 2**20
FIELD = {"text": "documents", "pdf": "documents", "document": "documents", "email": "documents"}
FIELD |= {"image": "images", "video": "videos", "audio": "audios"}
SECONDS = 5.0
MEMORY = 1024 * MIB


def inline(data: bytes, name: str) -> dict[str, str]:
    return {"name": name, "data": base64.b64encode(data).decode()}


# Every kind of file


@pytest.mark.parametrize("name", NAMES)
def test_every_format_is_read_by_its_content(seeing: Seeing, name: str) -> None:
    file = sample(name)
    for called in (
        (name, "a.pdf", "a.mp3", "a.txt", "a.PNG") if file.kind not in ("text", "email") else (name,)
    ):
        for field in ("files", FIELD[file.kind]):
            (one,) = seeing.read(**{field: [inline(file.data, called)]}).evidence
            assert (one.name, one.kind) == (called, file.kind)
            assert bool(one.text) == (file.kind not in ("image", "video"))
            assert bool(one.pictures) == (file.kind in ("image", "video"))


@pytest.mark.parametrize("name", NAMES)
def test_every_format_is_refused_in_the_wrong_field(seeing: Seeing, name: str) -> None:
    file = sample(name)
    for field in {"images", "documents", "videos", "audios"} - {FIELD[file.kind]}:
        loc, message = seeing.refusal(**{field: [inline(file.data, name)]})
        assert loc == [field, 0]
        assert message.startswith(f"Attachment {name!r}: ")
        assert f"is of kind {file.kind}, which does not match the field {field!r}" in message


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("share", [0.03, 0.5, 0.9])
def test_every_format_cut_short_is_refused_or_said_to_be(seeing: Seeing, name: str, share: float) -> None:
    file = sample(name)
    cut = file.data[: int(len(file.data) * share)]
    if file.kind == "text":
        # Where text ends only its last character tells; here it is the first byte of two.
        cut = "Grüße ü".encode()[:-1]
    response = seeing.ask(files=[inline(cut, name)])
    if response.status_code == 422:
        (row,) = response.json()["detail"]
        assert row["loc"] == ["body", "files", 0]
        assert row["msg"].startswith(f"Attachment {name!r}: ")
        return
    # A recording says of itself that its end is missing, where it can be known.
    assert response.status_code == 200
    assert name in ("call.mp3", "call.ogg", "mail.eml")
    (one,) = seeing.engine.material[-1].evidence
    assert name == "mail.eml" or any("end" in note for note in one.notes)


@pytest.mark.parametrize("name", [name for name in NAMES if sample(name).kind not in ("text", "email")])
def test_every_name_that_promises_another_content_is_refused(seeing: Seeing, name: str) -> None:
    loc, message = seeing.refusal(files=[inline(b"It is only text.\n" * 20, name)])
    assert loc == ["files", 0]
    assert message.startswith(f"Attachment {name!r}: It is named .{name.rpartition('.')[2]}, but")


# Files built to harm


@contextmanager
def bounded() -> Iterator[None]:
    """Whatever is read inside takes little processor time and memory, here and in the reading process."""

    def used() -> tuple[dict[int, float], int]:
        own = psutil.Process()
        times, peak = {}, 0
        for process in (own, *own.children()):
            try:
                time = process.cpu_times()
                status = Path(f"/proc/{process.pid}/status").read_text()
            except (psutil.NoSuchProcess, FileNotFoundError):
                continue
            if "VmHWM:" not in status:  # it has ended, and nobody has waited for it yet
                continue
            times[process.pid] = time.user + time.system
            if process is not own:
                peak = max(peak, int(status.partition("VmHWM:")[2].split()[0]) * 1024)
        return times, peak

    before = used()[0]
    yield
    times, peak = used()
    assert sum(time - before.get(pid, 0.0) for pid, time in times.items()) < SECONDS
    assert peak < MEMORY


def refused(seeing: Seeing, name: str, data: bytes, words: str) -> None:
    """The file is refused as an attachment and as an upload that a request names, within bounds."""
    with bounded():
        if len(data) < 16 * MIB:
            loc, message = seeing.refusal(files=[inline(b"fine", "fine.txt"), inline(data, name)])
            assert loc == ["files", 1]
            assert message.startswith(f"Attachment {name!r}: ")
            assert words in message
    with bounded():
        sent = seeing.client.post("/v1/files", files=[("file", (name, data))])
        if sent.status_code == 200:
            loc, message = seeing.refusal(files=[{"file": sent.json()["files"][0]["id"]}])
        else:
            assert sent.status_code == 422, sent.text
            (row,) = sent.json()["detail"]
            loc, message = row["loc"][1:], row["msg"]
        assert loc == ["files", 0]
        assert repr(name) in message
        assert words in message
    assert seeing.read(files=[inline(b"still here", "b.txt")]).evidence[0].text == "still here"


def png_header(width: int, height: int) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(bytes(4096))) + chunk(b"IEND", b"")


def with_part(name: str, content: bytes) -> bytes:
    out = io.BytesIO(word())
    with zipfile.ZipFile(out, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return out.getvalue()


def xml(declaration: bytes) -> bytes:
    return b"<?xml version='1.0'?><!DOCTYPE x [" + declaration + b"]><x>&z;</x>"


LAUGHS = b"<!ENTITY a 'lol'>" + b"".join(
    b"<!ENTITY %c '%s'>" % (new, b"&%c;" % old * 10)
    for old, new in zip(b"abcdefgh", b"bcdefghz", strict=True)
)

HOSTILE: dict[str, tuple[str, Callable[[], bytes], str]] = {
    "zip bomb": ("a.docx", lambda: with_part("x.xml", b"<a>" + b" " * (64 * MIB)), "expanded bytes"),
    "XML bomb": ("a.xlsx", lambda: with_part("x.xml", xml(LAUGHS)), "document type declaration"),
    "external entity": (
        "a.docx",
        lambda: with_part("x.xml", xml(b"<!ENTITY z SYSTEM 'file:///etc/passwd'>")),
        "document type declaration",
    ),
    "way out": ("a.docx", lambda: with_part("../../x.xml", b"<a/>"), "leads out of it"),
    "huge picture": ("a.png", lambda: png_header(60_000, 60_000), "3,600,000,000 pixels"),
    "very many objects": (
        "a.pdf",
        lambda: b"%PDF-1.7\n" + b"".join(b"%d 0 obj<<>>endobj\n" % n for n in range(1, 1_000_001)),
        "1,000,000 objects",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_files_are_refused_by_name_within_bounds(seeing: Seeing, case: str) -> None:
    name, make, words = HOSTILE[case]
    refused(seeing, name, make(), words)


@pytest.mark.parametrize("extension", ["png", "mp4", "wav", "pdf", "docx", "txt", "eml"])
def test_32_mebibytes_of_garbage_are_refused_by_name_within_bounds(seeing: Seeing, extension: str) -> None:
    refused(seeing, f"a.{extension}", random.Random(1).randbytes(32 * MIB), "It ")


@pytest.mark.parametrize(
    "name", ["../a.txt", "/etc/passwd", "..", "a\\b.txt", "a\0.txt", "a\x85b.txt", "a\u2028Image 1: b.txt"]
)
def test_names_that_are_paths_are_refused(seeing: Seeing, name: str) -> None:
    loc, message = seeing.refusal(files=[inline(b"words", name)])
    assert loc == ["files", 0, "name"]
    assert "no slashes and no control characters" in message
    loc, _ = seeing.refusal(files=[{"file": name}])
    assert loc[:2] == ["files", 0]


def test_an_upload_that_became_a_link_is_gone(seeing: Seeing, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_bytes(b"public words")
    file = seeing.upload("a.txt", secret.read_bytes())
    assert seeing.read(files=[{"file": file}]).evidence[0].text == "public words"
    (seeing.folder / file).unlink()
    (seeing.folder / file).symlink_to(secret)
    loc, message = seeing.refusal(files=[{"file": file}])
    assert loc == ["files", 0, "file"]
    assert "no uploaded file" in message


def test_scripts_in_a_pdf_are_said_and_not_run(seeing: Seeing) -> None:
    document = pymupdf.open()
    document.new_page().insert_text((72, 72), "words")
    action = "<</S/JavaScript/JS(this.getField\\('x'\\).value = 'run')>>"
    document.xref_set_key(document.pdf_catalog(), "OpenAction", action)
    (one,) = seeing.read(files=[inline(document.tobytes(), "a.pdf")]).evidence
    assert one.text == "words"
    assert "JavaScript in it was not run" in one.notes


POLYGLOTS: dict[str, tuple[Callable[[], bytes], str | None]] = {
    "a picture and an archive": (lambda: picture() + word(), "image"),
    "a picture and a page": (lambda: picture(format_="GIF") + b"<html>hidden</html>", "image"),
    "a picture and a script": (lambda: b"GIF89a/*" + picture(format_="GIF")[8:] + b"*/=1;alert(1)", None),
    "an archive and a page": (lambda: word("words") + b"<html>hidden</html>", "document"),
    "a document and an archive": (lambda: text_pdf() + word("hidden"), None),
    "a clip and an archive": (lambda: clip() + word("hidden"), None),
    "a recording and a document": (lambda: tone() + text_pdf(), "audio"),
}


@pytest.mark.parametrize("case", POLYGLOTS)
def test_a_file_of_two_kinds_is_the_first_or_refused_whatever_its_name(seeing: Seeing, case: str) -> None:
    make, kind = POLYGLOTS[case]
    data = make()
    for name in ("a.png", "a.pdf", "a.docx", "a.html", "a.txt", "a.js", "a"):
        response = seeing.ask(files=[inline(data, name)])
        if kind is None and response.status_code == 422:
            assert response.json()["detail"][0]["msg"].startswith(f"Attachment {name!r}: ")
            continue
        assert response.status_code == 200, response.text
        (one,) = seeing.engine.material[-1].evidence
        assert one.kind == (kind or "image")
        assert "hidden" not in one.text


def test_a_picture_with_a_document_in_its_comment_is_one_of_the_two(seeing: Seeing) -> None:
    photo, document = picture(format_="JPEG"), text_pdf()
    data = photo[:2] + b"\xff\xfe" + struct.pack(">H", len(document) + 2) + document + photo[2:]
    for name, kind in (("a.jpg", "image"), ("a.txt", "image"), ("a.pdf", "pdf")):
        (one,) = seeing.read(files=[inline(data, name)]).evidence
        assert one.kind == kind
        # Where the name makes it a document it is none in the field for pictures.
        response: Any = seeing.ask(images=[inline(data, name)])
        assert response.status_code == (200 if kind == "image" else 422)
