"""Hostile and damaged files of every kind are refused by name, or read safely, in bounded time and memory."""

from __future__ import annotations

import io
import random
import resource
import struct
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from email.message import EmailMessage

import docx
import openpyxl
import pptx
import pymupdf
import pytest

from jev.extractors import Evidence, ExtractError, LimitExceeded, Limits, Unreadable, UnsupportedType
from jev.extractors.detect import EXTENSIONS
from jev.extractors.extract import extract
from jev.extractors.options import Options
from jev.extractors.worker import Pool

MIB = 2**20
GARBAGE = random.Random(1).randbytes(32 * MIB)
DTD = '<!DOCTYPE x [<!ENTITY a "lol"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;"><!ENTITY c "&b;&b;&b;&b;">]>'
EXTERNAL = '<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]>'
REL = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    # Each takes well under five seconds on its own; a busy machine gets room, not a failure.
    with Pool(Limits(decode_seconds=15, decode_memory_bytes=1024 * MIB), workers=1) as made:
        yield made


def refusal(pool: Pool, data: bytes, name: str) -> ExtractError:
    """The error for a file, which must not be that the time, the memory or the process ran out."""
    with pytest.raises(ExtractError) as error:
        pool.extract_sync(data, name, picture_slots=8)
    assert "decode_seconds" not in str(error.value)
    assert "decode_memory_bytes" not in str(error.value)
    assert "crashed" not in str(error.value)
    return error.value


def here(data: bytes, name: str, limits: Limits | None = None) -> Evidence:
    return extract(data, name, limits or Limits(), picture_slots=8, options=Options())


def saved(document: object) -> bytes:
    out = io.BytesIO()
    document.save(out)  # type: ignore[attr-defined]
    return out.getvalue()


def word() -> bytes:
    document = docx.Document()
    document.add_paragraph("Some words")
    return saved(document)


def excel() -> bytes:
    book = openpyxl.Workbook()
    book.active["A1"] = "Some words"
    return saved(book)


def powerpoint() -> bytes:
    deck = pptx.Presentation()
    deck.slides.add_slide(deck.slide_layouts[0]).shapes.title.text = "Some words"
    return saved(deck)


def pdf() -> bytes:
    document = pymupdf.open()
    for _ in range(3):
        document.new_page().insert_text((72, 72), "Some words")
    return document.tobytes()


def mail() -> bytes:
    message = EmailMessage()
    message["From"], message["Subject"] = "a@example.com", "Some words"
    message.set_content("text")
    message.add_attachment(word(), maintype="application", subtype="x", filename="a.docx")
    return message.as_bytes()


OFFICE = {
    "docx": (word, "word/document.xml"),
    "xlsx": (excel, "xl/workbook.xml"),
    "pptx": (powerpoint, "ppt/presentation.xml"),
}


def repacked(
    data: bytes, parts: dict[str, bytes] | None = None, **replaced: Callable[[bytes], bytes]
) -> bytes:
    """Return the archive with parts added, and others (by the end of their name) rewritten."""
    out = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(data)) as old,
        zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as new,
    ):
        for info in old.infolist():
            content = old.read(info)
            for ending, edit in replaced.items():
                if info.filename.endswith(ending.replace("__", ".")):
                    content = edit(content)
            new.writestr(info.filename, content)
        for name, content in (parts or {}).items():
            new.writestr(name, content)
    return out.getvalue()


def declared_smaller(data: bytes, name: str, size: int) -> bytes:
    """Return the archive with a lie about an entry's expanded size in both of its headers."""
    data = bytearray(data)
    with zipfile.ZipFile(io.BytesIO(bytes(data))) as archive:
        info = archive.getinfo(name)
    struct.pack_into("<I", data, info.header_offset + 22, size)
    at = data.index(b"PK\x01\x02")
    while data[at + 46 : at + 46 + len(name)] != name.encode():
        at = data.index(b"PK\x01\x02", at + 1)
    struct.pack_into("<I", data, at + 24, size)
    return bytes(data)


# ---- garbage and cuts, under every name


