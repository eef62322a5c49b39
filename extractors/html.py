"""Web pages: the text a reader sees, in order; tables as rows. Nothing is loaded or run."""

from __future__ import annotations

import re
from typing import Any

from jev.extractors.builder import TextBuilder, one_line
from jev.extractors.errors import LimitExceeded
from jev.extractors.evidence import Evidence, digest
from jev.extractors.limits import Limits
from jev.extractors.textfile import decode

_UNSEEN = frozenset(
    [
        *("script", "style", "template", "noscript", "iframe", "object", "embed", "applet"),
        *("datalist", "audio", "video", "canvas"),
    ]
)
_BLOCKS = frozenset(
    [
        *("address", "article", "aside", "blockquote", "body", "caption", "center", "dd", "details"),
        *("dialog", "dir", "div", "dl", "dt", "fieldset", "figcaption", "figure", "footer", "form"),
        *("h1", "h2", "h3", "h4", "h5", "h6", "head", "header", "hr", "html", "legend", "li", "main"),
        *("menu", "nav", "ol", "optgroup", "option", "p", "pre", "section", "select", "summary"),
        *("table", "tbody", "td", "textarea", "tfoot", "th", "thead", "title", "tr", "ul"),
    ]
)
_SPACE = re.compile(r"[ \t\n\r\f]+")
_HIDDEN_STYLE = re.compile(r"(?i)(?:display\s*:\s*none|visibility\s*:\s*(?:hidden|collapse))\s*(?:!|;|$)")
_CHUNK = 64 * 1024


def read_html(data: bytes, name: str, limits: Limits) -> Evidence:
    """Read a web page.

    Raises:
        LimitExceeded: for `max_markup_bytes`, `max_markup_nodes` or `max_text_chars`.
        Unreadable: if it has no visible text or its encoding is unknown.
    """
    check_markup(len(data), limits)
    markup, notes = decode(data)
    text, more = html_text(markup, limits)
    return Evidence(name, "text", text, (), (*notes, *more), digest(data))


def check_markup(size: int, limits: Limits) -> None:
    """Refuse a page of too many bytes, before it is decoded."""
    if size > limits.max_markup_bytes:
        raise LimitExceeded("max_markup_bytes", limits.max_markup_bytes, size, unit="bytes of HTML")


def html_text(markup: str, limits: Limits, *, may_be_blank: bool = False) -> tuple[str, tuple[str, ...]]:
    """Return the visible text of a page and notes on what was left out."""
    from lxml import etree  # noqa: PLC0415 # pyright: ignore[reportAttributeAccessIssue]

    page = _Page(limits)
    # As a stream of events: a page of tags alone would be a thousand times its size as a tree.
    parser = etree.HTMLParser(target=page, recover=True, no_network=True, huge_tree=False)
    for start in range(0, len(markup), _CHUNK):
        parser.feed(markup[start : start + _CHUNK])
    parser.close()
    text = page.out.text(may_be_blank=may_be_blank)
    notes = page.out.notes
    if page.pictures:
        notes = (*notes, f"Pictures on the page were not read: {page.pictures}")
    if page.hidden:
        notes = (*notes, f"Hidden parts of the page were not read: {page.hidden}")
    return text, notes


class _Row:
    """The table row being read: its cells, each a list of lines, and whether the last cell is open."""

    def __init__(self) -> None:
        self.cells: list[list[str]] = []
        self.open = False


