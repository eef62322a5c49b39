"""Word documents: paragraphs and tables in order, then headers, footers, footnotes and endnotes."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from jev.extractors.archive import check_package
from jev.extractors.builder import TextBuilder, one_line
from jev.extractors.evidence import Evidence, digest
from jev.extractors.limits import Limits

if TYPE_CHECKING:
    from docx.document import Document
    from docx.opc.part import Part

COVERAGE = "Text only: images, charts, comments and formatting were not read"

_W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_MC = "{http://schemas.openxmlformats.org/markup-compatibility/2006}"
_R_ID = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}id"
_M_T = "{http://schemas.openxmlformats.org/officeDocument/2006/math}t"

# Deleted or moved text, field codes and the second spelling of a shape are not what a reader sees.
_UNSEEN = {f"{_W}del", f"{_W}moveFrom", f"{_W}instrText", f"{_W}delText", f"{_MC}Fallback"}
_BREAKS = {
    f"{_W}br": "\n",
    f"{_W}cr": "\n",
    f"{_W}tab": "\t",
    f"{_W}ptab": "\t",
    f"{_W}noBreakHyphen": "-",
}
# What forms are ticked with; other characters of these fonts have no meaning as text.
_SYMBOLS = {
    "wingdings": {
        0x6F: "\u2610",
        0xA8: "\u2610",
        0xFB: "\u2717",
        0xFC: "\u2713",
        0xFD: "\u2612",
        0xFE: "\u2611",
    },
    "wingdings 2": {0x4F: "\u2717", 0x50: "\u2713", 0x51: "\u2612", 0x52: "\u2611", 0xA3: "\u2610"},
    "wingdings 3": {},
    "webdings": {0x61: "\u2713", 0x72: "\u2717"},
    "symbol": {0xB7: "\u2022"},
}
_UNKNOWN = "\ufffd"
_OFF = ("0", "false", "off")


def read_docx(data: bytes, name: str, limits: Limits) -> Evidence:
    """Read a Word document (.docx).

    Raises:
        LimitExceeded: for the archive's limits and `max_text_chars`.
        Unreadable: for a damaged, encrypted, unsafe or textless document.
    """
    notes = check_package(data, limits)
    from docx import Document as open_document  # noqa: PLC0415 - only where one is read

    document = open_document(io.BytesIO(data))
    reader = _Reader(limits)
    # A header or footer stands once, however many sections show it.
    pages = list(_page_parts(document))
    for part in (part for kind, part in pages if kind == "header"):
        reader.block("Header: ", part)
    reader.story(document.element.body)
    for part in (part for kind, part in pages if kind == "footer"):
        reader.block("Footer: ", part)
    for kind in ("footnote", "endnote"):
        for root in _related(document, f"/{kind}s"):
            reader.notes(kind, root)
    text = reader.out.text()
    unread = {
        "Passages of hidden text": reader.hidden,
        "Deleted passages of tracked changes": reader.deleted,
        "Documents inserted into it": reader.inserted,
        "Symbols without a meaning as text": reader.symbols,
    }
    notes = (*notes, *(f"{what} were not read: {count}" for what, count in unread.items() if count))
    return Evidence(name, "document", text, (), (COVERAGE, *notes, *reader.out.notes), digest(data))


def _page_parts(document: Document) -> Iterator[tuple[str, Any]]:
    """Yield ("header" or "footer", root element) for each one that a section refers to, in order."""
    seen: set[str] = set()
    for reference in document.element.body.iter(f"{_W}headerReference", f"{_W}footerReference"):
        rid = reference.get(_R_ID)
        if rid is None or rid in seen or rid not in document.part.rels:
            continue
        seen.add(rid)
        kind = "header" if reference.tag.endswith("headerReference") else "footer"
        yield kind, _root(document.part.rels[rid].target_part)


def _related(document: Document, ending: str) -> Iterator[Any]:
    for relation in document.part.rels.values():
        if not relation.is_external and relation.reltype.endswith(ending):
            yield _root(relation.target_part)


def _root(part: Part) -> Any:
    from docx.oxml.parser import parse_xml  # noqa: PLC0415 - only where one is read

    return parse_xml(part.blob)


class _Reader:
    """Walks WordprocessingML in document order; recursion is as deep as the XML, which was checked."""

    def __init__(self, limits: Limits) -> None:
        self.out = TextBuilder(limits)
        self.hidden = self.deleted = self.inserted = self.symbols = 0
        self._numbers: dict[str, dict[str | None, int]] = {"footnote": {}, "endnote": {}}

    def story(self, element: Any) -> None:
        """Add the paragraphs and tables in `element`, through content controls and the like."""
        for child in element:
            if self._is_unseen(child):
                continue
            if child.tag == f"{_W}p":
                self.out.add(self._paragraph(child))
            elif child.tag == f"{_W}tbl":
                self._table(child)
            else:
                self.story(child)

    def block(self, label: str, root: Any) -> None:
        """Add a header, footer or note on a line that says what it is, if it has any text."""
        text = one_line(self._flat(root))
        if text:
            self.out.add(f"{label}{text}")

    def notes(self, kind: str, root: Any) -> None:
        """Add the footnotes or endnotes that the text refers to, under the numbers it gives them."""
        notes = {note.get(f"{_W}id"): note for note in root}
        for note_id, number in self._numbers[kind].items():
            if note_id in notes:
                self.block(f"{kind.capitalize()} {number}: ", notes[note_id])

    def _table(self, table: Any) -> None:
        for row in _children(table, f"{_W}tr"):
            if row.find(f"{_W}trPr/{_W}del") is not None:
                self.deleted += 1
            else:
                self.out.add_row([self._flat(cell) for cell in _children(row, f"{_W}tc")])

    def _flat(self, element: Any) -> str:
        """Return the text of all paragraphs inside, nested tables too, with lines between them."""
        lines: list[str] = []
        for child in element:
            if self._is_unseen(child):
                continue
            lines.append(self._paragraph(child) if child.tag == f"{_W}p" else self._flat(child))
        return "\n".join(line for line in lines if line)

    def _paragraph(self, paragraph: Any) -> str:
        pieces: list[str] = []
        boxes: list[str] = []
        self._inline(paragraph, pieces, boxes)
        # Text boxes float: their text follows the paragraph that they are anchored in.
        return "\n".join(["".join(pieces), *boxes] if pieces or not boxes else boxes)

    def _inline(self, element: Any, pieces: list[str], boxes: list[str]) -> None:
        for child in element:
            tag = child.tag
            if tag in (f"{_W}t", _M_T):
                pieces.append(child.text or "")
            elif tag in _BREAKS:
                pieces.append(_BREAKS[tag])
            elif tag == f"{_W}txbxContent":
                boxes.append(self._flat(child))
            elif tag in (f"{_W}footnoteReference", f"{_W}endnoteReference"):
                pieces.append(self._reference(child))
            elif tag == f"{_W}r" and _is_hidden(child):
                self.hidden += 1
            elif tag == f"{_W}sym":
                pieces.append(self._symbol(child))
            elif tag in (f"{_W}checkBox", f"{_W}ddList"):
                pieces.append(_chosen(child))
            elif not self._is_unseen(child) and tag not in (f"{_W}pPr", f"{_W}rPr"):
                self._inline(child, pieces, boxes)

    def _is_unseen(self, element: Any) -> bool:
        self.deleted += element.tag == f"{_W}del"
        self.inserted += element.tag == f"{_W}altChunk"
        return element.tag in _UNSEEN

    def _symbol(self, element: Any) -> str:
        try:
            code = int(element.get(f"{_W}char", ""), 16)
        except ValueError:
            code = 0
        known = _SYMBOLS.get(element.get(f"{_W}font", "").lower())
        # In fonts of symbols a character may be written in the private area of Unicode or not.
        text = known.get(code & 0xFF) if known is not None else chr(code) if 0x20 <= code < 0xD800 else None
        self.symbols += text is None
        return text or _UNKNOWN

    def _reference(self, element: Any) -> str:
        kind = "footnote" if element.tag == f"{_W}footnoteReference" else "endnote"
        numbers = self._numbers[kind]
        number = numbers.setdefault(element.get(f"{_W}id"), len(numbers) + 1)
        return f"[{kind} {number}]"


def _children(element: Any, tag: str) -> Iterator[Any]:
    """Yield children of one tag, also those inside content controls and tracked insertions."""
    for child in element:
        if child.tag == tag:
            yield child
        elif child.tag in (f"{_W}sdt", f"{_W}sdtContent", f"{_W}ins", f"{_W}customXml"):
            yield from _children(child, tag)


def _is_hidden(run: Any) -> bool:
    vanish = run.find(f"{_W}rPr/{_W}vanish")
    return vanish is not None and vanish.get(f"{_W}val") not in _OFF


def _chosen(field: Any) -> str:
    """Return what a check box or a list of an old-style form is set to; it stands nowhere in the text."""
    if field.tag == f"{_W}checkBox":
        states = [field.find(f"{_W}{name}") for name in ("checked", "default")]
        state = next((state for state in states if state is not None), None)
        return "[x]" if state is not None and state.get(f"{_W}val") not in _OFF else "[ ]"
    entries = [entry.get(f"{_W}val", "") for entry in field.findall(f"{_W}listEntry")]
    result = field.find(f"{_W}result")
    result = field.find(f"{_W}default") if result is None else result
    index = result.get(f"{_W}val", "0") if result is not None else "0"
    return entries[int(index)] if index.isdecimal() and int(index[:9]) < len(entries) else ""
