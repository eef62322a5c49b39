"""The review queue: rows whose answers are uncertain, the most uncertain first, with what they are about."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from jev.batch.ledger import Ledger
from jev.batch.outcome import Outcome, certainty_of, dumps, output_row
from jev.batch.output import kept_input
from jev.batch.readers import Record

Asked: TypeAlias = Callable[[Any], Mapping[str, Any]]
"""From an input record to what was asked about it: `state`, `attachments` and `questions` of the row."""


def write_review(
    target: Path,
    ledger: Ledger,
    below: float,
    inputs: Callable[[int], Iterator[Record]],
    asked: Asked,
    scratch: Path,
) -> int:
    """Write the rows whose least certain answer is below a bound; returns how many.

    A line is a row of the output with `certainty`, the `question` it is of, what was `asked` (so that it
    can be answered without the job), and the `input` record.
    Certainty is the probability of an answer's winner: max(p, 1 - p) for a noul, else the largest.

    Args:
        target: a JSON lines file; what is there is replaced.
        ledger: of the job; all rows are done.
        below: the bound.
        inputs: the input's records behind the first so many.
        asked: what was asked about a record.
        scratch: file to sort them in; it is removed.
    """
    scratch.unlink(missing_ok=True)
    db = sqlite3.connect(scratch, isolation_level=None)
    try:
        db.execute("PRAGMA journal_mode=OFF")
        db.execute("CREATE TABLE lines (certainty REAL, number INTEGER, line TEXT)")
        db.execute("BEGIN")
        db.executemany("INSERT INTO lines VALUES (?, ?, ?)", _lines(ledger, below, inputs, asked))
        db.execute("COMMIT")
        count = 0
        partial = target.with_name(target.name + ".part")
        with partial.open("w", encoding="utf-8") as file:
            for (line,) in db.execute("SELECT line FROM lines ORDER BY certainty, number"):
                file.write(f"{line}\n")
                count += 1
            file.flush()
            os.fsync(file.fileno())
    finally:
        db.close()
        scratch.unlink(missing_ok=True)
    partial.replace(target)
    return count


def _lines(
    ledger: Ledger, below: float, inputs: Callable[[int], Iterator[Record]], asked: Asked
) -> Iterator[tuple[float, int, str]]:
    for outcome, (number, record) in zip(ledger.outcomes(), inputs(0), strict=True):
        if outcome.certainty is not None and outcome.certainty < below:
            yield outcome.certainty, number, dumps(review_row(outcome, record, asked(record)))


def review_row(outcome: Outcome, record: object, asked: Mapping[str, Any]) -> dict[str, object]:
    """A line of the queue."""
    row = output_row(outcome.number, outcome.id, outcome.body)
    sure = {name: certainty_of(answer) for name, answer in row["answers"].items()}
    least = min(sure, key=lambda name: sure[name])
    head = {name: row[name] for name in ("row", "id") if name in row}
    return {
        **head,
        "certainty": sure[least],
        "question": least,
        "answers": row["answers"],
        **asked,
        **kept_input(record),
    }
