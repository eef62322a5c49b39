"""Small real files of every format that is served, each holding what its name says."""

from __future__ import annotations

import io
from collections.abc import Callable
from email.message import EmailMessage
from functools import cache
from typing import Any, NamedTuple

import av
import docx
import numpy as np
import openpyxl
import pptx
import pymupdf
from PIL import Image
from pillow_heif import register_heif_opener

register_heif_opener()

WORDS = "Grüße: the parcel went to Lisbon, € 5"


class Sample(NamedTuple):
    """A file: its name, the kind of its content, its bytes."""

    name: str
    kind: str
    data: bytes


def saved(document: Any) -> bytes:
    """What a document of docx, openpyxl or pptx writes."""
    out = io.BytesIO()
    document.save(out)
    return out.getvalue()


def picture(colour: Any = "red", size: tuple[int, int] = (64, 48), format_: str = "PNG") -> bytes:
    """A picture of one colour; with None one of noise, that no coding makes small."""
    if colour is None:
        noise = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
        image = Image.fromarray(noise)
    else:
        image = Image.new("RGB", size, colour)
    out = io.BytesIO()
    image.save(out, format_)
    return out.getvalue()


def text_pdf(pages: int = 1) -> bytes:
    """A PDF with a line of text on each page."""
    document = pymupdf.open()
    for number in range(pages):
        document.new_page().insert_text((72, 72), f"page {number + 1} went to Lisbon")
    return document.tobytes()


def scan(*colours: Any) -> bytes:
    """A PDF whose pages are pictures of one colour each, without text."""
    document = pymupdf.open()
    for colour in colours:
        page = document.new_page(width=200, height=150)
        # A page of nothing but one colour would be a blank one.
        page.insert_image((10, 10, 190, 140), stream=picture(colour), keep_proportion=False)
    return document.tobytes()


def word(text: str = WORDS) -> bytes:
    """A DOCX file with one paragraph."""
    document = docx.Document()
    document.add_paragraph(text)
    return saved(document)


def excel() -> bytes:
    """An XLSX file with one cell."""
    book = openpyxl.Workbook()
    assert book.active is not None
    book.active["A1"] = WORDS
    return saved(book)


def powerpoint() -> bytes:
    """A PPTX file with one slide."""
    deck = pptx.Presentation()
    slide = deck.slides.add_slide(deck.slide_layouts[5])
    slide.shapes.title.text = WORDS
    return saved(deck)


def mail() -> bytes:
    """A mail with a text and an attachment."""
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = "a@example.org", "b@example.org", "News"
    message.set_content(WORDS)
    message.add_attachment(word(), maintype="application", subtype="x", filename="letter.docx")
    return message.as_bytes()


def clip(format_: str = "mp4", seconds: int = 2, colours: Any = ("red", "blue")) -> bytes:
    """A clip of five frames a second that goes through the colours, a second each."""
    codec = {"webm": "libvpx", "avi": "mpeg4"}.get(format_, "libx264")
    fast = {"libvpx": {"deadline": "realtime"}, "libx264": {"preset": "ultrafast"}}
    out = io.BytesIO()
    with av.open(out, "w", format="matroska" if format_ == "mkv" else format_) as container:
        stream = container.add_stream(codec, rate=5, options=fast.get(codec, {}))
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for number in range(5 * seconds):
            colour = colours[number // 5 % len(colours)]
            container.mux(stream.encode(av.VideoFrame.from_image(Image.new("RGB", (64, 48), colour))))
        container.mux(stream.encode())
    return out.getvalue()


def tone(format_: str = "wav", seconds: float = 2.0) -> bytes:
    """A recording of a tone."""
    codec = {"wav": "pcm_s16le", "mp3": "libmp3lame", "ogg": "libopus", "flac": "flac", "m4a": "aac"}[format_]
    rate = 48_000
    samples = 0.3 * np.sin(np.arange(int(seconds * rate)) * (2 * np.pi * 440 / rate))[None]
    out = io.BytesIO()
    with av.open(out, "w", format="ipod" if format_ == "m4a" else format_) as container:
        stream = container.add_stream(codec, rate=rate, layout="mono")
        frame = av.AudioFrame.from_ndarray(samples.astype(np.float32), format="fltp", layout="mono")
        frame.sample_rate = rate
        resampler = av.AudioResampler(stream.codec_context.format, "mono", rate)
        for part in [*resampler.resample(frame), *resampler.resample(None)]:
            container.mux(stream.encode(part))
        container.mux(stream.encode())
    return out.getvalue()


_MAKERS: dict[str, tuple[str, Callable[[], bytes]]] = {
    "note.txt": ("text", lambda: (WORDS + "\n").encode() * 4),
    "page.html": ("text", lambda: f"<html><body><p>{WORDS}</p></body></html>".encode()),
    "mail.eml": ("email", mail),
    "text.pdf": ("pdf", text_pdf),
    "letter.docx": ("document", word),
    "sheet.xlsx": ("document", excel),
    "show.pptx": ("document", powerpoint),
    **{
        f"photo.{extension}": ("image", lambda format_=format_: picture(None, format_=format_))
        for extension, format_ in {
            "png": "PNG",
            "jpg": "JPEG",
            "gif": "GIF",
            "bmp": "BMP",
            "webp": "WEBP",
            "tiff": "TIFF",
            "heic": "HEIF",
        }.items()
    },
    **{f"clip.{x}": ("video", lambda x=x: clip(x)) for x in ("mp4", "mov", "avi", "mkv", "webm")},
    **{f"call.{x}": ("audio", lambda x=x: tone(x)) for x in ("wav", "mp3", "ogg", "flac", "m4a")},
}

NAMES = tuple(_MAKERS)


@cache
def sample(name: str) -> Sample:
    """The file of this name; it is made once."""
    kind, make = _MAKERS[name]
    return Sample(name, kind, make())
