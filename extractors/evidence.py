"""What a file becomes: text, pictures and notes on what was read and what was not."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["text", "pdf", "document", "image", "video", "audio", "email"]


@dataclass(frozen=True)
class Picture:
    """One picture to show to a vision tower, or to read by OCR.

    Attributes:
        png: RGB or RGBA PNG; EXIF orientation is already applied, transparency kept.
        width: pixels.
        height: pixels.
        place: where in the file it is, such as "page 3" or "at 2.5 seconds"; None for a plain image.
        sha256: of `png`, in hex.
    """

    png: bytes
    width: int
    height: int
    place: str | None
    sha256: str

    @classmethod
    def of(cls, png: bytes, width: int, height: int, place: str | None = None) -> Picture:
        """Build a picture and its digest."""
        return cls(png, width, height, place, digest(png))


@dataclass(frozen=True)
class Evidence:
    """One attachment, read.

    Attributes:
        name: the attachment's name as given.
        kind: what the content is, by the content itself.
        text: extracted text; '' if there is none.
        pictures: in reading order.
        notes: coverage, one sentence each: what was read and what was not.
        sha256: of the input bytes, in hex.
        sampled: whether `pictures` are samples of more (video only).
    """

    name: str
    kind: Kind
    text: str
    pictures: tuple[Picture, ...]
    notes: tuple[str, ...]
    sha256: str
    sampled: bool = False


def digest(data: bytes) -> str:
    """Return the SHA-256 of `data` in hex."""
    return hashlib.sha256(data).hexdigest()
