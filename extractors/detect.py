"""What a file is, by its bytes: the declared media type and a misleading name have no say."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import islice
from typing import NamedTuple

from jev.extractors.errors import Unreadable, UnsupportedType
from jev.extractors.evidence import Kind
from jev.extractors.textfile import mark_of


class Content(NamedTuple):
    """Kind and format of a file, such as ("image", "png") or ("text", "html")."""

    kind: Kind
    format: str


EXTENSIONS: Mapping[str, Content] = {
    **{x: Content("image", x) for x in ("png", "gif", "webp", "bmp", "tiff")},
    **{x: Content("image", "jpeg") for x in ("jpg", "jpeg")},
    **{x: Content("image", "heif") for x in ("heic", "heif")},
    "tif": Content("image", "tiff"),
    **{x: Content("video", x) for x in ("mp4", "mov", "avi", "mkv", "webm")},
    **{x: Content("audio", x) for x in ("mp3", "wav", "ogg", "flac", "m4a")},
    "pdf": Content("pdf", "pdf"),
    **{x: Content("document", x) for x in ("docx", "xlsx", "pptx")},
    "eml": Content("email", "eml"),
    **{x: Content("text", "html") for x in ("html", "htm")},
    **dict.fromkeys(
        ("txt", "csv", "json", "xml", "md", "log", "css", "yaml", "yml", "toml", "ini", "cfg", "tex", "rtf"),
        Content("text", "text"),
    ),
    **dict.fromkeys(
        ("py", "js", "ts", "cs", "java", "cpp", "c", "h", "sh", "bat", "ps1", "rb", "go", "rs", "swift"),
        Content("text", "text"),
    ),
    **dict.fromkeys(
        ("kt", "sql", "r", "m", "jsonl", "ndjson"),
        Content("text", "text"),
    ),
}
"""Extensions of names that are accepted. They decide only between formats that are all text."""

_FIELDS: Mapping[str, frozenset[Kind]] = {
    "images": frozenset({"image"}),
    "documents": frozenset({"text", "pdf", "document", "email"}),
    "videos": frozenset({"video"}),
    "audios": frozenset({"audio"}),
    "files": frozenset({"text", "pdf", "document", "image", "video", "audio", "email"}),
}

_HEIF = frozenset(b"heic heix heim heis hevc hevx hevm hevs mif1 msf1 heif".split())
_AUDIO_BRANDS = frozenset({b"M4A ", b"M4B ", b"M4P "})

# Kinds of files that people do send and that have no reader, by their first bytes.
_REFUSED = (
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "a legacy or password-protected Office file"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (b"Rar!\x1a\x07", "a RAR archive"),
    (b"BZh", "a bzip2 archive"),
    (b"\xfd7zXZ\0", "an xz archive"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive"),
    (b"MZ", "a program"),
    (b"\x7fELF", "a program"),
    (b"%!PS", "a PostScript file"),
)

_MAIL_FIELDS = frozenset(
    b"from to date subject received return-path message-id mime-version delivered-to cc reply-to".split()
)
_HTML = re.compile(rb"(?is)\s*(?:<\?xml[^>]*>\s*)?(?:<!--.*?-->\s*)?<(?:!doctype\s+html|html[\s>])")
_HEAD = 4096
_DEEP = 1 << 16
_MAX_HANDLERS = 1024


def sniff(data: bytes, name: str) -> Content:
    """Say what a file is from its bytes; the extension of `name` decides only between text formats.

    Raises:
        UnsupportedType: for content without a reader, and text under an unknown extension.
        Unreadable: if the extension promises a format that the bytes are not.
    """
    extension = extension_of(name)
    named = EXTENSIONS.get(extension)
    found = _by_magic(data, extension)
    if found:
        return found
    if named and named.kind in ("text", "email"):
        return named
    for magic, what in _REFUSED:
        if data.startswith(magic):
            raise UnsupportedType(f"It is {what}, an unsupported file type")
    if named:
        raise Unreadable(f"It is named .{extension}, but its content is not {_article(named.format)} file")
    if extension:
        raise UnsupportedType("Its name ends in an unsupported file type")
    if not mark_of(data) and b"\0" in data[:_DEEP]:
        raise UnsupportedType("Its content is of an unsupported file type")
    return _text_format(data)


def extension_of(name: str) -> str:
    """Return the extension of a name in lower case without its dot; '' if there is none."""
    stem, dot, extension = name.rpartition(".")
    return extension.lower() if dot and stem else ""


def check_kind(field: str, kind: Kind) -> None:
    """Refuse a kind of content in a request field (`images`, `documents`, ...) that is for others.

    Raises:
        UnsupportedType: naming both.
    """
    if kind not in _FIELDS[field]:
        raise UnsupportedType(f"Its content is of kind {kind}, which does not match the field {field!r}")


def _by_magic(data: bytes, extension: str) -> Content | None:
    if data.startswith(b"PK\x03\x04"):
        from jev.extractors.archive import office_format  # noqa: PLC0415 - only for archives

        return Content("document", office_format(data))
    # PDF files in the wild have junk before the header; so have texts about PDF.
    if data[:64].lstrip().startswith(b"%PDF-") or (extension == "pdf" and b"%PDF-" in data[:1024]):
        return Content("pdf", "pdf")
    return _image(data) or _container(data) or _audio(data)


def _image(data: bytes) -> Content | None:
    formats = (
        (b"\x89PNG\r\n\x1a\n", "png"),
        (b"\xff\xd8\xff", "jpeg"),
        (b"GIF87a", "gif"),
        (b"GIF89a", "gif"),
        (b"II*\0", "tiff"),
        (b"MM\0*", "tiff"),
    )
    for magic, format_ in formats:
        if data.startswith(magic):
            return Content("image", format_)
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return Content("image", "webp")
    # "BM" alone begins many a text; the reserved bytes are zero in a bitmap.
    if data.startswith(b"BM") and len(data) >= 14 and data[6:10] == b"\0\0\0\0":
        return Content("image", "bmp")
    return None


def _container(data: bytes) -> Content | None:
    """Recognise containers that hold pictures, video or sound alike."""
    if data[4:8] == b"ftyp" and data[0] == 0:
        return _iso_media(data)
    # Movies older than ftyp begin with any box, of at most 32 MiB here.
    boxes = (b"moov", b"mdat", b"wide", b"free", b"skip", b"pnot")
    if data[4:8] in boxes and data[0] <= 2 and b"moov" in data:
        return Content("video", "mov")
    if data.startswith(b"RIFF") and data[8:12] == b"AVI ":
        return Content("video", "avi")
    if data.startswith(b"\x1a\x45\xdf\xa3"):
        head = data[:_DEEP]
        if b"V_" not in head and b"A_" in head:
            return Content("audio", "webm")
        return Content("video", "webm" if b"webm" in data[:64] else "mkv")
    return None


def _audio(data: bytes) -> Content | None:
    if data.startswith(b"RIFF") and data[8:12] == b"WAVE":
        return Content("audio", "wav")
    if data.startswith(b"OggS\0"):
        return Content("audio", "ogg")
    if data.startswith((b"fLaC\0", b"fLaC\x80")):
        return Content("audio", "flac")
    if data.startswith((b"ID3\2\0", b"ID3\3\0", b"ID3\4\0")) or _mp3_frame(data[:4]):
        return Content("audio", "mp3")
    return None


def _iso_media(data: bytes) -> Content:
    """Tell the files that share MP4's box structure apart by their brands and tracks."""
    size = min(int.from_bytes(data[:4], "big"), 256)
    brands = {data[8:12], *(data[at : at + 4] for at in range(16, size - 3, 4))}
    if brands & _HEIF:
        return Content("image", "heif")
    if data[8:12] in _AUDIO_BRANDS or _only_sound(data):
        return Content("audio", "m4a")
    return Content("video", "mov" if data[8:12] == b"qt  " else "mp4")


