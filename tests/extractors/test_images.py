"""An image of any served format becomes one upright 8-bit picture, and a bad one is refused early by name."""

import io
import random
import struct
import time
import zlib

import numpy as np
import pytest
from PIL import Image
from pillow_heif import register_heif_opener

from jev.extractors import Evidence, ExtractError, LimitExceeded, Limits, Unreadable, UnsupportedType
from jev.extractors.images import ORIENTATION, read_image

register_heif_opener()
FORMATS = ["PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "HEIF"]
RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)


def corners(width: int = 96, height: int = 64) -> Image.Image:
    """Red, green, blue and white quarters, so that every way to turn it shows."""
    image = Image.new("RGB", (width, height), RED)
    image.paste(GREEN, (width // 2, 0, width, height // 2))
    image.paste(BLUE, (0, height // 2, width // 2, height))
    image.paste(WHITE, (width // 2, height // 2, width, height))
    return image


def saved(image: Image.Image, format_: str = "PNG", **options: object) -> bytes:
    out = io.BytesIO()
    image.save(out, format_, **options)
    return out.getvalue()


def shown(evidence: Evidence) -> Image.Image:
    (picture,) = evidence.pictures
    image = Image.open(io.BytesIO(picture.png))
    assert image.format == "PNG"
    assert image.size == (picture.width, picture.height)
    return image


def assert_corners(image: Image.Image, tolerance: int = 40) -> None:
    width, height = image.size
    at = [(x, y) for y in (height // 4, 3 * height // 4) for x in (width // 4, 3 * width // 4)]
    for place, colour in zip(at, (RED, GREEN, BLUE, WHITE), strict=True):
        found = image.convert("RGB").getpixel(place)
        assert np.abs(np.subtract(found, colour)).max() <= tolerance, (place, found, colour)


@pytest.mark.parametrize("format_", FORMATS)
def test_every_format_is_read_whatever_it_is_named(format_: str) -> None:
    data = saved(corners(), format_)
    evidence = read_image(data, "photo.xyz", Limits())
    assert (evidence.kind, evidence.text, evidence.notes, evidence.sampled) == ("image", "", (), False)
    assert evidence.pictures[0].place is None
    image = shown(evidence)
    assert (image.mode, image.size) == ("RGB", (96, 64))
    assert_corners(image)


def test_a_wrong_extension_does_not_matter() -> None:
    assert_corners(shown(read_image(saved(corners(), "WEBP"), "photo.jpg", Limits())))


UPRIGHT_TO_STORED = {
    1: None,
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


@pytest.mark.parametrize("format_", ["JPEG", "PNG", "WEBP", "TIFF", "HEIF"])
@pytest.mark.parametrize("orientation", UPRIGHT_TO_STORED)
def test_exif_orientation_is_applied(format_: str, orientation: int) -> None:
    turn = UPRIGHT_TO_STORED[orientation]
    stored = corners() if turn is None else corners().transpose(turn)
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    image = shown(read_image(saved(stored, format_, exif=exif.tobytes()), "x", Limits()))
    assert image.size == (96, 64)
    assert_corners(image)


def test_broken_exif_leaves_the_picture_as_it_is() -> None:
    data = saved(corners(), "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff" + bytes(40))
    assert_corners(shown(read_image(data, "x", Limits())))


def test_transparency_is_kept() -> None:
    clear = corners().convert("RGBA")
    clear.putpixel((3, 3), (9, 8, 7, 0))
    clear.putpixel((4, 3), (9, 8, 7, 100))
    image = shown(read_image(saved(clear), "x", Limits()))
    assert image.mode == "RGBA"
    assert image.getpixel((3, 3)) == (9, 8, 7, 0)
    assert image.getpixel((4, 3)) == (9, 8, 7, 100)
    assert image.getpixel((90, 60)) == (255, 255, 255, 255)


@pytest.mark.parametrize(
    ("format_", "mode", "options"),
    [
        ("PNG", "LA", {}),
        ("PNG", "L", {"transparency": 0}),
        ("PNG", "P", {"transparency": 0}),
        ("GIF", "P", {"transparency": 0}),
        ("PNG", "RGB", {"transparency": (0, 0, 0)}),
    ],
)
def test_transparency_of_every_make_becomes_alpha(format_: str, mode: str, options: dict) -> None:
    stored = Image.new(mode, (8, 8), (0, 0) if mode == "LA" else 0)
    if mode == "P":
        stored.putpalette([0, 0, 0, 255, 0, 0])
    solid = {"LA": (255, 255), "RGB": (1, 2, 3)}.get(mode, 1)
    stored.putpixel((0, 0), solid)
    image = shown(read_image(saved(stored, format_, **options), "x", Limits()))
    assert image.mode == "RGBA"
    assert image.getpixel((0, 0))[3] == 255
    assert image.getpixel((5, 5))[3] == 0


def test_cmyk_one_bit_and_palette_become_rgb() -> None:
    cmyk = corners().convert("CMYK")
    for data in (saved(cmyk, "JPEG", quality=95), saved(cmyk, "TIFF"), saved(corners().convert("P"))):
        image = shown(read_image(data, "x", Limits()))
        assert image.mode == "RGB"
        assert_corners(image)
    bit = Image.new("1", (4, 4), 1)
    bit.putpixel((0, 0), 0)
    image = shown(read_image(saved(bit), "x", Limits()))
    assert (image.getpixel((0, 0)), image.getpixel((1, 1))) == ((0, 0, 0), WHITE)


@pytest.mark.parametrize("format_", ["PNG", "TIFF"])
def test_sixteen_bit_grey_keeps_its_scale(format_: str) -> None:
    samples = np.full((4, 4), 0x8000, dtype=np.uint16)
    samples[0, 0], samples[0, 1] = 0, 0xFFFF
    evidence = read_image(saved(Image.fromarray(samples), format_), "x", Limits())
    image = shown(evidence)
    assert [image.getpixel((x, 0)) for x in (0, 1, 2)] == [(0, 0, 0), WHITE, (128, 128, 128)]
    assert evidence.notes == ()


def test_sixteen_bit_colour_is_brought_to_eight() -> None:
    row = b"\0" + struct.pack(">3H", 0xFFFF, 0x8000, 0)
    head = struct.pack(">IIBBBBB", 1, 1, 16, 2, 0, 0, 0)
    image = shown(read_image(png(head, zlib.compress(row)), "x", Limits()))
    assert image.getpixel((0, 0)) == (255, 128, 0)


def test_samples_without_a_known_scale_are_stretched_and_said_so() -> None:
    samples = np.array([[-2.0, 6.0], [2.0, float("nan")]], dtype=np.float32)
    evidence = read_image(saved(Image.fromarray(np.nan_to_num(samples)), "TIFF"), "x", Limits())
    image = shown(evidence)
    assert [image.getpixel(p)[0] for p in ((0, 0), (1, 0), (0, 1))] == [0, 255, 128]
    assert evidence.notes == ("brightness scaled to the range of values in it",)


@pytest.mark.parametrize("format_", ["GIF", "WEBP", "PNG", "TIFF", "HEIF"])
def test_of_several_frames_the_first_is_read_and_noted(format_: str) -> None:
    others = [Image.new("RGB", (96, 64), colour) for colour in (GREEN, BLUE)]
    options = {} if format_ in ("TIFF", "HEIF") else {"duration": 100}
    data = saved(corners(), format_, save_all=True, append_images=others, **options)
    evidence = read_image(data, "x", Limits())
    count = "several" if format_ in ("GIF", "TIFF") else "3"
    assert evidence.notes == (f"first of {count} frames or pages only",)
    assert_corners(shown(evidence))


def test_equal_pixels_give_equal_pictures() -> None:
    first = read_image(saved(corners(), "PNG"), "a", Limits())
    second = read_image(saved(corners(), "BMP", dpi=(300, 300)), "b", Limits())
    assert first.pictures == second.pictures
    assert first.sha256 != second.sha256


# Refusals


def png(head: bytes, pixels: bytes) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def huge(format_: str, width: int, height: int) -> bytes:
    """A few bytes that claim to be an image of that size."""
    small = saved(Image.new("RGB", (64, 64)), format_)
    if format_ == "PNG":
        return png(struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0), zlib.compress(bytes(4096)))
    if format_ == "JPEG":
        at = small.index(b"\xff\xc0") + 5
        return small[:at] + struct.pack(">HH", height, width) + small[at + 4 :]
    if format_ == "GIF":
        return small[:6] + struct.pack("<HH", width, height) + small[10:]
    if format_ == "BMP":
        return small[:18] + struct.pack("<ii", width, height) + small[26:]
    if format_ == "WEBP":
        size = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
        extended = b"VP8X" + struct.pack("<I", 10) + bytes(4) + size
        body = b"WEBP" + extended + small[12:]
        return b"RIFF" + struct.pack("<I", len(body)) + body
    if format_ == "TIFF":
        out = small
        for tag, value in ((256, width), (257, height)):
            at = out.index(struct.pack("<HHI", tag, 4, 1))
            out = out[:at] + struct.pack("<HHII", tag, 4, 1, value) + out[at + 12 :]
        return out
    at = small.index(b"ispe") + 8
    return small[:at] + struct.pack(">II", width, height) + small[at + 8 :]


@pytest.mark.parametrize("format_", FORMATS)
def test_huge_dimensions_are_refused_by_the_header(format_: str) -> None:
    side = 16_000 if format_ == "HEIF" else 60_000
    start = time.process_time()
    with pytest.raises(LimitExceeded, match="max_pixels") as caught:
        read_image(huge(format_, side, side), "x", Limits())
    assert time.process_time() - start < 5
    assert caught.value.actual == side * side


@pytest.mark.parametrize(
    "options", [{"lossless": True}, {"quality": 50}, {"quality": 50, "exif": b"Exif\0\0"}]
)
def test_every_webp_says_its_size_before_it_is_opened(options: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    data = saved(corners(), "WEBP", **options)
    assert read_image(data, "x", Limits(max_pixels=96 * 64)).pictures
    monkeypatch.setattr("jev.extractors.images._open", None)
    with pytest.raises(LimitExceeded, match="6,144 pixels"):
        read_image(data, "x", Limits(max_pixels=96 * 64 - 1))


def test_the_limit_itself_is_allowed() -> None:
    data = saved(corners(96, 64))
    assert read_image(data, "x", Limits(max_pixels=96 * 64)).pictures
    with pytest.raises(LimitExceeded, match="6,144 pixels, which exceeds the limit of 6,143"):
        read_image(data, "x", Limits(max_pixels=96 * 64 - 1))


def test_bytes_are_limited() -> None:
    data = saved(corners())
    assert read_image(data, "x", Limits(max_image_bytes=len(data))).pictures
    with pytest.raises(LimitExceeded, match="max_image_bytes"):
        read_image(data, "x", Limits(max_image_bytes=len(data) - 1))


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("share", [0.2, 0.6, 0.9])
def test_a_truncated_image_is_unreadable(format_: str, share: float) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    data = saved(Image.fromarray(noise), format_)
    with pytest.raises(Unreadable, match="damaged or incomplete"):
        read_image(data[: int(len(data) * share)], "x", Limits())


@pytest.mark.parametrize("format_", FORMATS)
def test_garbage_behind_a_good_start_is_unreadable(format_: str) -> None:
    start = saved(corners(), format_)[:32]
    with pytest.raises(ExtractError):
        read_image(start + random.Random(0).randbytes(200_000), "x", Limits())


@pytest.mark.parametrize("format_", FORMATS)
def test_flipped_bytes_never_end_in_anything_but_a_picture_or_a_refusal(format_: str) -> None:
    data = saved(corners(), format_)
    dice = random.Random(1)
    for _ in range(60):
        broken = bytearray(data)
        for _ in range(dice.randrange(1, 8)):
            broken[dice.randrange(16, len(broken))] = dice.randrange(256)
        try:
            evidence = read_image(bytes(broken), "x", Limits())
        except ExtractError:
            continue
        assert shown(evidence).mode in ("RGB", "RGBA")


def test_what_is_no_image_is_refused() -> None:
    with pytest.raises(UnsupportedType, match="kind text"):
        read_image(b"hello", "x.txt", Limits())
    with pytest.raises(Unreadable, match="not a PNG"):
        read_image(b"hello", "x.png", Limits())


def test_many_frames_are_not_walked_through() -> None:
    frame = b"\x2c" + struct.pack("<HHHH", 0, 0, 1, 1) + b"\0" + b"\x02\x02\x44\x01\0"
    head = b"GIF89a" + struct.pack("<HH", 1, 1) + b"\x80\0\0" + bytes(6)
    data = head + frame * 600_000 + b";"
    start = time.process_time()
    evidence = read_image(data, "x", Limits())
    assert time.process_time() - start < 5
    assert evidence.notes == ("first of several frames or pages only",)
