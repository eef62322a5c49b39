"""The output of a job as JSON lines: written as rows are done, whole after every kill.

The ledger is what counts. Beside its rows it keeps how far the output is written; what a killed
process wrote behind that is cut off, and an output that does not fit any more is written anew.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Any

from pydantic_core import from_json, to_json

from jev.batch.ledger import Ledger
from jev.batch.outcome import Outcome, dumps, output_row
from jev.batch.readers import Record, RowError

CATCH_UP_ROWS = 1000
"""Rows of one transaction when an output is written from the ledger."""


class LinesOutput:
    """JSON lines in the order of the input or as they come.

    Args:
        target: the file that is there in the end.
        partial: the file until then.
        ledger: what it is written from.
        ordered: whether rows stand in the order of the input; else in the order they were done.
        inputs: the input's records behind the first so many, to be kept in the output; None = they are not.
    """

    def __init__(
        self,
        target: Path,
        partial: Path,
        ledger: Ledger,
        *,
        ordered: bool = True,
        inputs: Callable[[int], Iterator[Record]] | None = None,
    ) -> None:
        self._target = target
        self._partial = partial
        self._ledger = ledger
        self._ordered = ordered
        self._inputs = inputs
        self._records: Iterator[Record] | None = None
        self._file: IO[bytes] | None = None
        self._next = 1
        self._offset = 0

    @property
    def finished(self) -> bool:
        """Whether the whole output is there already, as this job wants it."""
        kept = (self._ledger.get("output_form"), self._ledger.get("output_finished"))
        return kept == (self._form, "1") and self._target.is_file()

    def open(self) -> None:
        """Take up writing where the ledger says, or from the beginning."""
        size = self._partial.stat().st_size if self._partial.exists() else -1
        offset = int(self._ledger.get("output_offset", "0"))
        fits = self._ledger.get("output_form") == self._form and 0 <= offset <= size
        fits = fits and self._ledger.get("output_finished") != "1"
        self._offset = offset if fits else 0
        self._next = int(self._ledger.get("output_next", "1")) if fits else 1
        self._file = self._partial.open("r+b" if size >= 0 else "w+b")
        self._file.truncate(self._offset)
        self._file.seek(self._offset)
        if self._ordered:
            if not fits:
                self._ledger.set(output_form=self._form, output_finished=0, output_offset=0, output_next=1)
            ready = self._ready()
            while chunk := list(islice(ready, CATCH_UP_ROWS)):
                with self._ledger.transaction():
                    self._write(chunk)
        elif not fits:
            # All at once: there is no telling later which rows an unordered file holds.
            with self._ledger.transaction():
                self._ledger.set(output_form=self._form, output_finished=0, output_offset=0)
                self._write(self._ledger.outcomes())

    def enter(self, outcomes: Sequence[Outcome]) -> None:
        """Write what can be written now that the ledger has these outcomes."""
        self._write(self._ready() if self._ordered else outcomes)

    def finish(self) -> None:
        """Put the output in its place; all rows are done."""
        assert self._file is not None
        self._file.flush()
        os.fsync(self._file.fileno())
        self.close()
        self._partial.replace(self._target)
        self._ledger.set(output_finished=1)

    def close(self) -> None:
        """Let go of the file, finished or not."""
        if self._file is not None:
            self._file.close()
            self._file = None

    @property
    def _form(self) -> str:
        return f"jsonl{'' if self._ordered else ' unordered'}{' input' if self._inputs else ''}"

    def _ready(self) -> Iterator[Outcome]:
        """Outcomes that follow the last written row without a gap."""
        wanted = self._next
        for one in self._ledger.outcomes(wanted):
            if one.number != wanted:
                return
            yield one
            wanted += 1

    def _write(self, outcomes: Iterable[Outcome]) -> None:
        assert self._file is not None
        written = False
        for one in outcomes:
            row = output_row(one.number, one.id, one.body)
            if self._inputs is not None:
                row |= self._input(one.number)
            self._offset += self._file.write(f"{dumps(row)}\n".encode())
            self._next = one.number + 1
            written = True
        if written:
            # On disk before the ledger says so.
            self._file.flush()
            os.fsync(self._file.fileno())
            self._ledger.set(output_offset=self._offset, output_next=self._next)

    def _input(self, number: int) -> dict[str, Any]:
        """The input's record of a row; rows are written in order, so the input is read alongside."""
        assert self._inputs is not None
        if self._records is None:
            self._records = self._inputs(number - 1)
        found, record = next(self._records)
        assert found == number
        return kept_input(record)


def kept_input(record: Any) -> dict[str, Any]:
    """What stands in an output row for the input's record; nothing for one that cannot be read.

    What a table may hold and JSON has not: NaN and infinities become null, bytes that are not text base64.
    """
    if isinstance(record, RowError):
        return {}
    try:
        found = to_json(record, fallback=str, inf_nan_mode="null")
    except ValueError:
        found = to_json(record, fallback=str, inf_nan_mode="null", bytes_mode="base64")
    return {"input": from_json(found)}
