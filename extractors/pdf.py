"""PDF files: the text layer in reading order, and pages without one as pictures."""

from __future__ import annotations

import io
import logging
import re
import threading
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast

from jev.extractors.builder import TextBuilder, one_line
from jev.extractors.errors import ExtractError, LimitExceeded, MissingReader, Unreadable
from jev.extractors.evidence import Evidence, Picture, digest
from jev.extractors.limits import Limits, check_slots
from jev.extractors.pdf_layout import Piece, lines_of, main_direction

# MuPDF is not made for several threads.
_LOCK = threading.Lock()

_T = TypeVar("_T")

_DPI = 200
_MAX_SIDE = 2400
_STAMP_CHARS = 64
_UNMAPPED_SHARE = 0.3
_MAX_TABLE_CHARS = 8000
_MAX_TABLE_ITEMS = 4000
_MAX_TABLE_CELLS = 3000
_SIZE = re.compile(rb"/Size\s+(\d{1,12})")
_INDEX = re.compile(rb"trailer|/XRef\b")
_MAX_INDEXES = 4096
_UNMAPPED = re.compile("[\ufffd\ue000-\uf8ff]")
# How Acrobat draws a tick, cross, circle, square, star and diamond in a check box.
_TICKS = frozenset("34lnuH8")
_COMMENT = 0
_IMAGES = frozenset({"fill-image", "fill-imgmask"})
_NOT_SEEN = frozenset({"ignore-text"})


@dataclass
class _Page:
    """What was found on one page."""

    number: int
    lines: list[str]
    shown: bool
    images: int
    damaged: bool
    unmapped: int


def read_pdf(data: bytes, name: str, limits: Limits, *, picture_slots: int) -> Evidence:
    """Read a PDF file.

    Pages with a text layer give text, tables as rows with tabs; pages without one, or with next to
    none over a scan, are rendered as pictures. Scripts are not run and embedded files not opened.

    Raises:
        LimitExceeded: for `max_pdf_pages`, `max_pdf_objects`, `max_expanded_bytes` (of one page's
            drawing), `max_pixels`, `max_images` or `max_text_chars`.
        Unreadable: for damaged, encrypted or empty files.
        MissingReader: if PyMuPDF is not installed.
    """
    _check_objects(data, limits)
    mupdf = _mupdf()
    with _LOCK:
        document = _guarded("It is a damaged PDF file", lambda: mupdf.open(stream=data, filetype="pdf"))
        try:
            return _read(mupdf, document, data, name, limits, picture_slots)
        finally:
            document.close()
            mupdf.TOOLS.store_shrink(100)


def _mupdf() -> Any:
    try:
        import pymupdf  # noqa: PLC0415 - only where a PDF is read
    except ImportError as error:
        raise MissingReader("Reading PDF files needs PyMuPDF: pip install 'pymupdf>=1.28,<2'") from error
    # Its messages may quote the file, and advertise.
    pymupdf.TOOLS.mupdf_display_errors(False)
    pymupdf.TOOLS.mupdf_display_warnings(False)
    pymupdf.set_messages(pylogging=True, pylogging_name=__name__, pylogging_level=logging.DEBUG)
    pymupdf.no_recommend_layout()
    return pymupdf


def _check_objects(data: bytes, limits: Limits) -> None:
    """Bound the objects from the bytes: MuPDF makes room for as many as the file says it has."""
    count = data.count(b" obj")
    for number, at in enumerate(_INDEX.finditer(data)):
        if number == _MAX_INDEXES:
            raise Unreadable(f"It has more than {_MAX_INDEXES} indexes of its objects")
        count = max(count, _stated_size(data, at))
    if count > limits.max_pdf_objects:
        raise LimitExceeded("max_pdf_objects", limits.max_pdf_objects, count, unit="objects")


def _stated_size(data: bytes, at: re.Match[bytes]) -> int:
    """Return the number of objects that a trailer or an index stream says the file has."""
    # Other objects have a /Size too: that of an embedded file is its bytes.
    start = at.start() if at[0] == b"trailer" else data.rfind(b"obj", max(0, at.start() - 4096), at.start())
    end = data.find(b"stream", at.end(), at.end() + 4096)
    head = data[max(0, start) : end if end >= 0 else at.end() + 4096]
    return max((int(size) for size in _SIZE.findall(head)), default=0)


