"""Images: one picture each, upright, in 8 bits, with transparency kept."""

from __future__ import annotations

import io
import re
from itertools import islice
from typing import TYPE_CHECKING

from jev.extractors.detect import sniff
from jev.extractors.errors import LimitExceeded, Unreadable, UnsupportedType
from jev.extractors.evidence import Evidence, Picture, digest
from jev.extractors.limits import Limits

if TYPE_CHECKING:
    from PIL import Image, ImageFile

ORIENTATION = 0x0112
"""The EXIF tag that says how to turn the picture."""

_MAX_SEGMENTS = 100_000
_JPEG_SEGMENT = re.compile(rb"\xff[\xc0-\xcf\xd8-\xfe]")
"""A marker, except those that stand inside the coded picture."""
_GREY16 = frozenset({"I;16", "I;16L", "I;16B", "I;16N"})


def read_image(data: bytes, name: str, limits: Limits) -> Evidence:
    """Read a PNG, JPEG, GIF, BMP, WebP, TIFF or HEIC image; of several frames or pages the first.

    Raises:
        LimitExceeded: for `max_image_bytes` or `max_pixels`; pixels are counted before any is decoded.
        Unreadable: if it is damaged, cut short, or in a colour space that cannot be shown.
        UnsupportedType: if it is no image.
    """
    content = sniff(data, name)
    if content.kind != "image":
        raise UnsupportedType(f"Its content is of kind {content.kind}, which is not an image")
    if len(data) > limits.max_image_bytes:
        raise LimitExceeded("max_image_bytes", limits.max_image_bytes, len(data), unit="bytes")
    if _segments(data, content.format) > _MAX_SEGMENTS:
        raise Unreadable(f"It is an image of more than {_MAX_SEGMENTS:,} segments")
    # The reader of WebP takes memory for all pixels when it is made.
    if content.format == "webp":
        _check_pixels(*_webp_size(data), limits)
    image = _open(data, content.format, limits)
    _check_pixels(*image.size, limits)
    try:
        notes = _frame_notes(image)
        image.load()
        upright = _upright(image)
    except MemoryError:
        raise
    # Decoders fail with errors of every kind; whichever it is, the file is at fault.
    except Exception as error:
        raise Unreadable("It is a damaged or incomplete image") from error
    shown = _eight_bit(upright, notes)
    return Evidence(name, "image", "", (_picture(shown),), tuple(notes), digest(data))


def _segments(data: bytes, format_: str) -> int:
    """Count the segments of a JPEG or PNG file, to just over the limit; readers take time for each."""
    most = _MAX_SEGMENTS + 1
    if format_ == "jpeg":
        return sum(1 for _ in islice(_JPEG_SEGMENT.finditer(data), most))
    count, at = 0, 8
    while format_ == "png" and at < len(data) and count < most:
        at += 12 + int.from_bytes(data[at : at + 4], "big")
        count += 1
    return count


def _check_pixels(width: int, height: int, limits: Limits) -> None:
    if width * height > limits.max_pixels:
        raise LimitExceeded("max_pixels", limits.max_pixels, width * height, unit="pixels")


