"""PowerPoint presentations: slides in the order they are shown, each with its notes."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from typing import Any

from jev.extractors.archive import check_package
from jev.extractors.builder import TextBuilder, one_line
from jev.extractors.errors import Unreadable
from jev.extractors.evidence import Evidence, digest
from jev.extractors.limits import Limits

COVERAGE = "Text only: images, charts, diagrams, comments and formatting were not read"

_A = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
_P = "{http://schemas.openxmlformats.org/presentationml/2006/main}"
_MC = "{http://schemas.openxmlformats.org/markup-compatibility/2006}"
_R_ID = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}id"


def read_pptx(data: bytes, name: str, limits: Limits) -> Evidence:
    """Read a presentation (.pptx).

    Raises:
        LimitExceeded: for the archive's limits and `max_text_chars`.
        Unreadable: for a damaged, encrypted, unsafe or textless presentation.
    """
    notes = check_package(data, limits)
    from pptx import Presentation  # noqa: PLC0415 - only where one is read

    presentation = Presentation(io.BytesIO(data))
    out = TextBuilder(limits)
    found = hidden = 0
    for number, slide in enumerate(_slides(presentation), start=1):
        hidden += slide.element.get("show") in ("0", "false")
        out.add(f"Slide {number}:")
        for line in _lines(slide.element.iterchildren(f"{_P}cSld")):
            found += bool(line.strip())
            out.add(line)
        for line in _notes(slide):
            found += bool(line.strip())
            out.add(line)
    text = out.text()
    if not found:
        raise Unreadable("It has no text: no slide of the presentation has any")
    if hidden:
        notes = (*notes, f"Hidden slides were read too: {hidden}")
    return Evidence(name, "document", text, (), (COVERAGE, *notes, *out.notes), digest(data))


def _slides(presentation: Any) -> Iterator[Any]:
    listed = presentation.slides._sldIdLst
    references = [slide.get(_R_ID) for slide in listed]
    # One slide listed many times would be read many times.
    if len(set(references)) != len(references):
        raise Unreadable("It lists a slide twice")
    yield from presentation.slides


def _notes(slide: Any) -> Iterator[str]:
    if not slide.has_notes_slide:
        return
    frame = slide.notes_slide.notes_text_frame
    lines = list(_paragraphs(frame._txBody)) if frame is not None else []
    if any(line.strip() for line in lines):
        yield "Notes:"
        yield from lines


def _lines(elements: Iterable[Any]) -> Iterator[str]:
    """Yield the lines of text of shapes in document order; a table's row is one line."""
    for element in elements:
        if element.tag == f"{_MC}Fallback":
            continue
        if element.tag == f"{_A}tr":
            cells = (" ".join(_paragraphs(cell)) for cell in element.iter(f"{_A}tc"))
            yield "\t".join(one_line(cell) for cell in cells)
        elif element.tag == f"{_A}p":
            yield _paragraph(element)
        else:
            yield from _lines(element)


def _paragraphs(element: Any) -> Iterator[str]:
    for paragraph in element.iter(f"{_A}p"):
        yield _paragraph(paragraph)


def _paragraph(paragraph: Any) -> str:
    # Text is in runs and in fields (dates, slide numbers) alike.
    nodes = paragraph.iter(f"{_A}t", f"{_A}br")
    return "".join((node.text or "") if node.tag == f"{_A}t" else "\n" for node in nodes)
