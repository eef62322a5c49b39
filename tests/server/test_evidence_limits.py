"""Each limit on the files of a request together holds to the unit, and names the file that goes over it."""

from __future__ import annotations

import base64
import io
import os
import zipfile
from collections.abc import Callable
from email.message import EmailMessage
from typing import TYPE_CHECKING, Any

import pytest
from sample_files import clip, picture, scan, text_pdf, word
from starlette.testclient import TestClient

if TYPE_CHECKING:
    from tests.server.conftest import Seeing

MIB = 2**20
REF = "<image:0>"
FIELDS = ("files", "documents", "videos", "audios")


def inline(data: bytes, name: str = "a.txt") -> dict[str, str]:
    return {"name": name, "data": base64.b64encode(data).decode()}


def text(characters: int, name: str = "a.txt") -> dict[str, str]:
    # Two bytes a character, so that it is not bytes that are counted.
    return inline(("ü" * characters).encode(), name)


def image() -> str:
    return inline(picture())["data"]


def asset() -> dict[str, str]:
    return {"type": "image", "format": "png", "data_base64": image()}


def padded_word(size: int) -> bytes:
    """A DOCX file of exactly so many bytes, filled with a picture that nothing makes smaller."""

    def packed(filler: bytes) -> bytes:
        out = io.BytesIO(word())
        with zipfile.ZipFile(out, "a", zipfile.ZIP_STORED) as archive:
            archive.writestr("word/media/filler.png", filler)
        return out.getvalue()

    return packed(os.urandom(size - len(packed(b""))))


# Counts


def test_eight_images_and_no_more(seeing: Seeing) -> None:
    assert len(seeing.read(images=[image()] * 8).pictures) == 8
    loc, message = seeing.refusal(images=[image()] * 9)
    assert loc == ["images"]
    assert "at most 8" in message
    assert "not 9" in message


def test_eight_attachments_over_all_four_fields_and_no_more(seeing: Seeing) -> None:
    counts = dict(zip(FIELDS, (3, 5, 0, 0), strict=True))
    fields: dict[str, Any] = {name: [text(1)] * count for name, count in counts.items()}
    # Pictures that stand in the request are no attachments.
    assert len(seeing.read(**fields, images=[image()] * 8).evidence) == 16
    for name in ("documents", "videos", "audios"):
        loc, message = seeing.refusal(**{**fields, name: [*fields[name], text(1)]})
        assert loc == [name]
        assert "9 attachments in files, documents, videos and audios; the limit is 8" in message


def test_a_lower_limit_on_attachments_names_the_file(start: Callable[..., TestClient], body: Any) -> None:
    client = start(limits={"max_attachments": 2})
    body |= {"files": [text(1)], "documents": [text(1, "b.txt"), text(1, "c.txt")]}
    (row,) = client.post("/v1/systemone", json=body).json()["detail"]
    assert row["loc"] == ["body", "documents", 1]
    assert row["msg"] == (
        "Attachment 'c.txt': With it the request has 3 attachments, "
        "which exceeds the limit of 2 (max_attachments)"
    )


# Bytes


def test_64_mebibytes_with_the_images_and_not_one_more(seeing: Seeing) -> None:
    shown = picture()
    large, rest = padded_word(32 * MIB), padded_word(32 * MIB - len(shown))
    files = [{"file": seeing.upload("a.docx", large)}]
    documents = [{"file": seeing.upload("b.docx", rest)}]
    material = seeing.read(images=[inline(shown)["data"]], files=files, documents=documents)
    assert [one.name for one in material.evidence] == ["image", "a.docx", "b.docx"]
    loc, message = seeing.refusal(
        images=[inline(shown + b"\0")["data"]], files=files, documents=documents, audios=[]
    )
    assert loc == ["documents", 0]
    assert message.endswith(
        ": With it the request has 67,108,865 bytes of files, "
        "which exceeds the limit of 67,108,864 (max_total_bytes)"
    )
    read = seeing.client.app.state.service.files.read  # type: ignore[attr-defined]
    loaded: list[str] = []
    seeing.client.app.state.service.files.read = lambda file: loaded.append(file) or read(file)  # type: ignore[attr-defined]
    try:
        loc, message = seeing.refusal(files=[*files, *files], documents=documents)
    finally:
        del seeing.client.app.state.service.files.read  # type: ignore[attr-defined]
    assert loc == ["documents", 0]
    # What is over is not brought into memory to find that out.
    assert loaded == [files[0]["file"]] * 2


def test_a_file_of_32_mebibytes_and_not_one_byte_more(start: Callable[..., TestClient], body: Any) -> None:
    client = start(max_upload_bytes=33 * MIB, ocr="off")
    (file,) = client.post("/v1/files", files=[("file", ("a.docx", padded_word(32 * MIB + 1)))]).json()[
        "files"
    ]
    for field, limit in (("files", 32 * MIB), ("documents", 32 * MIB), ("images", 16 * MIB)):
        (row,) = client.post("/v1/systemone", json={**body, field: [{"file": file["id"]}]}).json()["detail"]
        assert row["loc"] == ["body", field, 0, "file"]
        found = f"The file has {32 * MIB + 1} bytes, the limit is {limit}"
        assert row["msg"] == f"Attachment {file['id']!r}: {found}"


# Text


def test_32768_characters_of_a_file_and_not_one_more(seeing: Seeing) -> None:
    (one,) = seeing.read(files=[text(32_768)]).evidence
    assert one.text == "ü" * 32_768
    loc, message = seeing.refusal(files=[text(5, "b.txt"), text(32_769)])
    assert loc == ["files", 1]
    assert message.startswith("Attachment 'a.txt': It has 32,769 characters")
    assert "the limit of 32,768 (max_text_chars)" in message