def _webp_size(data: bytes) -> tuple[int, int]:
    """Width and height in the header of a WebP file; (0, 0) if there are none."""
    chunk, head = data[12:16], data[20:30]
    if len(head) == 10 and chunk == b"VP8X":
        return int.from_bytes(head[4:7], "little") + 1, int.from_bytes(head[7:10], "little") + 1
    if len(head) == 10 and chunk == b"VP8L":
        bits = int.from_bytes(head[1:5], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if len(head) == 10 and chunk == b"VP8 ":
        return int.from_bytes(head[6:8], "little") & 0x3FFF, int.from_bytes(head[8:10], "little") & 0x3FFF
    return 0, 0


def _open(data: bytes, format_: str, limits: Limits) -> ImageFile.ImageFile:
    """Read the header only, by the reader of the sniffed format and no other."""
    from PIL.Image import DecompressionBombError  # noqa: PLC0415

    try:
        return _reader(format_)(io.BytesIO(data))
    # Pillow's own limit is higher; some readers check it, and do not say the number.
    except DecompressionBombError:
        raise LimitExceeded("max_pixels", limits.max_pixels, unit="pixels") from None
    except MemoryError:
        raise
    except Exception as error:
        raise Unreadable("It is a damaged or incomplete image") from error


def _reader(format_: str) -> type[ImageFile.ImageFile]:
    # `Image.open` would try every format it knows, and refuse by its own pixel limit without the number.
    from PIL import (  # noqa: PLC0415 - only when there is an image
        BmpImagePlugin,
        GifImagePlugin,
        JpegImagePlugin,
        PngImagePlugin,
        TiffImagePlugin,
        WebPImagePlugin,
    )

    if format_ == "heif":
        from pillow_heif import HeifImageFile  # noqa: PLC0415

        return HeifImageFile
    return {
        "bmp": BmpImagePlugin.BmpImageFile,
        "gif": GifImagePlugin.GifImageFile,
        "jpeg": JpegImagePlugin.JpegImageFile,
        "png": PngImagePlugin.PngImageFile,
        "tiff": TiffImagePlugin.TiffImageFile,
        "webp": WebPImagePlugin.WebPImageFile,
    }[format_]


def _frame_notes(image: ImageFile.ImageFile) -> list[str]:
    # Counting the frames of a GIF or TIFF walks through all of them, and there may be millions.
    if not getattr(image, "is_animated", False):
        return []
    if image.format in ("GIF", "TIFF"):
        return ["first of several frames or pages only"]
    return [f"first of {getattr(image, 'n_frames', 'several')} frames or pages only"]


def _upright(image: Image.Image) -> Image.Image:
    """Turn the picture as its EXIF orientation says."""
    from PIL.Image import Transpose  # noqa: PLC0415

    try:
        orientation = image.getexif().get(ORIENTATION)
    # Broken metadata says nothing about the picture.
    except Exception:
        orientation = None
    turn = {
        2: Transpose.FLIP_LEFT_RIGHT,
        3: Transpose.ROTATE_180,
        4: Transpose.FLIP_TOP_BOTTOM,
        5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270,
        7: Transpose.TRANSVERSE,
        8: Transpose.ROTATE_90,
    }.get(orientation or 1)
    return image if turn is None else image.transpose(turn)


def _eight_bit(image: Image.Image, notes: list[str]) -> Image.Image:
    """Convert to RGB, or to RGBA where there is transparency."""
    try:
        if image.mode in _GREY16:
            return _scaled(image, 0, 0xFFFF).convert("RGB")
        if image.mode in ("I", "F"):
            low, high = (float(value) for value in image.getextrema())  # type: ignore[arg-type]
            # 16-bit grey may arrive in 32 bits; then its scale is known.
            known = image.mode == "I" and low >= 0 and high <= 0xFFFF
            if not known:
                notes.append("brightness scaled to the range of values in it")
            return (_scaled(image, 0, 0xFFFF) if known else _scaled(image, low, high)).convert("RGB")
        transparent = image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info
        return image.convert("RGBA" if transparent else "RGB")
    except MemoryError:
        raise
    except Exception as error:
        raise Unreadable(f"It is an image in a colour space that cannot be shown ({image.mode})") from error


def _scaled(image: Image.Image, low: float, high: float) -> Image.Image:
    """Map samples from `low`..`high` to 0..255."""
    import numpy as np  # noqa: PLC0415
    from PIL import Image  # noqa: PLC0415

    samples = np.nan_to_num(np.asarray(image, dtype=np.float32))
    grey = (samples - low) * (255.0 / max(high - low, 1e-30))
    return Image.fromarray(np.clip(np.rint(grey), 0, 255).astype(np.uint8))


def _picture(image: Image.Image) -> Picture:
    # Without profile, resolution and texts, equal pixels give equal bytes.
    image.info = {}
    out = io.BytesIO()
    # The lowest level: pictures are written to be read again at once, not to be kept.
    image.save(out, "PNG", compress_level=1)
    return Picture.of(out.getvalue(), *image.size)
