"""The text in pictures comes out under their places, in the order in which one reads it."""

import io
import random
import sys
from dataclasses import replace

import pytest
from PIL import Image, ImageDraw, ImageFont

from jev.extractors import Evidence, LimitExceeded, Limits, MissingReader, Picture, ServiceUnavailable
from jev.extractors import ocr as ocr_module
from jev.extractors.ocr import Box, ocr_pictures, reading_order

Lines = list[tuple[int, int, str]]


def picture(
    lines: Lines, place: str | None = None, size: tuple[int, int] = (640, 640), mode: str = "RGB"
) -> Picture:
    """Black text at the given places, on white, or on nothing where the mode has transparency."""
    image = Image.new(mode, size, (0, 0, 0, 0) if mode == "RGBA" else "white")
    for x, y, text in lines:
        ImageDraw.Draw(image).text((x, y), text, fill="black", font=ImageFont.load_default(30))
    out = io.BytesIO()
    image.save(out, "PNG")
    return Picture.of(out.getvalue(), *size, place)


def evidence(*pictures: Picture, text: str = "", notes: tuple[str, ...] = ()) -> Evidence:
    return Evidence("scan.pdf", "pdf", text, pictures, notes, "0" * 64)


INVOICE: Lines = [
    (40, 60, "Invoice number 4711"),
    (40, 200, "Amount"),
    (400, 200, "120.50 EUR"),
    (40, 260, "Tax"),
    (400, 260, "22.90 EUR"),
    (40, 320, "Total"),
    (400, 320, "143.40 EUR"),
]
INVOICE_TEXT = "Invoice number 4711\nAmount\t120.50 EUR\nTax\t22.90 EUR\nTotal\t143.40 EUR"


def test_words_and_amounts_of_a_page_come_out_by_line() -> None:
    page = evidence(picture(INVOICE, "page 3"), notes=("pages 3 of 3",))
    read = ocr_pictures(page, Limits())
    assert read.text == f"page 3:\n{INVOICE_TEXT}"
    assert read.notes == ("pages 3 of 3", "text in 1 picture read by OCR")
    assert replace(read, text="", notes=page.notes) == page


def test_each_picture_stands_under_its_place_below_the_text() -> None:
    one, none, two = (
        picture([(40, 100, "Gate is open")], "page 1"),
        picture([], "page 2"),
        picture([(40, 100, "Gate is closed")], "page 4"),
    )
    read = ocr_pictures(evidence(one, none, two, text="Typed text."), Limits())
    assert read.text == "Typed text.\n\npage 1:\nGate is open\n\npage 4:\nGate is closed"
    assert read.notes == ("text in 2 pictures read by OCR, no text found in 1",)


def test_a_plain_image_has_no_place_and_transparent_is_white() -> None:
    read = ocr_pictures(evidence(picture([(40, 100, "No smoking")], mode="RGBA")), Limits())
    assert read.text == "No smoking"


def test_words_keep_their_spaces() -> None:
    lines = ["Your order has been shipped", "NO SMOKING IN THIS AREA", "Meeting on Monday at 9 am"]
    page = picture([(40, 100 + 80 * index, line) for index, line in enumerate(lines)])
    assert ocr_pictures(evidence(page), Limits()).text.splitlines() == lines


def test_a_picture_without_text_says_so() -> None:
    read = ocr_pictures(evidence(picture([])), Limits())
    assert (read.text, read.notes) == ("", ("text in 0 pictures read by OCR, no text found in 1",))


def test_evidence_without_pictures_is_left_alone() -> None:
    page = evidence(text="Typed text.")
    assert ocr_pictures(page, Limits()) is page


def test_the_limit_counts_all_text() -> None:
    page = evidence(picture([(40, 100, "No smoking")]), text="x" * 100)
    assert len(ocr_pictures(page, Limits(max_text_chars=112)).text) == 112
    with pytest.raises(LimitExceeded, match=r"112 characters.*max_text_chars"):
        ocr_pictures(page, Limits(max_text_chars=111))


