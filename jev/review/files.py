"""Attachments on the page: pictures that a browser can show and beginnings of texts, told by their bytes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from jev.extractors import Unreadable, UnsupportedType
from jev.extractors.detect import sniff
from jev.review.queue import File
from jev.review.view import MAX_TEXT, one_line, text_of

MAX_BYTES = 20 * 2**20
"""Bytes of the largest attachment that is looked into."""

MEDIA = {name: f"image/{name}" for name in ("png", "jpeg", "gif", "webp", "bmp")}


@dataclass(frozen=True)
class Shown:
    """What of an attachment is shown.

    Attributes:
        name: its path in the row.
        kind: an image has an address of its own, a text is here, of anything else only a note.
        text: of a text.
        note: what it is, or why it is not shown.
    """

    name: str
    kind: Literal["image", "text", "other"]
    text: str = ""
    note: str = ""


def look(file: File) -> Shown:
    """Say what of an attachment is shown; never raises."""
    name = one_line(file.name)
    data = _read(file.path)
    if isinstance(data, str):
        return Shown(name, "other", note=data)
    try:
        found = sniff(data, file.path.name)
    except (Unreadable, UnsupportedType) as error:
        return Shown(name, "other", note=one_line(str(error)))
    if found.kind in ("text", "email"):
        # A character has 4 bytes at most: what is not shown is not decoded.
        text = data[: 4 * (MAX_TEXT + 1)].decode("utf-8", "replace")
        return Shown(name, "text", text_of(text))
    if found.kind == "image" and found.format in MEDIA:
        return Shown(name, "image")
    return Shown(name, "other", note=f"{found.format}, {len(data):,} bytes")


def picture(file: File) -> tuple[bytes, str] | None:
    """The bytes and the media type of a picture; None if it is none that is shown."""
    data = _read(file.path)
    if isinstance(data, str):
        return None
    try:
        found = sniff(data, file.path.name)
    except (Unreadable, UnsupportedType):
        return None
    media = MEDIA.get(found.format) if found.kind == "image" else None
    return None if media is None else (data, media)


def _read(path: Path) -> bytes | str:
    """The bytes of a file, or why not; a link that has taken its place since is not followed."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as stream:
            if path.resolve() != path:
                return "it is not where it was"
            data = stream.read(MAX_BYTES + 1)
    except (OSError, RuntimeError) as error:
        return f"it cannot be read ({getattr(error, 'strerror', None) or type(error).__name__})"
    if not data:
        return "it is empty"
    return data if len(data) <= MAX_BYTES else f"it has more than {MAX_BYTES // 2**20} MiB"