@pytest.mark.parametrize("extension", sorted(EXTENSIONS))
def test_garbage_is_refused_under_every_extension(pool: Pool, extension: str) -> None:
    if extension in ("txt", "html", "eml", "pdf", "docx", "mp4"):
        refusal(pool, GARBAGE, f"a.{extension}")
        return
    text = EXTENSIONS[extension].kind == "text"
    with pytest.raises(ExtractError, match="exceeds the limit" if text else rf"named \.{extension}"):
        here(GARBAGE, f"a.{extension}")


@pytest.mark.parametrize(
    "filler", [b"\0", b"A", b"<a>", b"\n", b"\r\n ", b"{[", b"&#1;", b"\xe9 ", b"From: a\n"]
)
@pytest.mark.parametrize("extension", ["txt", "html", "eml"])
def test_endless_repetition_is_refused(pool: Pool, filler: bytes, extension: str) -> None:
    refusal(pool, filler * (32 * MIB // len(filler)), f"a.{extension}")


@pytest.mark.parametrize("extension", ["pdf", "docx", "png", "mp3", "mp4", "mkv", "wav", "heic", "xyz", ""])
def test_magic_bytes_before_garbage_are_refused(pool: Pool, extension: str) -> None:
    garbage = GARBAGE[:MIB]
    for magic in (
        b"%PDF-1.7\n",
        b"PK\x03\x04",
        b"\x89PNG\r\n\x1a\n",
        b"\xff\xd8\xff\xe0",
        b"II*\0",
        b"OggS\0",
    ):
        refusal(pool, magic + garbage, f"a.{extension}" if extension else "a")


@pytest.mark.parametrize("made", [pdf, word, excel, powerpoint, mail])
def test_files_that_are_cut_short_are_refused_or_say_so(pool: Pool, made: Callable[[], bytes]) -> None:
    data = made()
    extension = {pdf: "pdf", word: "docx", excel: "xlsx", powerpoint: "pptx", mail: "eml"}[made]
    for share in (0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99):
        try:
            evidence = pool.extract_sync(data[: int(len(data) * share)], f"a.{extension}", picture_slots=8)
        except ExtractError as error:
            assert "crashed" not in str(error)
        else:
            assert made is mail
            assert any("cut short" in note for note in evidence.notes) or "a.docx" not in evidence.text


@pytest.mark.parametrize("made", [pdf, word, excel, powerpoint])
def test_files_with_flipped_bytes_never_break_the_reader(made: Callable[[], bytes]) -> None:
    data = made()
    extension = {pdf: "pdf", word: "docx", excel: "xlsx", powerpoint: "pptx"}[made]
    dice = random.Random(3)
    refused = 0
    for _ in range(40):
        broken = bytearray(data)
        for _ in range(dice.choice([1, 4, 64])):
            broken[dice.randrange(len(broken))] ^= 1 << dice.randrange(8)
        try:
            here(bytes(broken), f"a.{extension}")
        except ExtractError:
            refused += 1
    assert refused > 0


@pytest.mark.parametrize("extension", sorted(EXTENSIONS))
def test_a_file_under_any_other_name_is_still_itself(extension: str) -> None:
    assert here(pdf(), f"a.{extension}").kind == "pdf"


def test_names_and_sizes_are_checked_first() -> None:
    with pytest.raises(LimitExceeded, match="max_name_chars"):
        here(b"x", "a" * 252 + ".txt")
    with pytest.raises(LimitExceeded, match="max_file_bytes"):
        here(b"x" * 11, "a.txt", Limits(max_file_bytes=10))
    with pytest.raises(Unreadable, match="must contain"):
        here(b"", "a.txt")


# ---- archives


@pytest.mark.parametrize("extension", OFFICE)
def test_a_zip_bomb_is_refused_before_it_expands(extension: str) -> None:
    made, _ = OFFICE[extension]
    data = repacked(made(), {"bomb.xml": b"<a>" + b" " * (64 * MIB) + b"</a>"})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(LimitExceeded, match="expanded bytes") as error:
        here(data, f"a.{extension}")
    assert error.value.limit == "max_expanded_bytes"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 * 1024


def test_a_bomb_below_the_total_is_refused_by_its_ratio() -> None:
    data = repacked(word(), {"bomb.xml": b"<a>" + b" " * (4 * MIB) + b"</a>"})
    with pytest.raises(LimitExceeded, match="expanded bytes for each stored byte") as error:
        here(data, "a.docx")
    assert error.value.limit == "max_expansion_ratio"


def test_a_bomb_among_the_pictures_counts() -> None:
    data = repacked(word(), {"word/media/bomb.png": b"\0" * (16 * MIB)})
    with pytest.raises(LimitExceeded, match="max_expanded_bytes"):
        here(data, "a.docx")


@pytest.mark.parametrize("name", ["[Content_Types].xml", "word/document.xml", "bomb.xml"])
def test_a_lie_about_the_expanded_size_is_found(name: str) -> None:
    parts = {"bomb.xml": b"<a>" + b" " * (16 * MIB) + b"</a>"} if name == "bomb.xml" else {}
    data = declared_smaller(repacked(word(), parts), name, 100)
    with pytest.raises(Unreadable, match="A part of its archive is damaged"):
        here(data, "a.docx")


def test_a_content_type_list_that_expands_is_refused() -> None:
    data = repacked(word(), None, **{"[Content_Types].xml": lambda xml: xml + b" " * (8 * MIB)})
    with pytest.raises(Unreadable, match="list of content types is too long"):
        here(data, "a.docx")


def test_too_many_entries_are_refused() -> None:
    data = repacked(word(), {f"x{n}.bin": b"" for n in range(2050)})
    with pytest.raises(LimitExceeded, match="archive entries") as error:
        here(data, "a.docx")
    assert error.value.limit == "max_zip_entries"
    with pytest.raises(Unreadable, match="directory is too long"):
        here(data + b"PK\x01\x02" * 70_000, "a.docx")


@pytest.mark.parametrize(
    "name", ["../evil.xml", "word/../../evil.xml", "/etc/passwd", "C:/x.xml", "word\\x.xml", ".."]
)
def test_names_that_lead_out_of_the_archive_are_refused(name: str) -> None:
    with pytest.raises(Unreadable, match="leads out of it"):
        here(repacked(word(), {name: b"<a/>"}), "a.docx")


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("name", ["word/document.xml", "WORD/Document.xml"])
def test_duplicate_entries_are_refused(name: str) -> None:
    with pytest.raises(Unreadable, match="duplicate entries"):
        here(repacked(word(), {name: b"<a/>"}), "a.docx")


def test_encrypted_entries_are_refused() -> None:
    data = bytearray(word())
    at = -1
    while (at := data.find(b"PK\x01\x02", at + 1)) >= 0:
        data[at + 8] |= 1
    with pytest.raises(Unreadable, match="password"):
        here(bytes(data), "a.docx")


@pytest.mark.parametrize("method", [9, 99, 0xFFFF])
def test_unknown_compression_is_refused(method: int) -> None:
    data = bytearray(word())
    at = data.index(b"PK\x01\x02")
    struct.pack_into("<H", data, at + 10, method)
    struct.pack_into("<H", data, 8, method)
    with pytest.raises(Unreadable, match="damaged"):
        here(bytes(data), "a.docx")


# ---- XML


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize("declaration", [DTD, EXTERNAL])
@pytest.mark.parametrize("extension", OFFICE)
def test_document_types_and_entities_are_refused(extension: str, declaration: str, encoding: str) -> None:
    made, part = OFFICE[extension]

    def edit(xml: bytes) -> bytes:
        body = xml.decode().partition("?>")[2] or xml.decode()
        return f"<?xml version='1.0' encoding='{encoding}'?>{declaration}{body}".encode(encoding)

    with pytest.raises(Unreadable, match="document type declaration"):
        here(repacked(made(), None, **{part: edit}), f"a.{extension}")


def test_a_document_type_is_found_in_parts_of_any_name() -> None:
    data = repacked(word(), {"word/other.bin": f"{EXTERNAL}<x>&a;</x>".encode()})
    with pytest.raises(Unreadable, match="document type declaration"):
        here(data, "a.docx")


@pytest.mark.parametrize("kind", ["image", "attachedTemplate", "oleObject", "frame", "externalLinkPath"])
@pytest.mark.parametrize("extension", OFFICE)
def test_external_relationships_are_refused(extension: str, kind: str) -> None:
    made, _ = OFFICE[extension]
    link = f'<Relationship Id="evil" Type="{REL}/{kind}" Target="http://127.0.0.1/x" TargetMode="External"/>'
    data = repacked(
        made(),
        None,
        _rels=lambda xml: xml,
        rels=lambda xml: xml.replace(b"</Relationships>", f"{link}</Relationships>".encode()),
    )
    with pytest.raises(Unreadable, match="external relationships"):
        here(data, f"a.{extension}")


@pytest.mark.parametrize("target", ["../../../etc/passwd", "/../x", "..\\..\\x", "//server/share"])
def test_relationship_targets_that_lead_out_are_refused(target: str) -> None:
    link = f'<Relationship Id="evil" Type="{REL}/image" Target="{target}"/></Relationships>'
    data = repacked(
        word(), None, document__xml__rels=lambda xml: xml.replace(b"</Relationships>", link.encode())
    )
    with pytest.raises(Unreadable, match="leads out of the file"):
        here(data, "a.docx")


def test_deep_and_wide_xml_is_refused() -> None:
    deep = b"<a>" * 5000 + b"</a>" * 5000
    with pytest.raises(Unreadable, match="nested more than 200 levels"):
        here(repacked(word(), {"x.xml": deep}), "a.docx")
    wide = b"<a>" + b"".join(b"<b%d/>" % (n % 977) for n in range(250_001)) + b"</a>"
    with pytest.raises(LimitExceeded, match="max_markup_nodes"):
        here(repacked(word(), {"x.xml": wide}), "a.docx")


def test_xml_that_is_not_well_formed_is_refused_with_its_line() -> None:
    data = repacked(word(), None, document__xml=lambda xml: b"<w:document>\n<w:p>")
    with pytest.raises(Unreadable, match=r"not well-formed XML \(line 2\)|not well-formed XML \(line 1\)"):
        here(data, "a.docx")


def test_strict_and_missing_parts_are_refused() -> None:
    strict = repacked(
        word(),
        None,
        rels=lambda xml: xml.replace(
            b"http://schemas.openxmlformats.org/officeDocument/2006",
            b"http://purl.oclc.org/ooxml/officeDocument",
        ),
    )
    with pytest.raises(UnsupportedType, match="Strict Open XML"):
        here(strict, "a.docx")
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(word())) as old, zipfile.ZipFile(out, "w") as new:
        new.writestr("[Content_Types].xml", old.read("[Content_Types].xml"))
    with pytest.raises(Unreadable, match="damaged"):
        here(out.getvalue(), "a.docx")


def test_far_cells_do_not_make_the_cells_between(pool: Pool) -> None:
    rows = b"".join(
        b'<row r="%d"><c r="XFD%d"><v>1</v></c></row>' % (n * 1000, n * 1000) for n in range(1, 1000)
    )
    sheet = b'<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main">'
    sheet += b'<dimension ref="A1:XFD1048576"/><sheetData>'
    data = repacked(excel(), None, sheet1__xml=lambda _: sheet + rows + b"</sheetData></worksheet>")
    text = pool.extract_sync(data, "a.xlsx", picture_slots=0).text
    assert text.split("\n")[1] == "XFD1000=1"
    assert len(text.split("\n")) == 1000


def test_a_slide_listed_many_times_is_refused() -> None:
    def edit(xml: bytes) -> bytes:
        start, end = xml.index(b"<p:sldId "), xml.index(b"</p:sldIdLst>")
        return xml[:end] + xml[start:end] * 50_000 + xml[end:]

    with pytest.raises(Unreadable, match="lists a slide twice"):
        here(
            repacked(powerpoint(), None, presentation__xml=edit), "a.pptx", Limits(max_expansion_ratio=10_000)
        )


# ---- PDF


def test_a_pdf_of_very_many_objects_is_refused_at_once(pool: Pool) -> None:
    data = b"%PDF-1.7\n" + b"".join(b"%d 0 obj<<>>endobj\n" % n for n in range(1, 1_000_001))
    error = refusal(pool, data, "a.pdf")
    assert isinstance(error, LimitExceeded)
    assert (error.limit, error.actual) == ("max_pdf_objects", 1_000_000)


def test_a_pdf_that_says_it_has_very_many_objects_is_refused(pool: Pool) -> None:
    data = pdf().replace(b"/Size", b"/Size 8388607/X")
    assert "8,388,607 objects" in str(refusal(pool, data, "a.pdf"))


def test_a_pdf_at_the_limit_of_objects_is_read(pool: Pool) -> None:
    objects = [b"<</Type/Catalog/Pages 2 0 R>>", b"<</Type/Pages/Kids[3 0 R]/Count 1>>"]
    objects.append(
        b"<</Type/Page/Parent 2 0 R/Contents 4 0 R/Resources<</Font<</F 5 0 R>>>>/MediaBox[0 0 9 9]>>"
    )
    drawing = b"BT /F 1 Tf 1 5 Td (many) Tj ET"
    objects.append(b"<</Length %d>>stream\n%b\nendstream" % (len(drawing), drawing))
    objects += [b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>", *[b"<<>>"] * 99_990]
    body, places = bytearray(b"%PDF-1.7\n"), [0]
    for number, content in enumerate(objects, start=1):
        places.append(len(body))
        body += b"%d 0 obj\n%b\nendobj\n" % (number, content)
    index = b"".join(b"%010d 00000 n \n" % place for place in places[1:])
    head = b"xref\n0 %d\n0000000000 65535 f \n" % len(places)
    tail = b"trailer<</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF" % (len(places), len(body))
    data = bytes(body) + head + index + tail
    assert pool.extract_sync(data, "a.pdf", picture_slots=0).text == "many"


def with_stream(content: bytes, *, filters: str = "/FlateDecode", rounds: int = 1) -> bytes:
    """A page whose drawing is the given bytes, compressed."""
    document = pymupdf.open()
    page = document.new_page()
    page.insert_text((72, 72), "x")
    for _ in range(rounds):
        content = zlib.compress(content)
    xref = page.get_contents()[0]
    document.update_stream(xref, content, compress=False)
    document.xref_set_key(xref, "Filter", filters)
    return document.tobytes()


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_drawing_that_expands_without_end_is_refused(pool: Pool, rounds: int) -> None:
    filters = "[" + "/FlateDecode" * rounds + "]"
    data = with_stream(b"0 0 m 9 9 l S " * (8 * MIB), filters=filters, rounds=rounds)
    error = refusal(pool, data, "a.pdf")
    assert isinstance(error, LimitExceeded)
    assert error.limit == "max_expanded_bytes"


def test_drawings_that_call_each_other_without_end_are_stopped_in_time() -> None:
    document = pymupdf.open()
    page = document.new_page()
    page.insert_text((72, 72), "x")
    below = ""
    for level in range(24):
        xref = document.get_new_xref()
        below = f"/Resources<</XObject<</X {below}>>>>" if below else ""
        document.update_object(xref, f"<</Type/XObject/Subtype/Form/BBox[0 0 600 800]{below}>>")
        document.update_stream(xref, b"/X Do " * 10 if level else b"0 0 m 9 9 l S")
        below = f"{xref} 0 R"
    document.xref_set_key(page.xref, "Resources", f"<</XObject<</X {below}>>>>")
    document.update_stream(page.get_contents()[0], b"/X Do")
    with Pool(Limits(decode_seconds=2), workers=1) as pool:
        with pytest.raises(LimitExceeded, match="decode_seconds"):
            pool.extract_sync(document.tobytes(), "a.pdf", picture_slots=8)
        assert pool.extract_sync(b"still here", "a.txt", picture_slots=0).text == "still here"


def test_a_pdf_of_very_many_pages_is_refused(pool: Pool) -> None:
    document = pymupdf.open()
    for _ in range(2000):
        document.new_page()
    assert "2,000 pages" in str(refusal(pool, document.tobytes(), "a.pdf"))


def test_a_page_tree_that_goes_in_circles_is_refused_or_read(pool: Pool) -> None:
    document = pymupdf.open(stream=pdf())
    kids = document.xref_get_key(document.pdf_catalog(), "Pages")[1]
    document.xref_set_key(int(kids.split()[0]), "Kids", f"[{kids} {kids}]")
    refusal(pool, document.tobytes(), "a.pdf")


# ---- mail


@pytest.mark.parametrize(
    "body",
    [
        b"".join(b"Content-Type: multipart/mixed; boundary=b%d\n\n--b%d\n" % (n, n) for n in range(2000)),
        b"".join(b"Content-Type: message/rfc822\n\n" for _ in range(2000)),
        b"Content-Type: multipart/mixed; boundary=x\n\n" + b"--x\nContent-Type: text/plain\n\na\n" * 300,
        b"X-Header: y\n" * 700_000,
        b"X-Folded: x\n" + b" y\n" * 700_000,
    ],
    ids=["nested", "mails", "parts", "headers", "folded"],
)
def test_mails_without_end_are_refused(pool: Pool, body: bytes) -> None:
    refusal(pool, b"From: a@b\nSubject: x\n" + body, "a.eml")


def test_long_headers_are_refused(pool: Pool) -> None:
    assert "max_text_chars" in str(
        refusal(pool, b"From: a@b\nSubject: " + b"=?a?q?" * 10_000 + b"\n\nx", "a.eml")
    )


def test_a_bomb_inside_a_mail_is_refused_with_its_place() -> None:
    bomb = repacked(word(), {"bomb.xml": b"<a>" + b" " * (64 * MIB) + b"</a>"})
    message = EmailMessage()
    message["From"], message["Subject"] = "a@example.com", "x"
    message.set_content("text")
    message.add_attachment(bomb, maintype="application", subtype="x", filename="a.docx")
    with pytest.raises(LimitExceeded, match=r"^In attachment 1: .*expanded bytes"):
        here(message.as_bytes(), "a.eml")


# ---- HTML


@pytest.mark.parametrize(
    "page",
    [
        b"<div>" * 200_000 + b"x",
        b"<table><tr><td>" * 60_000 + b"x",
        b"<a " + b" ".join(b"x%d=1" % n for n in range(300_000)) + b">x",
        b"<p hidden>" * 200_000 + b"x",
        b"<!--" * 2_000_000 + b"x",
        b"<script>" + b"<" * (16 * MIB),
        b"<a href='" + b"x" * (16 * MIB) + b"'>x",
        b"<select><option>" * 120_000,
        b"</p>" * 4_000_000 + b"x",
    ],
    ids=["deep", "tables", "attributes", "hidden", "comments", "script", "value", "options", "ends"],
)
def test_pathological_pages_are_read_or_refused_in_time(pool: Pool, page: bytes) -> None:
    try:
        pool.extract_sync(page, "a.html", picture_slots=0)
    except ExtractError as error:
        assert "decode_" not in str(error)
        assert "crashed" not in str(error)


MADE_OF_ONE_THING = {
    "a.pdf": (b"%PDF-1.7\n" + b"/XRef " * (2 * MIB), "more than 4096 indexes"),
    "a.mp4": (b"\0\0\0\x18ftypisom\0\0\0\0isomiso2" + b"\0\0\0\x08free" * (2 * MIB), "200,000 boxes"),
    "a.jpg": (b"\xff\xd8" + b"\xff\xe0\0\x02" * MIB, "100,000 segments"),
    "a.png": (b"\x89PNG\r\n\x1a\n" + b"\0\0\0\0tEXt\x9d\x1d\x7f\x68" * MIB, "100,000 segments"),
    "b.mp4": (b"\0\0\0\x18ftypisom\0\0\0\0isomiso2" + b"hdlr" * (4 * MIB), "its end is missing"),
}


@pytest.mark.parametrize("name", MADE_OF_ONE_THING)
def test_files_made_of_one_thing_over_and_over_are_refused_at_once(name: str) -> None:
    data, words = MADE_OF_ONE_THING[name]
    before = time.process_time()
    with pytest.raises(Unreadable, match=words):
        here(data, name)
    assert time.process_time() - before < 1.5