def _read(mupdf: Any, document: Any, data: bytes, name: str, limits: Limits, slots: int) -> Evidence:
    if document.needs_pass and not document.authenticate(""):
        raise Unreadable("It is protected by a password")
    if document.xref_length() > limits.max_pdf_objects:
        raise LimitExceeded("max_pdf_objects", limits.max_pdf_objects, document.xref_length(), unit="objects")
    if document.is_repaired and b"%%EOF" not in data[-4096:]:
        raise Unreadable("It is cut short: the end of the PDF file is missing")
    count = document.page_count
    if count == 0:
        raise Unreadable("It has no pages")
    if count > limits.max_pdf_pages:
        raise LimitExceeded("max_pdf_pages", limits.max_pdf_pages, count, unit="pages")
    out = TextBuilder(limits)
    pages: list[_Page] = []
    for number in range(1, count + 1):
        look = partial(_look, mupdf, document, number, limits)
        page = _guarded(f"Page {number} of the PDF file cannot be read", look)
        pages.append(page)
        if page.lines and count > 1:
            out.add(f"Page {number}:")
        for line in page.lines:
            out.add(line)
    check_slots(limits, sum(page.shown for page in pages), slots)
    pictures: list[Picture] = []
    for page in pages:
        if page.shown:
            render = partial(_picture, mupdf, document, page.number, limits)
            picture = _guarded(f"Page {page.number} of the PDF file cannot be rendered", render)
            page.shown = picture is not None
            pictures += [picture] if picture else []
    text = out.text(may_be_blank=bool(pictures))
    notes = (*_coverage(pages), *_features(document, data), *out.notes)
    return Evidence(name, "pdf", text, tuple(pictures), notes, digest(data))


def _guarded(complaint: str, job: Callable[[], _T]) -> _T:
    """Run a job; whatever MuPDF raises is the file's fault, except a lack of memory."""
    try:
        return job()
    except (ExtractError, MemoryError):
        raise
    except Exception as error:
        if "malloc" in str(error):
            raise MemoryError from error
        raise Unreadable(complaint) from error


def _look(mupdf: Any, document: Any, number: int, limits: Limits) -> _Page:
    """Read a page's text and say whether it must be shown as a picture."""
    page = document[number - 1]
    _check_streams(document, page, limits)
    mupdf.TOOLS.reset_mupdf_warnings()
    drawn = [entry for entry in page.get_bboxlog() if entry[0] not in _NOT_SEEN]
    images = [entry[1] for entry in drawn if entry[0] in _IMAGES]
    # Coordinates as on paper: the turn of the page is seen in the direction of its text.
    rotation = page.rotation
    if rotation:
        page.set_rotation(0)
    pieces = _pieces(mupdf, page)
    pieces = _with_tables(page, pieces)
    lines = lines_of(pieces)
    area = abs(page.rect)
    if rotation:
        page.set_rotation(rotation)
    text = "".join(lines)
    letters = len(text) - text.count(" ")
    unmapped = len(_UNMAPPED.findall(text))
    if unmapped > _UNMAPPED_SHARE * letters:
        # Glyphs without a meaning: what the page says is only in its looks.
        lines, letters, unmapped = [], 0, 0
    scan = any(_area(mupdf, box, page) >= 0.5 * area for box in images)
    shown = bool(drawn) and (letters == 0 or (scan and letters < _STAMP_CHARS))
    damaged = "error" in mupdf.TOOLS.mupdf_warnings()
    return _Page(number, lines, shown, len(images), damaged, unmapped)


def _area(mupdf: Any, box: Any, page: Any) -> float:
    return abs(mupdf.Rect(box) & page.rect)


def _check_streams(document: Any, page: Any, limits: Limits) -> None:
    """Bound what a page's drawing expands to, before MuPDF expands it."""
    streams = [*page.get_contents(), *(entry[0] for entry in document.get_page_xobjects(page.number))]
    total = 0
    for xref in dict.fromkeys(streams):
        raw = document.xref_stream_raw(xref)
        filters = re.findall(r"/(\w+)", document.xref_get_key(xref, "Filter")[1])
        total += _expanded(raw or b"", filters, limits.max_expanded_bytes - total)
        if total > limits.max_expanded_bytes:
            most = limits.max_expanded_bytes
            raise LimitExceeded("max_expanded_bytes", most, total, unit="expanded bytes", at_least=True)


def _expanded(raw: bytes, filters: Iterable[str], most: int) -> int:
    """Return the bytes that a stream expands to, or just over `most`."""
    for name in filters:
        if name not in ("FlateDecode", "Fl"):
            break
        try:
            raw = zlib.decompressobj().decompress(raw, most + 1)
        except zlib.error:
            break
    return len(raw)


def _pieces(mupdf: Any, page: Any) -> list[Piece]:
    flags = mupdf.TEXT_PRESERVE_WHITESPACE | mupdf.TEXT_MEDIABOX_CLIP
    pieces: list[Piece] = []
    for block in page.get_text("dict", flags=flags)["blocks"]:
        for line in block["lines"]:
            text = "".join(_span_text(span) for span in line["spans"]).strip()
            if text:
                cosine, sine = line["dir"]
                direction = (round(cosine), round(sine))
                pieces.append(Piece(line["bbox"], one_line(text), block["number"], direction))
    return pieces


def _span_text(span: dict[str, Any]) -> str:
    text: str = span["text"]
    return "[x]" if "Dingbats" in span["font"] and text.strip() in _TICKS else text


