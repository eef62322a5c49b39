"""A file is what its bytes say; its name decides between text formats only; refusals say what it is."""

from __future__ import annotations

import io
import random
import struct
import zipfile

import pytest

from jev.extractors import ExtractError, Unreadable, UnsupportedType
from jev.extractors.archive import office_format
from jev.extractors.container import is_cut_short
from jev.extractors.detect import EXTENSIONS, check_kind, sniff


def box(kind: bytes, content: bytes = b"") -> bytes:
    return struct.pack(">I", 8 + len(content)) + kind + content


def ftyp(brand: bytes, *others: bytes) -> bytes:
    return box(b"ftyp", brand + b"\0\0\0\0" + b"".join(others))


def track(handler: bytes) -> bytes:
    return box(b"moov", box(b"trak", box(b"mdia", box(b"hdlr", b"\0" * 8 + handler + b"\0" * 12))))


def package(main: str, **members: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        types = f'<Types><Override PartName="/x" ContentType="application/vnd.{main}"/></Types>'
        archive.writestr("[Content_Types].xml", types)
        for name, content in members.items():
            archive.writestr(name, content)
    return out.getvalue()


def archive(**members: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        for name, content in members.items():
            file.writestr(name, content)
    return out.getvalue()


BINARY = sorted(x for x, content in EXTENSIONS.items() if content.kind not in ("text", "email"))
WORD = "openxmlformats-officedocument.wordprocessingml.document.main+xml"
MAGIC = [
    (b"\x89PNG\r\n\x1a\n" + b"\0" * 20, "image", "png"),
    (b"\xff\xd8\xff\xe0" + b"\0" * 20, "image", "jpeg"),
    (b"GIF87a" + b"\0" * 20, "image", "gif"),
    (b"GIF89a" + b"\0" * 20, "image", "gif"),
    (b"BM" + b"\x46\0\0\0" + b"\0" * 20, "image", "bmp"),
    (b"RIFF\x10\0\0\0WEBPVP8 ", "image", "webp"),
    (b"II*\0" + b"\0" * 20, "image", "tiff"),
    (b"MM\0*" + b"\0" * 20, "image", "tiff"),
    *((ftyp(brand), "image", "heif") for brand in (b"heic", b"heix", b"mif1", b"msf1", b"heif", b"hevc")),
    (ftyp(b"xxxx", b"abcd", b"heic"), "image", "heif"),
    (ftyp(b"isom", b"mp42") + track(b"vide"), "video", "mp4"),
    (ftyp(b"qt  ") + track(b"vide"), "video", "mov"),
    (box(b"wide") + track(b"vide"), "video", "mov"),
    (b"RIFF\x10\0\0\0AVI LIST", "video", "avi"),
    (b"\x1a\x45\xdf\xa3\x9f\x42\x82\x84webm...V_VP8..A_OPUS", "video", "webm"),
    (b"\x1a\x45\xdf\xa3\xa3\x42\x82\x88matroska...V_MPEG4", "video", "mkv"),
    (b"\x1a\x45\xdf\xa3\x9f\x42\x82\x84webm...A_OPUS", "audio", "webm"),
    (b"ID3\x03\0\0" + b"\0" * 20, "audio", "mp3"),
    (b"\xff\xfb\x90\x00" + b"\0" * 20, "audio", "mp3"),
    (b"RIFF\x10\0\0\0WAVEfmt ", "audio", "wav"),
    (b"OggS\0\x02" + b"\0" * 20, "audio", "ogg"),
    (b"fLaC\0\0\0\x22", "audio", "flac"),
    (ftyp(b"M4A ") + track(b"soun"), "audio", "m4a"),
    (ftyp(b"mp42") + track(b"soun"), "audio", "m4a"),
    (b"%PDF-1.7\n", "pdf", "pdf"),
    (b"\r\n %PDF-1.4\n", "pdf", "pdf"),
    (package(WORD), "document", "docx"),
    (package("openxmlformats-officedocument.spreadsheetml.sheet.main+xml"), "document", "xlsx"),
    (package("openxmlformats-officedocument.presentationml.presentation.main+xml"), "document", "pptx"),
]


@pytest.mark.parametrize("name", ["x", "x.txt", "x.pdf", "x.png", "x.mp3", "x.mp4", "x.docx", "x.exe"])
@pytest.mark.parametrize(("data", "kind", "format_"), MAGIC)
def test_the_content_decides_whatever_the_name(data: bytes, kind: str, format_: str, name: str) -> None:
    assert sniff(data, name) == (kind, format_)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.txt", ("text", "text")),
        ("A.TXT", ("text", "text")),
        ("a.html", ("text", "html")),
        ("a.htm", ("text", "html")),
        ("a.md", ("text", "text")),
        ("a.eml", ("email", "eml")),
        ("a.tar.py", ("text", "text")),
    ],
)
@pytest.mark.parametrize(
    "data", [b"plain words", b"<!doctype html><p>x", b"From: a@b\nSubject: hi\n\nx", b"MZ is a chess move"]
)
def test_between_text_formats_the_name_decides(data: bytes, name: str, expected: tuple[str, str]) -> None:
    assert sniff(data, name) == expected


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"plain words", ("text", "text")),
        (b"Note: a line\nthat is not a header", ("text", "text")),
        (b"Title: one\nAuthor: two\n\nbody", ("text", "text")),
        (b" <!DOCTYPE HTML><p>x", ("text", "html")),
        (b"<html lang=en>", ("text", "html")),
        (b"<!-- hi --><!doctype html>", ("text", "html")),
        (b"<htmlx>", ("text", "text")),
        (b"From: a@b\r\nX-Folded: a\r\n b\r\nSubject: hi\r\n\r\nx", ("email", "eml")),
        ("\ufeffhello".encode("utf-16"), ("text", "text")),
    ],
)
def test_text_without_an_extension_is_told_by_its_content(data: bytes, expected: tuple[str, str]) -> None:
    assert sniff(data, "README") == expected
    assert sniff(data, ".hidden") == expected