def _only_sound(data: bytes) -> bool:
    """Whether an MP4 file has tracks of sound and none of pictures."""
    # A file has one for each track; one made of nothing else would take seconds.
    found = islice(re.finditer(b"hdlr", data), _MAX_HANDLERS)
    handlers = {data[m.end() + 8 : m.end() + 12] for m in found}
    return b"soun" in handlers and b"vide" not in handlers


def _mp3_frame(head: bytes) -> bool:
    """Whether four bytes are the header of an MPEG layer III frame."""
    if len(head) < 4 or head[0] != 0xFF or head[1] & 0xE6 != 0xE2:
        return False
    version, bitrate, rate = head[1] >> 3 & 3, head[2] >> 4, head[2] >> 2 & 3
    return version != 1 and bitrate not in (0, 15) and rate != 3


def _text_format(data: bytes) -> Content:
    """Tell HTML and mail from other text where the name does not."""
    if _HTML.match(data[:_HEAD]):
        return Content("text", "html")
    seen: set[bytes] = set()
    for line in data[:_HEAD].splitlines():
        if not line.strip():
            break
        if line[:1] in b" \t":
            continue
        field, colon, _ = line.partition(b":")
        if not colon or not re.fullmatch(rb"[!-9;-~]+", field):
            return Content("text", "text")
        seen.add(field.lower())
    return Content("email", "eml") if len(seen & _MAIL_FIELDS) >= 2 else Content("text", "text")


def _article(format_: str) -> str:
    spelled = {"jpeg": "JPEG", "heif": "HEIF", "webp": "WebP", "webm": "WebM"}.get(format_, format_.upper())
    # Letter by letter or as a word, these begin with a vowel sound.
    return f"an {spelled}" if spelled[0] in "AXM" and spelled != "MOV" else f"a {spelled}"