def test_tiny_and_slender_pictures_are_read_as_nothing_much() -> None:
    for size in ((1, 1), (1, 900)):
        noise = Image.frombytes("RGB", size, random.Random(0).randbytes(3 * size[0] * size[1]))
        out = io.BytesIO()
        noise.save(out, "PNG")
        assert len(ocr_pictures(evidence(Picture.of(out.getvalue(), *size)), Limits()).text) < 20


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rapidocr_onnxruntime", None)
    ocr_module._engine.cache_clear()
    with pytest.raises(MissingReader, match=r"pip install 'jev-server\[ocr\]'"):
        ocr_pictures(evidence(picture([])), Limits())


def test_a_reader_that_fails_is_not_the_files_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> None:
        raise RuntimeError("private text of the picture")

    monkeypatch.setattr(ocr_module, "_engine", lambda: broken)
    with pytest.raises(ServiceUnavailable, match="OCR reader failed") as caught:
        ocr_pictures(evidence(picture([(40, 100, "No smoking")])), Limits())
    assert "private" not in str(caught.value)


def test_a_picture_of_one_colour_is_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    def searched(_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(ocr_module, "_engine", lambda: searched)
    read = ocr_pictures(evidence(picture([])), Limits())
    assert (read.text, read.notes) == ("", ("text in 0 pictures read by OCR, no text found in 1",))


# Reading order


def column(left: float, top: float, width: float, *texts: str) -> list[Box]:
    return [
        Box(left, top + 30 * index, left + width, top + 30 * index + 20, text)
        for index, text in enumerate(texts)
    ]


def test_columns_of_prose_are_read_one_by_one_below_their_heading() -> None:
    heading = Box(200, 0, 800, 30, "Heading")
    left = column(0, 60, 450, "l1", "l2", "l3", "l4")
    right = column(500, 55, 450, "r1", "r2", "r3")
    boxes = [heading, *left, *right]
    for seed in range(5):
        random.Random(seed).shuffle(boxes)
        assert reading_order(boxes) == "Heading\nl1\nl2\nl3\nl4\nr1\nr2\nr3"


def test_three_columns_are_read_from_left_to_right() -> None:
    boxes = [
        box for at, name in ((600, "c"), (0, "a"), (300, "b")) for box in column(at, 0, 250, *[name] * 3)
    ]
    assert reading_order(boxes) == "\n".join("aaabbbccc")


def test_a_table_below_columns_is_read_by_rows() -> None:
    prose = [*column(0, 0, 450, "l1", "l2", "l3"), *column(500, 0, 450, "r1", "r2", "r3")]
    table = [*column(0, 200, 60, "Item", "Nail", "Screw"), *column(500, 200, 60, "Price", "1", "2")]
    assert reading_order(prose + table) == "l1\nl2\nl3\nr1\nr2\nr3\nItem\tPrice\nNail\t1\nScrew\t2"


def test_labels_and_values_stay_on_their_lines() -> None:
    labels = column(0, 0, 80, "Name", "Street", "City")
    values = column(300, 4, 300, "Ada Lovelace", "12 Saint James Square", "London")
    assert reading_order(labels + values) == "Name\tAda Lovelace\nStreet\t12 Saint James Square\nCity\tLondon"


def test_words_close_to_each_other_are_one_text() -> None:
    line = [Box(60, 1, 100, 21, "world"), Box(0, 0, 50, 20, "hello")]
    assert reading_order(line) == "hello world"


def test_a_slanted_line_stays_a_line() -> None:
    line = [Box(100 * index, 4 * index, 100 * index + 90, 4 * index + 20, f"w{index}") for index in range(3)]
    assert reading_order(line) == "w0 w1 w2"


def test_nothing_and_very_much_are_read() -> None:
    assert reading_order([]) == ""
    many = column(0, 0, 60, *map(str, range(2000)))
    assert reading_order(many) == "\n".join(map(str, range(2000)))