@pytest.mark.parametrize("name", ["a.exe", "a.unknown", "a.txt.bak", "a.docm"])
def test_text_under_an_unknown_extension_is_refused(name: str) -> None:
    with pytest.raises(UnsupportedType, match="unsupported file type"):
        sniff(b"text", name)


@pytest.mark.parametrize("extension", BINARY)
@pytest.mark.parametrize("data", [b"plain text", b"\x01\x02\x03\x04" * 100, b"PDF-1.7"])
def test_a_name_that_promises_another_format_is_refused_by_it(data: bytes, extension: str) -> None:
    with pytest.raises(Unreadable, match=rf"named \.{extension}, but its content is not an? "):
        sniff(data, f"a.{extension}")


@pytest.mark.parametrize(
    ("data", "name", "what"),
    [
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"\0" * 100, "a.doc", "legacy or password-protected Office"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"\0" * 100, "a.docx", "legacy or password-protected Office"),
        (b"\x1f\x8b\x08\0", "a.tgz", "gzip"),
        (b"7z\xbc\xaf\x27\x1c", "a.7z", "7z"),
        (b"MZ\x90\0", "a.exe", "program"),
        (b"\x7fELF\x02", "a", "program"),
        (archive(a="1"), "a.zip", "zip archive"),
        (archive(a="1"), "a.docx", "zip archive"),
        (archive(mimetype="application/vnd.oasis.opendocument.text"), "a.odt", "OpenDocument"),
        (package("ms-word.document.macroEnabled.main+xml"), "a.docm", "macros"),
        (package("ms-excel.sheet.macroEnabled.main+xml"), "a.xlsx", "macros"),
        (package("ms-visio.drawing.main+xml"), "a.vsdx", "not Word, Excel or PowerPoint"),
        (b"\0\x01\x02binary", "noname", "unsupported file type"),
    ],
)
def test_known_files_without_a_reader_are_refused_by_what_they_are(data: bytes, name: str, what: str) -> None:
    with pytest.raises(UnsupportedType, match=what):
        sniff(data, name)


@pytest.mark.parametrize(
    "text",
    [b"GIF files", b"ID3 tags", b"OggS is", b"fLaC is", b"BMW, a car", b"the %PDF- mark", b"II*"],
)
def test_words_that_look_like_magic_are_text(text: bytes) -> None:
    assert sniff(text + b" and more text", "a.txt") == ("text", "text")


def test_junk_before_the_header_of_a_pdf_needs_its_extension() -> None:
    data = b"HTTP/1.1 200 OK\r\n\r\n%PDF-1.7\n"
    assert sniff(data, "a.pdf") == ("pdf", "pdf")
    assert sniff(data, "a.txt") == ("text", "text")


def test_a_damaged_archive_is_unreadable() -> None:
    with pytest.raises(Unreadable, match="archive is damaged or cut short"):
        sniff(package(WORD)[:-30], "a.docx")


@pytest.mark.parametrize(
    ("field", "kinds"),
    [
        ("images", {"image"}),
        ("documents", {"text", "pdf", "document", "email"}),
        ("videos", {"video"}),
        ("audios", {"audio"}),
        ("files", {"text", "pdf", "document", "image", "video", "audio", "email"}),
    ],
)
def test_each_field_takes_its_kinds(field: str, kinds: set[str]) -> None:
    for kind in ("text", "pdf", "document", "image", "video", "audio", "email"):
        if kind in kinds:
            check_kind(field, kind)
        else:
            with pytest.raises(UnsupportedType, match=f"kind {kind}, which does not match .*'{field}'"):
                check_kind(field, kind)


def test_an_office_file_that_is_damaged_in_any_way_is_refused() -> None:
    """Whatever zipfile raises of it: uploads are looked at in the server itself."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("[Content_Types].xml", "<Types/>" * 50)
    lzma = out.getvalue()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("[Content_Types].xml", "<Types/>" * 50)
    good = out.getvalue()
    at = good.index(b"PK\x01\x02")
    far = bytearray(good)
    # The entry lies where no file reaches, as a zip64 field says.
    extra = struct.pack("<HHQ", 1, 8, 2**64 - 10)
    far[at + 42 : at + 46] = b"\xff" * 4
    far[at + 30 : at + 32] = struct.pack("<H", len(extra))
    name = at + 46 + len("[Content_Types].xml")
    far[name:name] = extra
    end = far.index(b"PK\x05\x06")
    far[end + 12 : end + 16] = struct.pack("<I", end - at)
    rng = random.Random(3)
    damaged = [bytes(far), lzma]
    for _ in range(300):
        one = bytearray(rng.choice([lzma, good]))
        for _ in range(rng.randint(1, 6)):
            one[rng.randrange(4, len(one))] = rng.randrange(256)
        damaged.append(bytes(one))
    for data in damaged:
        try:
            office_format(data)
        except ExtractError:
            continue
    with pytest.raises(ExtractError):
        office_format(bytes(far))
    with pytest.raises(ExtractError, match="compressed in a way that Office files are not"):
        office_format(lzma)


def test_a_recorder_that_cannot_go_back_leaves_no_size() -> None:
    """As SoX writes to a pipe."""
    for size in (0, 0x7FFFF024, 0x7FFFFFFF, 0xFFFFFFFF):
        assert not is_cut_short(b"RIFF" + struct.pack("<I", size) + b"WAVE", "wav")
    assert is_cut_short(b"RIFF" + struct.pack("<I", 1000) + b"WAVE", "wav")