def _with_tables(page: Any, pieces: list[Piece]) -> list[Piece]:
    """Replace the pieces inside each ruled table by one piece with its rows."""
    if not pieces or main_direction(pieces) != (1, 0):
        return pieces
    if sum(len(piece.text) for piece in pieces) > _MAX_TABLE_CHARS or not _ruled(page):
        return pieces
    found = page.find_tables()
    for table in found.tables if found else ():
        if table.row_count < 2 or table.col_count < 2:
            continue
        x0, y0, x1, y1 = table.bbox
        inside = [
            piece
            for piece in pieces
            if x0 <= (piece.box[0] + piece.box[2]) / 2 <= x1 and y0 <= (piece.box[1] + piece.box[3]) / 2 <= y1
        ]
        rows = ["\t".join(one_line(cell or "") for cell in row) for row in table.extract()]
        text = "\n".join(rows)
        # A grid that loses text is not the table's: then its lines are read as they stand.
        if not inside or _letters(text) < sum(_letters(piece.text) for piece in inside):
            continue
        at = pieces.index(inside[0])
        kept = [piece for piece in pieces if piece not in inside]
        pieces = [*kept[:at], Piece((x0, y0, x1, y1), text, -1 - at), *kept[at:]]
    return pieces


def _letters(text: str) -> int:
    return sum(not character.isspace() for character in text)


def _ruled(page: Any) -> bool:
    """Whether a page's lines may be a table's, and few enough to search in."""
    across: set[int] = set()
    down: set[int] = set()
    items = 0
    for path in page.get_cdrawings():
        items += len(path.get("items", ()))
        if items > _MAX_TABLE_ITEMS:
            return False
        for item in path.get("items", ()):
            corners = item[1:3] if item[0] == "l" else (item[1][:2], item[1][2:]) if item[0] == "re" else ()
            for x, y in corners:
                across.add(round(x))
                down.add(round(y))
    return len(across) > 2 and len(down) > 2 and len(across) * len(down) <= _MAX_TABLE_CELLS


def _picture(mupdf: Any, document: Any, number: int, limits: Limits) -> Picture | None:
    """Render a page, or return None if it is blank."""
    page = document[number - 1]
    for image in page.get_image_info():
        pixels = image["width"] * image["height"]
        if pixels > limits.max_pixels:
            unit = f"pixels in a picture on page {number}"
            raise LimitExceeded("max_pixels", limits.max_pixels, pixels, unit=unit)
    width, height = max(1.0, page.rect.width), max(1.0, page.rect.height)
    zoom = min(_DPI / 72, _MAX_SIDE / max(width, height), (limits.max_pixels / (width * height)) ** 0.5)
    pixmap = page.get_pixmap(matrix=mupdf.Matrix(zoom, zoom), colorspace=mupdf.csRGB, alpha=False)
    from PIL import Image  # noqa: PLC0415 - only for scans

    image = Image.frombytes("RGB", (pixmap.width, pixmap.height), pixmap.samples)
    if all(low == high for low, high in cast(list[tuple[int, int]], image.getextrema())):
        return None
    png = io.BytesIO()
    # MuPDF's own PNG writer takes several times as long to make a scan slightly smaller.
    image.save(png, "PNG", compress_level=1)
    return Picture.of(png.getvalue(), pixmap.width, pixmap.height, f"page {number}")


def _coverage(pages: list[_Page]) -> list[str]:
    count = len(pages)
    texts = [page.number for page in pages if page.lines]
    shown = [page.number for page in pages if page.shown]
    blank = [page.number for page in pages if not page.lines and not page.shown]
    notes: list[str] = []
    if texts:
        notes.append(f"{_numbers(texts)} of {count}: text layer only")
    if shown:
        notes.append(f"{_numbers(shown)} of {count}: shown as pictures, for want of a text layer")
    if blank:
        notes.append(f"{_numbers(blank)} of {count}: blank")
    unread = [page.number for page in pages if page.images and not page.shown]
    if unread:
        notes.append(f"{_numbers(unread)}: pictures on them were not read")
    unmapped = [page.number for page in pages if page.unmapped]
    if unmapped:
        notes.append(f"{_numbers(unmapped)}: some letters could not be told from their font")
    damaged = [page.number for page in pages if page.damaged]
    if damaged:
        notes.append(f"{_numbers(damaged)}: damaged, some content may be missing")
    return notes


def _numbers(numbers: list[int]) -> str:
    """Return "Page 3" or "Pages 1-3, 7"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    listed = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"Page{'s' if len(numbers) > 1 else ''} {listed}"


def _features(document: Any, data: bytes) -> list[str]:
    """Return notes on what a PDF file can have besides pages."""
    notes: list[str] = []
    catalog = document.pdf_catalog()

    def has(key: str) -> bool:
        return document.xref_get_key(catalog, key)[0] != "null"

    if has("Names/JavaScript") or has("OpenAction/JS") or b"/JavaScript" in data:
        notes.append("JavaScript in it was not run")
    if document.embfile_count() or has("Names/EmbeddedFiles"):
        notes.append("Embedded files were not read")
    if has("AcroForm/XFA"):
        notes.append("XFA form data were not read")
    if document.is_repaired:
        notes.append("The file is damaged and was repaired: some content may be missing")
    comments = sum(annot[1] == _COMMENT for page in document for annot in page.annot_xrefs())
    if comments:
        notes.append(f"Comments were not read: {comments}")
    return notes