def test_65536_characters_over_all_files_and_not_one_more(seeing: Seeing) -> None:
    two = {"files": [text(32_768)], "documents": [text(32_767, "b.txt")]}
    assert sum(len(one.text) for one in seeing.read(**two, images=[image()]).evidence) == 65_535
    assert len(seeing.read(files=two["files"], documents=[*two["documents"], text(1)]).evidence) == 3
    loc, message = seeing.refusal(files=two["files"], documents=[*two["documents"], text(2, "c.txt")])
    assert loc == ["documents", 1]
    assert message == (
        "Attachment 'c.txt': With it the request has 65,537 characters of combined extracted text, "
        "which exceeds the limit of 65,536 (max_total_text_chars)"
    )


# Pages and pictures


@pytest.mark.parametrize(("pages", "words"), [(33, "33 pages"), (200, "200 pages")])
def test_32_pages_of_a_pdf_and_not_one_more(seeing: Seeing, pages: int, words: str) -> None:
    (one,) = seeing.read(files=[inline(text_pdf(32), "a.pdf")]).evidence
    assert "page 32 went" in one.text
    loc, message = seeing.refusal(documents=[inline(text_pdf(pages), "a.pdf")])
    assert loc == ["documents", 0]
    assert message == f"Attachment 'a.pdf': It has {words}, which exceeds the limit of 32 (max_pdf_pages)"


def test_eight_pictures_over_everything_and_no_more(seeing: Seeing) -> None:
    fields: dict[str, Any] = {
        "state": REF,
        "assets": {REF: asset()},
        "images": [image()],
        "files": [inline(picture("blue"), "b.png"), inline(scan("red", "green"), "c.pdf")],
        "videos": [inline(clip(seconds=3, colours=("red", "blue", "lime")), "d.mp4")],
    }
    material = seeing.read(**fields)
    assert [len(one.pictures) for one in material.evidence] == [1, 1, 2, 3]
    assert len(material.pictures) == 8
    for field, entry, name in (
        ("files", inline(picture(), "e.png"), "e.png"),
        ("documents", inline(scan("red"), "e.pdf"), "e.pdf"),
    ):
        full = {**fields, "images": [image()] * 4, "videos": []}
        assert len(seeing.read(**full).pictures) == 8
        loc, message = seeing.refusal(**{**full, field: [*full.get(field, []), entry]})
        assert loc == [field, len(full.get(field, []))]
        assert message == (
            f"Attachment {name!r}: With it the request has 9 pictures, "
            "which exceeds the limit of 8 (max_images)"
        )


def test_a_scan_with_more_pages_than_places_is_refused_whole(seeing: Seeing) -> None:
    loc, message = seeing.refusal(images=[image()] * 6, files=[inline(scan(*["red"] * 3), "a.pdf")])
    assert loc == ["files", 0]
    assert "'a.pdf'" in message
    assert "9 pictures, which exceeds the limit of 8" in message


def test_assets_take_places_of_pictures(seeing: Seeing) -> None:
    assets = {f"<{n}>": asset() for n in range(4)}
    fields: dict[str, Any] = {"state": "".join(assets), "assets": assets}
    assert len(seeing.read(**fields, images=[image()] * 4).pictures) == 8
    loc, message = seeing.refusal(**fields, images=[image()] * 5)
    assert loc == ["assets", "<3>", "data_base64"]
    assert "9 pictures, which exceeds the limit of 8" in message


@pytest.mark.parametrize(
    ("images", "times"),
    [(4, (0, 3, 6, 9)), (5, (0, 4, 9)), (6, (0, 9)), (7, (5,))],
)
@pytest.mark.parametrize("as_assets", [False, True])
def test_frames_are_thinned_to_the_places_that_are_left(
    seeing: Seeing, images: int, times: tuple[int, ...], as_assets: bool
) -> None:
    assets = {f"<{n}>": asset() for n in range(images)} if as_assets else None
    shown: dict[str, Any] = (
        {"assets": assets, "state": "".join(assets)} if assets else {"images": [image()] * images}
    )
    video = seeing.read(**shown, videos=[inline(clip(seconds=10), "a.mp4")]).evidence[-1]
    assert [one.place for one in video.pictures] == [f"at {time} seconds" for time in times]
    assert video.notes[0].startswith(f"{len(times)} of 50 frames")


def test_without_a_place_a_video_is_refused(seeing: Seeing) -> None:
    loc, message = seeing.refusal(images=[image()] * 8, videos=[inline(clip(), "a.mp4")])
    assert loc == ["videos", 0]
    assert message.startswith("Attachment 'a.mp4': With it the request has 9 pictures")
    assert seeing.read(images=[image()] * 8, videos=[], files=[text(1)]).evidence[-1].text == "ü"


def test_a_mail_counts_what_is_in_it(seeing: Seeing) -> None:
    message = EmailMessage()
    message["From"], message["To"] = "a@example.org", "b@example.org"
    message.set_content("see attached")
    for number in range(2):
        message.add_attachment(picture(), maintype="image", subtype="png", filename=f"{number}.png")
    sent = inline(message.as_bytes(), "a.eml")
    assert len(seeing.read(images=[image()] * 6, files=[sent]).pictures) == 8
    loc, said = seeing.refusal(images=[image()] * 7, files=[sent])
    assert loc == ["files", 0]
    assert said.startswith("Attachment 'a.eml': In attachment 2: With it the request has 9 pictures")