class _Page:
    """Receives the parser's events and lays the text out in lines.

    A row with one cell is laid out like any block, since tables are also used to place things. A
    table inside a cell ends the row so far, for the same reason.
    """

    def __init__(self, limits: Limits) -> None:
        self.out = TextBuilder(limits)
        self.pictures = 0
        self.hidden = 0
        self._limit = limits.max_markup_nodes
        self._nodes = 0
        self._line: list[str] = []
        self._pre = 0
        self._unseen = 0
        self._seen_hidden = False
        self._by_style = False
        self._tables: list[_Row] = []
        self._lists: list[int | None] = []

    def start(self, tag: str, attributes: Any) -> None:
        """Open an element."""
        self._count()
        if self._unseen:
            self._unseen += 1
            return
        hidden = "hidden" in attributes or _HIDDEN_STYLE.search(attributes.get("style", "")) is not None
        if tag in _UNSEEN or hidden:
            self._unseen = 1
            self._by_style = hidden and tag not in _UNSEEN
            self._seen_hidden = False
            return
        if tag in _BLOCKS or tag == "br":
            self._break()
        if tag in _OPEN:
            _OPEN[tag](self, attributes)

    def end(self, tag: str) -> None:
        """Close an element."""
        if self._unseen:
            self._unseen -= 1
            return
        if tag in _BLOCKS:
            self._break()
        if tag in _CLOSE:
            _CLOSE[tag](self)

    def data(self, text: str) -> None:
        """Add text."""
        self._count()
        if not self._unseen:
            self._line.append(text)
        elif self._by_style and not self._seen_hidden and text.strip():
            self._seen_hidden = True
            self.hidden += 1

    def comment(self, text: str) -> None:
        """Count a comment; it is not seen."""
        del text
        self._count()

    def close(self) -> None:
        """End the page."""
        self._break()
        while self._tables:
            self._close_table()

    def _count(self) -> None:
        self._nodes += 1
        if self._nodes > self._limit:
            raise LimitExceeded(
                "max_markup_nodes", self._limit, self._nodes, unit="tags and texts", at_least=True
            )

    def _break(self) -> None:
        """End the line."""
        if not self._line:
            return
        text = "".join(self._line)
        self._line = []
        if not self._pre:
            text = _SPACE.sub(" ", text).strip(" ")
        if text.strip():
            self._add(text)

    def _add(self, line: str) -> None:
        row = self._tables[-1] if self._tables else None
        if row and row.open:
            row.cells[-1].append(line)
        else:
            self.out.add(line)

    def _open_table(self, attributes: Any) -> None:
        del attributes
        if self._tables:
            self._end_row()
            # Text after the inner table still belongs to the outer cell.
            self._tables[-1].cells = [[]] if self._tables[-1].open else []
        self._tables.append(_Row())

    def _close_table(self) -> None:
        if self._tables:
            self._end_row()
            self._tables.pop()

    def _open_row(self, attributes: Any) -> None:
        del attributes
        self._close_row()

    def _close_row(self) -> None:
        if self._tables:
            self._end_row()
            self._tables[-1].open = False

    def _end_row(self) -> None:
        row = self._tables[-1]
        cells, row.cells = row.cells, []
        if len(cells) == 1:
            for line in cells[0]:
                self.out.add(line)
        elif any(cells):
            self.out.add_row(["\n".join(lines) for lines in cells])

    def _open_cell(self, attributes: Any) -> None:
        del attributes
        if self._tables:
            self._tables[-1].cells.append([])
            self._tables[-1].open = True

    def _close_cell(self) -> None:
        if self._tables:
            self._tables[-1].open = False

    def _open_list(self, attributes: Any) -> None:
        del attributes
        self._lists.append(None)

    def _open_numbered(self, attributes: Any) -> None:
        start = attributes.get("start", "").strip()
        self._lists.append(int(start) if re.fullmatch(r"-?\d{1,6}", start, re.ASCII) else 1)

    def _close_list(self) -> None:
        if self._lists:
            self._lists.pop()

    def _open_item(self, attributes: Any) -> None:
        del attributes
        number = self._lists[-1] if self._lists else None
        if number is None:
            self._line.append("- ")
        else:
            self._line.append(f"{number}. ")
            self._lists[-1] = number + 1

    def _open_pre(self, attributes: Any) -> None:
        del attributes
        self._pre += 1

    def _close_pre(self) -> None:
        self._pre -= 1

    def _picture(self, attributes: Any) -> None:
        self.pictures += 1
        if alt := one_line(attributes.get("alt", "")):
            self._line.append(f"[picture: {alt}]")

    def _input(self, attributes: Any) -> None:
        kind = attributes.get("type", "text").strip().lower()
        if kind in ("checkbox", "radio"):
            self._line.append("[x] " if "checked" in attributes else "[ ] ")
        elif kind not in ("hidden", "password"):
            self._line.append(attributes.get("value", ""))

    def _option(self, attributes: Any) -> None:
        self._line.append("[x] " if "selected" in attributes else "[ ] ")


_OPEN = {
    "table": _Page._open_table,
    "tr": _Page._open_row,
    "td": _Page._open_cell,
    "th": _Page._open_cell,
    "ul": _Page._open_list,
    "ol": _Page._open_numbered,
    "li": _Page._open_item,
    "pre": _Page._open_pre,
    "textarea": _Page._open_pre,
    "img": _Page._picture,
    "input": _Page._input,
    "option": _Page._option,
}
_CLOSE = {
    "table": _Page._close_table,
    "tr": _Page._close_row,
    "td": _Page._close_cell,
    "th": _Page._close_cell,
    "ul": _Page._close_list,
    "ol": _Page._close_list,
    "pre": _Page._close_pre,
    "textarea": _Page._close_pre,
}
