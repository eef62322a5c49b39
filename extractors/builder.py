"""Text that is put together piece by piece within a limit."""

from __future__ import annotations

import re

from jev.extractors.errors import LimitExceeded, Unreadable
from jev.extractors.limits import Limits
from jev.extractors.textfile import drop_controls

# Past the limit pieces are only counted, so that the error can give the true number, up to this many times.
_COUNT_ON = 8

_LINE_ENDS = re.compile("\r\n?|[\v\f\u2028\u2029]")
_SURROGATES = re.compile("[\ud800-\udfff]")
_BREAKS = re.compile(r"[\t\n\r\v\f\u2028\u2029]+")


class TextBuilder:
    """Collects the lines of a document's text.

    Control characters other than tab and line feed are dropped and counted; line ends become LF.
    """

    def __init__(self, limits: Limits) -> None:
        self._limit = limits.max_text_chars
        self._lines: list[str] = []
        self._chars = 0
        self._dropped = 0
        self._blank = True

    def add(self, line: str) -> None:
        """Add a line or several.

        Raises:
            LimitExceeded: for `max_text_chars`, far beyond it; `text` raises it otherwise.
        """
        if len(line) > self._limit * _COUNT_ON:
            self._chars += len(line) + 1
            raise self._exceeded(at_least=True)
        # Half a surrogate pair is no character: it could not be sent on.
        line, dropped = drop_controls(_SURROGATES.sub("\ufffd", _LINE_ENDS.sub("\n", line)))
        self._dropped += dropped
        self._chars += len(line) + 1
        self._blank = self._blank and not line.strip()
        if self._chars <= self._limit + 1:
            self._lines.append(line)
        elif self._chars > self._limit * _COUNT_ON:
            raise self._exceeded(at_least=True)

    def add_row(self, cells: list[str]) -> None:
        """Add a table's row: its cells on one line with tabs between them."""
        self.add("\t".join(one_line(cell) for cell in cells))

    @property
    def blank(self) -> bool:
        """Whether there is nothing but white space so far."""
        return self._blank

    @property
    def notes(self) -> tuple[str, ...]:
        """What was left out of the text."""
        return (f"Control characters were left out: {self._dropped}",) if self._dropped else ()

    def text(self, *, may_be_blank: bool = False) -> str:
        """Return the text without surrounding blank lines.

        Raises:
            LimitExceeded: for `max_text_chars`.
            Unreadable: if it is blank and must not be.
        """
        if self._chars - 1 > self._limit:
            raise self._exceeded(at_least=False)
        if self._blank and not may_be_blank:
            raise Unreadable("It has no text: an attachment must contain some")
        return "\n".join(self._lines).strip("\n")

    def _exceeded(self, *, at_least: bool) -> LimitExceeded:
        unit = "characters of text"
        return LimitExceeded("max_text_chars", self._limit, self._chars - 1, unit=unit, at_least=at_least)


def one_line(text: str) -> str:
    """Return `text` without tabs and line ends, as a cell of a table needs it."""
    return _BREAKS.sub(" ", text).strip()
