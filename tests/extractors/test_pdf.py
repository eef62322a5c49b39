"""A PDF gives its text layer in reading order; pages without one become pictures, and notes say which."""

from __future__ import annotations

import io
from collections.abc import Callable

import pymupdf
import pytest
from PIL import Image

from jev.extractors import Evidence, LimitExceeded, Limits, Unreadable
from jev.extractors.pdf import read_pdf
from jev.extractors.pdf_layout import Piece, lines_of

LIMITS = Limits()
PROSE = "The tenant shall keep the premises in good repair and return them clean. "


def read(document: pymupdf.Document | bytes, limits: Limits = LIMITS, slots: int = 8) -> Evidence:
    data = document if isinstance(document, bytes) else document.tobytes(deflate=True)
    return read_pdf(data, "a.pdf", limits, picture_slots=slots)


def pages(*draw: Callable[[pymupdf.Page], object]) -> pymupdf.Document:
    document = pymupdf.open()
    for one in draw:
        one(document.new_page())
    return document


def text(
    content: str = "words", x: float = 72, y: float = 72, rotate: int = 0
) -> Callable[[pymupdf.Page], object]:
    return lambda page: page.insert_text((x, y), content, rotate=rotate)


def picture(width: int = 60, height: int = 80) -> bytes:
    out = io.BytesIO()
    image = Image.new("RGB", (width, height), "white")
    image.paste((200, 0, 0), (0, 0, width // 2, height // 2))
    image.save(out, "PNG")
    return out.getvalue()


def scan(page: pymupdf.Page) -> None:
    page.insert_image(page.rect, stream=picture())


def test_text_comes_from_top_to_bottom_whatever_the_order_of_the_file() -> None:
    def draw(page: pymupdf.Page) -> None:
        for y in (300, 100, 200):
            page.insert_text((72, y), f"at {y}")

    evidence = read(pages(draw))
    assert evidence.kind == "pdf"
    assert evidence.text == "at 100\nat 200\nat 300"
    assert evidence.notes == ("Page 1 of 1: text layer only",)
    assert evidence.pictures == ()


def test_pages_are_numbered_when_there_are_several() -> None:
    assert read(pages(text("one"), text("two"))).text == "Page 1:\none\nPage 2:\ntwo"


def test_columns_of_prose_are_read_one_after_the_other() -> None:
    def draw(page: pymupdf.Page) -> None:
        page.insert_textbox((310, 120, 540, 400), PROSE.replace("tenant", "right") * 4)
        page.insert_textbox((60, 120, 290, 400), PROSE.replace("tenant", "left") * 4)
        page.insert_text(
            (60, 100), "A heading over both of the columns, as wide as the page is, more or less"
        )
        page.insert_text((60, 500), "A line below both of the columns, as wide as the page is, more or less")

    lines = read(pages(draw)).text
    joined = lines.replace("\n", " ")
    assert joined.startswith("A heading over both")
    assert joined.endswith("more or less")
    assert joined.rindex("left") < joined.index("right") < joined.index("A line below")
    assert PROSE.replace("tenant", "left").strip() in joined
    assert "\t" not in lines


def test_labels_and_values_side_by_side_are_rows() -> None:
    def draw(page: pymupdf.Page) -> None:
        for x, words in ((72, ("Name:", "Total:", "Due:")), (200, ("Ann", "42 EUR", "May"))):
            for at, word in enumerate(words):
                page.insert_text((x, 100 + 20 * at), word)

    assert read(pages(draw)).text == "Name:\tAnn\nTotal:\t42 EUR\nDue:\tMay"


def test_ruled_tables_are_rows_with_tabs() -> None:
    def draw(page: pymupdf.Page) -> None:
        page.insert_text((72, 72), "before")
        for x in (72, 172, 272, 372):
            page.draw_line((x, 100), (x, 220))
        for y in (100, 140, 180, 220):
            page.draw_line((72, y), (372, y))
        for row in range(3):
            for column in range(3):
                if (row, column) != (1, 1):
                    page.insert_text((76 + 100 * column, 114 + 40 * row), f"r{row}c{column}\nmore")
        page.insert_text((72, 260), "after")

    assert read(pages(draw)).text.split("\n") == [
        "before",
        "r0c0 more\tr0c1 more\tr0c2 more",
        "r1c0 more\t\tr1c2 more",
        "r2c0 more\tr2c1 more\tr2c2 more",
        "after",
    ]


def test_a_frame_around_a_page_is_no_table() -> None:
    def draw(page: pymupdf.Page) -> None:
        page.draw_rect((50, 50, 550, 700))
        page.insert_text((72, 100), "inside")
        page.insert_text((72, 130), "the frame")

    assert read(pages(draw)).text == "inside\nthe frame"


@pytest.mark.parametrize("rotation", [0, 90, 180, 270])
def test_turned_pages_read_like_upright_ones(rotation: int) -> None:
    def draw(page: pymupdf.Page) -> None:
        page.insert_text((72, 100), "first")
        page.insert_text((72, 120), "second")
        page.set_rotation(rotation)

    assert read(pages(draw)).text == "first\nsecond"


def test_text_up_the_page_reads_like_upright_text() -> None:
    def draw(page: pymupdf.Page) -> None:
        for at in (2, 0, 1):
            page.insert_text((200 + 20 * at, 500), f"line {at}", rotate=90)

    assert read(pages(draw)).text == "line 0\nline 1\nline 2"


def test_form_fields_and_ticks_are_text() -> None:
    def draw(page: pymupdf.Page) -> None:
        field = pymupdf.Widget()
        field.field_name, field.field_type = "name", pymupdf.PDF_WIDGET_TYPE_TEXT
        field.field_value, field.rect = "Ann Smith", pymupdf.Rect(72, 90, 300, 110)
        page.add_widget(field)
        for at, ticked in enumerate([True, False]):
            box = pymupdf.Widget()
            box.field_name, box.field_type = f"box{at}", pymupdf.PDF_WIDGET_TYPE_CHECKBOX
            box.field_value, box.rect = ticked, pymupdf.Rect(72, 130 + 30 * at, 90, 148 + 30 * at)
            page.add_widget(box)
            page.insert_text((100, 145 + 30 * at), f"choice {at}")

    lines = read(pages(draw)).text.split("\n")
    assert lines[0] == "Ann Smith"
    assert lines[1].split() == ["[x]", "choice", "0"]
    assert lines[2] == "choice 1"


def test_a_scan_becomes_a_picture_of_the_page() -> None:
    evidence = read(pages(scan))
    assert evidence.text == ""
    (shown,) = evidence.pictures
    image = Image.open(io.BytesIO(shown.png))
    assert (image.format, image.mode, image.size) == ("PNG", "RGB", (shown.width, shown.height))
    assert image.size == (1653, 2339)
    assert image.getpixel((100, 100)) == (200, 0, 0)
    assert image.getpixel((1500, 2200)) == (255, 255, 255)
    assert shown.place == "page 1"
    assert evidence.notes == ("Page 1 of 1: shown as pictures, for want of a text layer",)


def test_a_turned_scan_is_shown_upright() -> None:
    def draw(page: pymupdf.Page) -> None:
        scan(page)
        page.set_rotation(90)

    (shown,) = read(pages(draw)).pictures
    assert (shown.width, shown.height) == (2339, 1653)
    assert Image.open(io.BytesIO(shown.png)).getpixel((2200, 100)) == (200, 0, 0)


def test_mixed_files_give_both_and_say_which() -> None:
    def figure(page: pymupdf.Page) -> None:
        page.insert_image((100, 100, 160, 180), stream=picture())
        page.insert_text((72, 300), "Text next to a figure")

    def stamped(page: pymupdf.Page) -> None:
        scan(page)
        page.insert_text((400, 800), "Copy 0017")

    def outlines(page: pymupdf.Page) -> None:
        page.draw_circle((200, 200), 50)

    evidence = read(pages(text("typed"), scan, lambda page: None, figure, stamped, outlines))
    assert evidence.text == "Page 1:\ntyped\nPage 4:\nText next to a figure\nPage 5:\nCopy 0017"
    assert [one.place for one in evidence.pictures] == ["page 2", "page 5", "page 6"]
    assert evidence.notes == (
        "Pages 1, 4-5 of 6: text layer only",
        "Pages 2, 5-6 of 6: shown as pictures, for want of a text layer",
        "Page 3 of 6: blank",
        "Page 4: pictures on them were not read",
    )


def test_a_scan_with_a_full_text_layer_is_text() -> None:
    def draw(page: pymupdf.Page) -> None:
        scan(page)
        page.insert_textbox((72, 72, 500, 700), PROSE * 5, render_mode=3)

    evidence = read(pages(draw))
    assert PROSE.split()[3] in evidence.text
    assert evidence.pictures == ()


def test_a_white_page_is_blank_not_a_picture() -> None:
    def draw(page: pymupdf.Page) -> None:
        page.draw_rect(page.rect, color=(1, 1, 1), fill=(1, 1, 1))

    evidence = read(pages(draw, text()))
    assert evidence.pictures == ()
    assert "Page 1 of 2: blank" in evidence.notes


@pytest.mark.parametrize(
    "draw", [lambda page: None, lambda page: page.draw_rect(page.rect, fill=(1, 1, 1), color=(1, 1, 1))]
)
def test_a_file_of_blank_pages_is_refused(draw: Callable[[pymupdf.Page], object]) -> None:
    with pytest.raises(Unreadable, match="has no text"):
        read(pages(draw))


def test_pictures_over_the_slots_are_refused() -> None:
    document = pages(scan, scan, scan)
    assert len(read(document, slots=3).pictures) == 3
    with pytest.raises(LimitExceeded, match="9 pictures, which exceeds the limit of 8"):
        read(document, slots=2)


def test_pages_over_the_limit_are_refused() -> None:
    document = pages(*[text()] * 5)
    assert read(document, Limits(max_pdf_pages=5)).text
    with pytest.raises(LimitExceeded, match="5 pages") as error:
        read(document, Limits(max_pdf_pages=4))
    assert (error.value.limit, error.value.actual) == ("max_pdf_pages", 5)


def test_text_over_the_limit_is_refused() -> None:
    document = pages(*[text("x" * 80 + "\n" + "y" * 80)] * 3)
    with pytest.raises(LimitExceeded) as error:
        read(document, Limits(max_text_chars=400))
    assert error.value.limit == "max_text_chars"


def test_a_picture_of_too_many_pixels_is_refused_before_it_is_decoded() -> None:
    document = pages(scan)
    xref = document[0].get_images()[0][0]
    document.xref_set_key(xref, "Width", "60000")
    document.xref_set_key(xref, "Height", "60000")
    with pytest.raises(LimitExceeded, match="3,600,000,000 pixels in a picture on page 1"):
        read(document)


@pytest.mark.parametrize("size", [(14_400, 14_400), (14_400, 3), (3, 14_400), (1, 1)])
def test_odd_page_sizes_are_rendered_within_bounds(size: tuple[float, float]) -> None:
    document = pymupdf.open()
    page = document.new_page(width=size[0], height=size[1])
    page.draw_rect((0, 0, size[0] / 2, size[1] / 2), fill=(1, 0, 0))
    for shown in read(document).pictures:
        assert 1 <= max(shown.width, shown.height) <= 2400


def test_passwords() -> None:
    data = pages(text()).tobytes(encryption=pymupdf.PDF_ENCRYPT_AES_256, user_pw="a", owner_pw="b")
    with pytest.raises(Unreadable, match="protected by a password"):
        read(data)
    # Whoever may open a file without a password may read it.
    assert read(pages(text()).tobytes(encryption=pymupdf.PDF_ENCRYPT_AES_256, owner_pw="b")).text == "words"


def test_embedded_files_scripts_forms_and_comments_are_noted_not_used() -> None:
    document = pages(text())
    document.embfile_add("secret.txt", b"embedded words")
    catalog = document.pdf_catalog()
    document.xref_set_key(catalog, "OpenAction", "<</S/JavaScript/JS(app.alert\\(1\\))>>")
    document[0].add_text_annot((100, 100), "a comment")
    evidence = read(document)
    assert evidence.text == "words"
    assert evidence.notes[1:] == (
        "JavaScript in it was not run",
        "Embedded files were not read",
        "Comments were not read: 1",
    )


def test_the_size_of_an_embedded_file_is_no_number_of_objects() -> None:
    document = pages(text())
    document.embfile_add("big.txt", b"x" * 300_000)
    data = document.tobytes()
    assert b"/Size 300000" in data
    assert read(data).text == "words"


def test_a_file_that_is_cut_short_is_refused() -> None:
    data = pages(*[text(PROSE)] * 5).tobytes()
    for share in (0.2, 0.5, 0.9):
        with pytest.raises(Unreadable):
            read(data[: int(len(data) * share)])


def test_a_file_with_a_broken_index_is_repaired_and_says_so() -> None:
    data = pages(text()).tobytes()
    at = data.index(b"startxref")
    evidence = read(data[:at] + b"startxref\n7\n%%EOF\n")
    assert evidence.text == "words"
    assert "The file is damaged and was repaired: some content may be missing" in evidence.notes


def test_damage_inside_a_page_is_noted() -> None:
    document = pages(
        lambda page: [page.insert_text((72, 40 + 12 * at), f"line {at} of many") for at in range(60)]
    )
    data = bytearray(document.tobytes(deflate=True))
    start, end = data.index(b"stream") + 8, data.index(b"endstream")
    for at in range((start + end) // 2, (start + end) // 2 + 30):
        data[at] ^= 0x5A
    evidence = read(bytes(data))
    assert "Page 1: damaged, some content may be missing" in evidence.notes


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    data = pages(text()).tobytes()
    read(data)
    with pytest.raises(Unreadable):
        read(b"%PDF-1.7\nnothing of the kind")
    assert capfd.readouterr() == ("", "")


def test_writing_from_right_to_left_is_read_from_the_right() -> None:
    def piece(left: float, right: float, top: float, text: str, block: int) -> Piece:
        return Piece((left, top, right, top + 10), text, block)

    line = [
        piece(0, 90, 0, "\u05de\u05d4", 0),
        piece(94, 100, 0, "123", 0),
        piece(104, 200, 0, "\u05e9\u05dc", 0),
    ]
    assert lines_of(line) == ["\u05e9\u05dc 123 \u05de\u05d4"]
    columns = [
        piece(left, left + 200, 12.0 * row, f"{letter}{row}", int(left))
        for left, letter in ((0, "\u05d1"), (300, "\u05d0"))
        for row in range(3)
    ]
    assert [text[0] for text in lines_of(columns)] == ["\u05d0"] * 3 + ["\u05d1"] * 3
