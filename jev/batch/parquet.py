"""The output of a job as a Parquet file: written from the ledger once all rows are done."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from jev.batch.ledger import Ledger
from jev.batch.outcome import Outcome, dumps, output_row
from jev.batch.output import kept_input
from jev.batch.readers import JobError, Record
from jev.errors import MissingExtraError
from jev.schemas import Choice, Noul, Question

if TYPE_CHECKING:
    import pyarrow as pa

ROWS = 4096
"""Most rows of a row group."""

MOST_BYTES = 128 * 2**20
"""A row group ends behind so many bytes of text, about."""


class ParquetOutput:
    """A table with a column for each value.

    For a question `q`:

    | column | noul | choice | score |
    |---|---|---|---|
    | `q` | bool: P(yes) >= 0.5 | string: the option | double: the expected level |
    | `q_probability` | P(yes) | of the option | of the most likely level |
    | `q_probabilities` | none | map of option to probability | map of level to probability |

    Besides: `row`, `id`, `input_tokens`, `output_tokens`, `model`, and `error_type` and `error` where a
    row has no answers. With the input kept its columns stand first; of an input without columns there
    is one, `input`, with each record as JSON.

    Args:
        target: the file.
        partial: the file while it is written.
        ledger: what it is written from.
        questions: the job's questions.
        inputs: the input's records behind the first so many, to be kept; None = they are not.
        schema: the input's own columns, where it has them.

    Raises:
        MissingExtraError: pyarrow is not installed.
        JobError: two columns would have one name.
    """

    def __init__(
        self,
        target: Path,
        partial: Path,
        ledger: Ledger,
        questions: Mapping[str, Question],
        *,
        inputs: Callable[[int], Iterator[Record]] | None = None,
        schema: pa.Schema | None = None,
    ) -> None:
        try:
            import pyarrow as pa  # noqa: PLC0415 - only Parquet needs it
        except ModuleNotFoundError as error:
            raise MissingExtraError("Parquet needs pyarrow: pip install 'jev-server[parquet]'") from error
        self._pa = pa
        self._target = target
        self._partial = partial
        self._ledger = ledger
        self._questions = questions
        self._inputs = inputs
        self._kept: list[pa.Field] = []
        if inputs is not None:
            fields = [pa.field("input", pa.string())] if schema is None else list(schema)
            self._kept = [one.with_nullable(True) for one in fields]  # a row that cannot be read has none
        self._as_json = schema is None
        self._schema = pa.schema([*self._kept, *self._fields()])
        names = self._schema.names
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise JobError(f"output {target}: there would be two columns named {twice[0]!r}")

    @property
    def finished(self) -> bool:
        """Whether the whole output is there already, as this job wants it."""
        kept = (self._ledger.get("output_form"), self._ledger.get("output_finished"))
        return kept == (self._form, "1") and self._target.is_file()

    def open(self) -> None:
        """There is nothing to write yet."""
        self._ledger.set(output_form=self._form, output_finished=0, output_offset=0, output_next=1)

    def enter(self, outcomes: Sequence[Outcome]) -> None:
        """A Parquet file cannot be added to after a kill, so rows stay in the ledger until the end."""

    def finish(self) -> None:
        """Write all rows and put the file in its place."""
        from pyarrow import parquet  # noqa: PLC0415

        records = self._inputs(0) if self._inputs is not None else None
        outcomes = self._ledger.outcomes()
        with parquet.ParquetWriter(self._partial, self._schema) as writer:
            while rows := self._chunk(outcomes, records):
                writer.write_table(self._table(rows))
        with self._partial.open("rb") as file:
            os.fsync(file.fileno())
        self._partial.replace(self._target)
        self._ledger.set(output_finished=1)

    def _chunk(self, outcomes: Iterator[Outcome], records: Iterator[Record] | None) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        held = 0
        for one in islice(outcomes, ROWS):
            rows.append(self._row(one, next(records)[1] if records is not None else None))
            held += _size(rows[-1])
            if held >= MOST_BYTES:
                break
        return rows

    def _table(self, rows: list[dict[str, Any]]) -> pa.Table:
        pa = self._pa
        unfit = (pa.ArrowException, TypeError, ValueError, OverflowError)
        try:
            return pa.Table.from_pylist(rows, self._schema)
        except unfit:
            pass
        # What was read as text because Python has no value for it does not fit its column, and is left out.
        for field in self._kept:
            for row in rows:
                try:
                    pa.array([row.get(field.name)], field.type)
                except unfit:
                    row[field.name] = None
        return pa.Table.from_pylist(rows, self._schema)

    def close(self) -> None:
        """There is nothing to let go of."""

    @property
    def _form(self) -> str:
        return f"parquet{' input' if self._inputs else ''}"

    def _fields(self) -> Iterator[pa.Field]:
        pa = self._pa
        yield pa.field("row", pa.int64())
        yield pa.field("id", pa.string())
        for name, question in self._questions.items():
            if isinstance(question, Noul):
                yield pa.field(name, pa.bool_())
            else:
                yield pa.field(name, pa.string() if isinstance(question, Choice) else pa.float64())
            yield pa.field(f"{name}_probability", pa.float64())
            if not isinstance(question, Noul):
                yield pa.field(f"{name}_probabilities", pa.map_(pa.string(), pa.float64()))
        yield pa.field("input_tokens", pa.int64())
        yield pa.field("output_tokens", pa.int64())
        yield pa.field("model", pa.string())
        yield pa.field("error_type", pa.string())
        yield pa.field("error", pa.string())

    def _row(self, outcome: Outcome, record: Any) -> dict[str, Any]:
        row: dict[str, Any] = {}
        if self._inputs is not None:
            if not self._as_json:
                row |= record if isinstance(record, dict) else {}
            elif kept := kept_input(record):
                row["input"] = dumps(kept["input"])
        out = output_row(outcome.number, outcome.id, outcome.body)
        row |= {"row": outcome.number, "id": outcome.id}
        if "error" in out:
            return row | {"error_type": out["error"]["type"], "error": out["error"]["message"]}
        for name, answer in out["answers"].items():
            row |= columns_of(name, answer)
        return row | {**out["usage"], "model": out["model"]}


def _size(value: Any) -> int:
    """Bytes of text in a row, about."""
    if isinstance(value, (str, bytes)):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_size, cast("dict[str, Any]", value).values()))
    return sum(map(_size, cast("list[Any]", value))) if isinstance(value, list) else 8


def columns_of(name: str, answer: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of one wire answer, by name; see `ParquetOutput`."""
    if answer["type"] == "noul":
        return {name: answer["noul"] >= 0.5, f"{name}_probability": answer["noul"]}
    given = answer["probabilities"]
    if answer["type"] == "choice":
        value, winner = answer["choice"], given[answer["choice"]]
    else:
        value, winner = answer["score"], max(given.values())
    return {name: value, f"{name}_probability": winner, f"{name}_probabilities": list(given.items())}
