"""Word, Excel and PowerPoint files give their text in reading order, and say what of them was not read."""

from __future__ import annotations

import datetime as dt
import io
import zipfile
from collections.abc import Callable

import docx
import openpyxl
import pptx
import pytest
from docx.oxml import parse_xml
from PIL import Image
from pptx.util import Emu

from jev.extractors import LimitExceeded, Limits, Unreadable
from jev.extractors.docx import read_docx
from jev.extractors.pptx import read_pptx
from jev.extractors.xlsx import read_xlsx

LIMITS = Limits()
W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
MC = 'xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006"'
REL = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"


def saved(document: object) -> bytes:
    out = io.BytesIO()
    document.save(out)  # type: ignore[attr-defined]
    return out.getvalue()


def edited(data: bytes, name: str, edit: Callable[[str], str]) -> bytes:
    """Return the archive with one part of it rewritten (or made)."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
        for info in old.infolist():
            content = old.read(info)
            new.writestr(info.filename, edit(content.decode()) if info.filename == name else content)
        if name not in old.namelist():
            new.writestr(name, edit(""))
    return out.getvalue()


def word(*body: str) -> bytes:
    """A document with the given XML as its body."""
    document = docx.Document()
    for xml in body:
        element = parse_xml(xml.replace(">", f" {W} {MC}>", 1))
        document.element.body.insert(len(document.element.body) - 1, element)
    return saved(document)


def p(*runs: str) -> str:
    return (
        "<w:p>" + "".join(r if r.startswith("<") else f"<w:r><w:t>{r}</w:t></w:r>" for r in runs) + "</w:p>"
    )


def text_of(*body: str) -> str:
    return read_docx(word(*body), "a.docx", LIMITS).text


def test_word_paragraphs_tables_headers_and_footers_in_order() -> None:
    document = docx.Document()
    document.add_heading("Contract", 0)
    document.add_paragraph("First\tline\nsecond line")
    table = document.add_table(2, 2)
    table.cell(0, 0).text = "Item"
    table.cell(0, 1).text = "Price\nin EUR"
    table.cell(1, 0).text = "Tea"
    table.cell(1, 1).text = "3"
    document.add_paragraph("After the table")
    document.sections[0].header.paragraphs[0].text = "Confidential"
    document.sections[0].footer.paragraphs[0].text = "Page\t1"
    evidence = read_docx(saved(document), "a.docx", LIMITS)
    assert evidence.kind == "document"
    assert evidence.text.split("\n") == [
        "Header: Confidential",
        "Contract",
        "First\tline",
        "second line",
        "Item\tPrice in EUR",
        "Tea\t3",
        "After the table",
        "Footer: Page 1",
    ]
    assert evidence.notes == ("Text only: images, charts, comments and formatting were not read",)
    assert evidence.pictures == ()


def test_word_tracked_changes_read_as_if_accepted() -> None:
    xml = p(
        "Pay ",
        "<w:del><w:r><w:delText>100</w:delText></w:r></w:del>",
        "<w:ins><w:r><w:t>200</w:t></w:r></w:ins>",
    )
    assert text_of(xml) == "Pay 200"
    moved = "<w:moveFrom><w:r><w:t>gone</w:t></w:r></w:moveFrom>"
    assert text_of(p(moved, "<w:moveTo><w:r><w:t>here</w:t></w:r></w:moveTo>")) == "here"


def test_word_content_controls_links_fields_and_formulas_are_text() -> None:
    assert text_of(f"<w:sdt><w:sdtContent>{p('In a control')}</w:sdtContent></w:sdt>") == "In a control"
    assert text_of(p("<w:sdt><w:sdtContent><w:r><w:t>inline</w:t></w:r></w:sdtContent></w:sdt>")) == "inline"
    assert text_of(p("<w:hyperlink><w:r><w:t>a link</w:t></w:r></w:hyperlink>")) == "a link"
    field = "<w:r><w:instrText>PAGE</w:instrText></w:r><w:r><w:t>7</w:t></w:r>"
    assert text_of(p("Page ", field)) == "Page 7"


def test_word_breaks_and_hyphens() -> None:
    runs = "<w:r><w:t>a</w:t><w:br/><w:t>b</w:t><w:tab/><w:t>c</w:t><w:noBreakHyphen/><w:t>d</w:t></w:r>"
    assert text_of(p(runs)) == "a\nb\tc-d"


def test_word_text_boxes_are_read_once_after_their_paragraph() -> None:
    box = f"<w:txbxContent>{p('In the box')}</w:txbxContent>"
    both = f"<mc:Choice Requires='wps'>{box}</mc:Choice><mc:Fallback>{box}</mc:Fallback>"
    shape = f"<w:r><mc:AlternateContent>{both}</mc:AlternateContent></w:r>"
    assert text_of(p("Anchor", shape)) == "Anchor\nIn the box"


def test_word_hidden_text_is_left_out_and_noted() -> None:
    hidden = "<w:r><w:rPr><w:vanish/></w:rPr><w:t>secret</w:t></w:r>"
    shown = '<w:r><w:rPr><w:vanish w:val="0"/></w:rPr><w:t>shown</w:t></w:r>'
    evidence = read_docx(word(p(hidden, shown)), "a.docx", LIMITS)
    assert evidence.text == "shown"
    assert "Passages of hidden text were not read: 1" in evidence.notes


def test_word_footnotes_and_endnotes_come_with_their_numbers() -> None:
    data = word(
        p(
            "One",
            '<w:r><w:footnoteReference w:id="2"/></w:r>',
            " two",
            '<w:r><w:endnoteReference w:id="5"/></w:r>',
        )
    )
    data = edited(
        data,
        "word/footnotes.xml",
        lambda _: (
            f'<w:footnotes {W}><w:footnote w:type="separator" w:id="-1">{p("---")}</w:footnote>'
            f'<w:footnote w:id="2">{p("Only in ", "May")}</w:footnote></w:footnotes>'
        ),
    )
    data = edited(
        data,
        "word/endnotes.xml",
        lambda _: f'<w:endnotes {W}><w:endnote w:id="5">{p("Source")}</w:endnote></w:endnotes>',
    )
    relations = "".join(
        f'<Relationship Id="n{kind}" Type="{REL}/{kind}" Target="{kind}.xml"/>'
        for kind in ("footnotes", "endnotes")
    )
    data = edited(
        data,
        "word/_rels/document.xml.rels",
        lambda xml: xml.replace("</Relationships>", f"{relations}</Relationships>"),
    )
    text = read_docx(data, "a.docx", LIMITS).text
    assert text.split("\n") == [
        "One[footnote 1] two[endnote 1]",
        "Footnote 1: Only in May",
        "Endnote 1: Source",
    ]


def test_word_nested_tables_stay_in_their_cell() -> None:
    document = docx.Document()
    table = document.add_table(1, 2)
    table.cell(0, 0).text = "left"
    inner = table.cell(0, 1).add_table(1, 2)
    inner.cell(0, 0).text = "a"
    inner.cell(0, 1).text = "b"
    assert read_docx(saved(document), "a.docx", LIMITS).text == "left\ta b"


def test_word_links_are_allowed_and_noted() -> None:
    document = docx.Document()
    document.add_paragraph("See the site")
    document.part.relate_to("https://example.com/x", f"{REL}/hyperlink", is_external=True)
    notes = read_docx(saved(document), "a.docx", LIMITS).notes
    assert "Links were not followed: 1" in notes


def test_word_pictures_larger_than_the_expansion_limit_do_not_matter() -> None:
    noise = io.BytesIO()
    Image.effect_noise((1000, 1000), 80).save(noise, "PNG")
    document = docx.Document()
    document.add_paragraph("With a picture")
    document.add_picture(io.BytesIO(noise.getvalue()))
    data = saved(document)
    limits = Limits(max_expanded_bytes=900_000)
    assert len(noise.getvalue()) > limits.max_expanded_bytes
    assert read_docx(data, "a.docx", limits).text == "With a picture"


def test_word_control_characters_never_reach_the_text() -> None:
    document = docx.Document()
    document.add_paragraph("a\nb\x85c")
    evidence = read_docx(saved(document), "a.docx", LIMITS)
    assert evidence.text == "a\nbc"
    assert "Control characters were left out: 1" in evidence.notes


@pytest.mark.parametrize("paragraphs", [0, 3])
def test_word_documents_without_text_are_refused(paragraphs: int) -> None:
    document = docx.Document()
    for _ in range(paragraphs):
        document.add_paragraph(" ")
    with pytest.raises(Unreadable, match="has no text"):
        read_docx(saved(document), "a.docx", LIMITS)


def test_word_text_over_the_limit_is_refused_with_its_length() -> None:
    document = docx.Document()
    for _ in range(400):
        document.add_paragraph("x" * 99)
    with pytest.raises(LimitExceeded) as error:
        read_docx(saved(document), "a.docx", LIMITS)
    assert (error.value.limit, error.value.actual, error.value.at_least) == ("max_text_chars", 39_999, False)
    for _ in range(4000):
        document.add_paragraph("x" * 99)
    with pytest.raises(LimitExceeded) as error:
        read_docx(saved(document), "a.docx", LIMITS)
    assert error.value.at_least


def test_excel_rows_hold_places_and_values() -> None:
    book = openpyxl.Workbook()
    sheet = book.active
    sheet.title = "Q1 Budget"
    sheet["A1"], sheet["B1"], sheet["D1"] = "Item", "Cost", "Paid"
    sheet["A2"], sheet["B2"], sheet["D2"] = "Tea\nand\tcake", 1.1 + 2.2, True
    sheet["A4"], sheet["B4"], sheet["C4"] = 12, 0.5, False
    sheet["A5"] = "  "
    sheet["XFD1048576"] = "far"
    book.create_sheet("Empty")
    second = book.create_sheet("Second")
    second["B2"] = "end"
    evidence = read_xlsx(saved(book), "a.xlsx", LIMITS)
    assert evidence.text.split("\n") == [
        "Sheet Q1 Budget:",
        "A1=Item\tB1=Cost\tD1=Paid",
        "A2=Tea and cake\tB2=3.3\tD2=true",
        "A4=12\tB4=0.5\tC4=false",
        "A5=",
        "XFD1048576=far",
        "Sheet Empty:",
        "Sheet Second:",
        "B2=end",
    ]
    assert evidence.notes == (
        "Cell values as last saved: charts, images, comments and formatting were not read",
    )


def test_excel_dates_times_and_durations() -> None:
    book = openpyxl.Workbook()
    sheet = book.active
    sheet.append([dt.date(2024, 5, 1), dt.datetime(2024, 5, 1, 13, 30), dt.time(8, 5)])
    sheet.append([dt.timedelta(hours=30, minutes=2)])
    lines = read_xlsx(saved(book), "a.xlsx", LIMITS).text.split("\n")
    assert lines[1:] == ["A1=2024-05-01\tB1=2024-05-01 13:30:00\tC1=08:05:00", "A2=30:02:00"]


def test_excel_formulas_give_stored_values_and_uncalculated_ones_are_named() -> None:
    book = openpyxl.Workbook()
    sheet = book.active
    sheet["A1"], sheet["A2"], sheet["A3"], sheet["A4"] = 2, "=A1*3", "=A1*4", "=A1/0"
    data = edited(
        saved(book),
        "xl/worksheets/sheet1.xml",
        lambda xml: (
            xml.replace("<f>A1*3</f><v></v>", "<f>A1*3</f><v>6</v>")
            .replace("<f>A1*3</f><v />", "<f>A1*3</f><v>6</v>")
            .replace('r="A4"', 'r="A4" t="e"')
            .replace("<f>A1/0</f><v></v>", "<f>A1/0</f><v>#DIV/0!</v>")
            .replace("<f>A1/0</f><v />", "<f>A1/0</f><v>#DIV/0!</v>")
        ),
    )
    evidence = read_xlsx(data, "a.xlsx", LIMITS)
    assert evidence.text == "Sheet Sheet:\nA1=2\nA2=6\nA4=#DIV/0!"
    assert "Formulas without a stored value were not calculated: 1 (Sheet!A3)" in evidence.notes


def test_excel_names_only_some_of_many_uncalculated_formulas() -> None:
    book = openpyxl.Workbook()
    book.active["A1"] = 1
    for row in range(2, 22):
        book.active[f"A{row}"] = "=A1"
    note = read_xlsx(saved(book), "a.xlsx", LIMITS).notes[-1]
    assert note.startswith("Formulas without a stored value were not calculated: 20 (Sheet!A2, ")
    assert note.endswith("Sheet!A9, ...)")


def test_excel_hidden_sheets_are_read_and_noted() -> None:
    book = openpyxl.Workbook()
    book.active["A1"] = 1
    hidden = book.create_sheet("Hidden")
    hidden["A1"] = "secret"
    hidden.sheet_state = "hidden"
    evidence = read_xlsx(saved(book), "a.xlsx", LIMITS)
    assert "A1=secret" in evidence.text
    assert "Hidden sheets were read too: 1" in evidence.notes


def test_excel_chart_sheets_are_noted() -> None:
    book = openpyxl.Workbook()
    book.active["A1"] = 1
    book.create_chartsheet("Chart")
    assert "Chart sheets were not read: 1" in read_xlsx(saved(book), "a.xlsx", LIMITS).notes


def test_excel_needs_nothing_but_the_rows_of_a_sheet_to_be_sound() -> None:
    book = openpyxl.Workbook()
    book.active["A1"] = "kept"
    broken = '<mergeCells><mergeCell ref="no place"/></mergeCells><hyperlinks><hyperlink x="y"/></hyperlinks>'
    data = edited(
        saved(book),
        "xl/worksheets/sheet1.xml",
        lambda xml: xml.replace("</sheetData>", f"</sheetData>{broken}"),
    )
    assert read_xlsx(data, "a.xlsx", LIMITS).text == "Sheet Sheet:\nA1=kept"


def test_excel_workbooks_without_values_are_refused() -> None:
    with pytest.raises(Unreadable, match="every sheet of the workbook is empty"):
        read_xlsx(saved(openpyxl.Workbook()), "a.xlsx", LIMITS)


def test_excel_text_over_the_limit_is_refused() -> None:
    book = openpyxl.Workbook()
    for _ in range(1000):
        book.active.append(["x" * 50])
    with pytest.raises(LimitExceeded) as error:
        read_xlsx(saved(book), "a.xlsx", LIMITS)
    assert error.value.limit == "max_text_chars"


def test_powerpoint_slides_in_order_with_notes_tables_and_groups() -> None:
    deck = pptx.Presentation()
    first = deck.slides.add_slide(deck.slide_layouts[0])
    first.shapes.title.text = "Plan"
    first.placeholders[1].text = "for\x0b2026"
    first.notes_slide.notes_text_frame.text = "Speak slowly"
    second = deck.slides.add_slide(deck.slide_layouts[5])
    second.shapes.title.text = "Numbers"
    table = second.shapes.add_table(2, 2, Emu(0), Emu(0), Emu(100), Emu(100)).table
    for at, text in enumerate(["a", "b\nc", "d", "e"]):
        table.cell(at // 2, at % 2).text = text
    group = second.shapes.add_group_shape()
    group.shapes.add_textbox(Emu(0), Emu(0), Emu(9), Emu(9)).text_frame.text = "grouped"
    third = deck.slides.add_slide(deck.slide_layouts[6])
    third.element.set("show", "0")
    third.shapes.add_textbox(Emu(0), Emu(0), Emu(9), Emu(9)).text_frame.text = "hidden slide"
    # The order on screen is the list's, not that of the parts.
    slides = deck.slides._sldIdLst
    slides.insert(0, slides[2])
    evidence = read_pptx(saved(deck), "a.pptx", LIMITS)
    assert [line for line in evidence.text.split("\n") if line] == [
        "Slide 1:",
        "hidden slide",
        "Slide 2:",
        "Plan",
        "for",
        "2026",
        "Notes:",
        "Speak slowly",
        "Slide 3:",
        "Numbers",
        "a\tb c",
        "d\te",
        "grouped",
    ]
    assert evidence.notes == (
        "Text only: images, charts, diagrams, comments and formatting were not read",
        "Hidden slides were read too: 1",
    )


def test_powerpoint_presentations_without_text_are_refused() -> None:
    deck = pptx.Presentation()
    deck.slides.add_slide(deck.slide_layouts[6])
    with pytest.raises(Unreadable, match="no slide of the presentation has any"):
        read_pptx(saved(deck), "a.pptx", LIMITS)
    with pytest.raises(Unreadable, match="has no text"):
        read_pptx(saved(pptx.Presentation()), "a.pptx", LIMITS)


def test_embedded_files_and_macros_are_noted() -> None:
    document = docx.Document()
    document.add_paragraph("x")
    data = edited(saved(document), "word/vbaProject.bin", lambda _: "macro")
    data = edited(data, "word/embeddings/sheet.bin", lambda _: "file")
    notes = read_docx(data, "a.docx", LIMITS).notes
    assert "Macros were not run or read" in notes
    assert "Embedded files were not read: 1" in notes


def test_ticks_and_choices_of_a_form_are_read() -> None:
    def field(inside: str) -> str:
        return f'<w:r><w:fldChar w:fldCharType="begin"><w:ffData>{inside}</w:ffData></w:fldChar></w:r>'

    listed = "".join(f'<w:listEntry w:val="{word}"/>' for word in ("red", "blue"))
    read = read_docx(
        word(
            p(field('<w:checkBox><w:default w:val="0"/><w:checked/></w:checkBox>'), " paid"),
            p(field('<w:checkBox><w:default w:val="0"/></w:checkBox>'), " late"),
            p("colour ", field(f'<w:ddList><w:result w:val="1"/>{listed}</w:ddList>')),
            p('<w:r><w:sym w:font="Wingdings" w:char="F0FE"/></w:r>', " yes"),
            p('<w:r><w:sym w:font="Wingdings" w:char="F021"/></w:r>', " odd"),
        ),
        "a.docx",
        LIMITS,
    )
    lines = ["[x] paid", "[ ] late", "colour blue", "\u2611 yes", "\ufffd odd"]
    assert [line for line in read.text.splitlines() if line] == lines
    assert "Symbols without a meaning as text were not read: 1" in read.notes


def test_what_is_deleted_or_inserted_from_elsewhere_is_said() -> None:
    gone = '<w:del w:id="1" w:author="x"><w:r><w:delText>half</w:delText></w:r></w:del>'
    read = read_docx(word(p("whole", gone), "<w:altChunk></w:altChunk>"), "a.docx", LIMITS)
    assert read.text == "whole"
    assert read.notes[1:] == (
        "Deleted passages of tracked changes were not read: 1",
        "Documents inserted into it were not read: 1",
    )


def test_a_workbook_of_formulas_without_results_says_so() -> None:
    book = openpyxl.Workbook()
    book.active["A1"], book.active["A2"] = "=1+1", "=A1*2"
    with pytest.raises(Unreadable, match="its 2 formulas were saved without their results"):
        read_xlsx(saved(book), "a.xlsx", LIMITS)
