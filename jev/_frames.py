"""Tables given to `batch`: rows out of them, columns into them. No library is loaded that is not there."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, Protocol, TypeAlias, cast, runtime_checkable

from jev._batch_rows import ERROR_COLUMN, Job, RowResult, columns_of
from jev._body import build_body
from jev._extras import extra_named

CHUNK = 1024
"""Rows of a table that are Python objects at once."""

Kind: TypeAlias = Literal["bool", "text", "number"]
Column: TypeAlias = tuple[str, Kind, list[Any]]
"""A new column: its name, what it holds, and a value for each row; None where there is none."""

_KINDS: Mapping[str, Kind] = {"noul": "bool", "choice": "text", "score": "number"}


@runtime_checkable
class ArrowStream(Protocol):
    """A table with Arrow's stream interface: pandas and polars DataFrames, pyarrow Tables and others."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Its rows."""
        ...


class ArrowDataset(Protocol):
    """A `pyarrow.dataset.Dataset`."""

    def to_table(self, columns: Any = None, filter: Any = None) -> Any:
        """All of it."""
        ...

    def scanner(self, columns: Any = None, filter: Any = None) -> Any:
        """What reads it."""
        ...


@dataclass(frozen=True)
class Frame:
    """A table and how its library wants it handled.

    Attributes:
        names: of its columns.
        count: its rows.
        records: yields rows as dictionaries.
        extended: returns the table with more columns.
        new: names and kinds of the columns that a batch adds.
    """

    names: Sequence[str]
    count: int
    records: Callable[[], Iterator[Mapping[str, Any]]]
    extended: Callable[[list[Column]], Any]
    new: Mapping[str, Kind]

    def answered(self, results: Sequence[RowResult[Any]]) -> Any:
        """The table with what became of its rows, which `results` has in their order."""
        rows = [columns_of(one.decision) if one.decision is not None else {} for one in results]
        columns: list[Column] = [
            (name, kind, [row.get(name) for row in rows]) for name, kind in self.new.items()
        ]
        errors = [None if one.error is None else str(one.error) for one in results]
        return self.extended([*columns, (ERROR_COLUMN, "text", errors)])


def frame_of(rows: Any, job: Job) -> Frame | None:
    """The table that `rows` is, or None if it is none.

    Raises:
        ValueError: for a column that a question or `error` would need and the table has, a column that
            is there twice, or one that an option names and the table does not have.
        MissingExtraError: for a table that only pyarrow can read, without it.
    """
    frame = _opened(rows, _new_columns(job))
    if frame is not None:
        _check(frame, job)
    return frame


def _opened(rows: Any, new: Mapping[str, Kind]) -> Frame | None:
    if _is(rows, "pandas", "DataFrame"):
        return _pandas(rows, new)
    if _is(rows, "polars", "DataFrame"):
        return _polars(rows, new)
    if _is(rows, "pyarrow", "Table"):
        return _arrow(rows, new)
    if "pyarrow.dataset" in sys.modules and isinstance(rows, sys.modules["pyarrow.dataset"].Dataset):
        dataset = sys.modules["pyarrow.dataset"]
        return _arrow(rows.to_table(), new, dataset.dataset)
    if isinstance(rows, ArrowStream) and not isinstance(rows, type):
        with extra_named("A table of this kind", "parquet"):
            pyarrow = import_module("pyarrow")
        return _arrow(pyarrow.table(rows), new)
    return None


def _is(value: Any, package: str, name: str) -> bool:
    """Whether a value is of a library's class or one made from it; the library is not loaded for that."""
    module = sys.modules.get(package)
    return module is not None and isinstance(value, getattr(module, name))


def _new_columns(job: Job) -> dict[str, Kind]:
    new: dict[str, Kind] = {}
    for name, question in build_body("", job.questions, job.options)["questions"].items():
        columns: dict[str, Kind] = {
            name: _KINDS.get(question.get("type"), "text"),
            f"{name}_probability": "number",
        }
        for column, kind in columns.items():
            if column in new or column == ERROR_COLUMN:
                raise ValueError(f"two new columns would be named {column!r}: rename the question")
            new[column] = kind
    return new


def _check(frame: Frame, job: Job) -> None:
    twice = sorted({name for name in frame.names if frame.names.count(name) > 1})
    if twice:
        raise ValueError(f"the table has two columns named {twice[0]!r}")
    for name in (*frame.new, ERROR_COLUMN):
        if name in frame.names:
            raise ValueError(f"the table has a column {name!r} already: rename it, or the question")
    chosen = job.rows.get("state_columns")
    states = [chosen] if isinstance(chosen, str) else list(chosen or ())
    for name in (*states, job.rows.get("id_column"), job.rows.get("attachment_column")):
        if name is not None and name not in frame.names:
            known = ", ".join(map(repr, frame.names[:20]))
            raise ValueError(f"the table has no column {name!r}; it has {known}")


def _pandas(frame: Any, new: Mapping[str, Kind]) -> Frame:
    pandas = import_module("pandas")
    names = [str(name) for name in frame.columns]

    def records() -> Iterator[Mapping[str, Any]]:
        for start in range(0, len(frame), CHUNK):
            chunk = frame.iloc[start : start + CHUNK]
            cells = [_cells(chunk.iloc[:, index]) for index in range(len(names))]
            for values in zip(*cells, strict=True):
                yield dict(zip(names, values, strict=True))

    def extended(columns: list[Column]) -> Any:
        types = {"bool": "boolean", "text": None, "number": "float64"}
        # Arrays have no index of their own, so rows are never matched by theirs.
        added = {name: pandas.Series(values, dtype=types[kind]).array for name, kind, values in columns}
        return frame.assign(**added)

    return Frame(names, len(frame), records, extended, new)


def _cells(column: Any) -> list[Any]:
    """The values of a pandas column as Python objects; None where there is none."""
    gone = column.isna().tolist()
    return [None if missing else value for value, missing in zip(column.tolist(), gone, strict=True)]


def _polars(frame: Any, new: Mapping[str, Kind]) -> Frame:
    polars = import_module("polars")

    def records() -> Iterator[Mapping[str, Any]]:
        return frame.iter_rows(named=True, buffer_size=CHUNK)

    def extended(columns: list[Column]) -> Any:
        types = {"bool": polars.Boolean, "text": polars.String, "number": polars.Float64}
        return frame.with_columns(
            [polars.Series(name, values, types[kind]) for name, kind, values in columns]
        )

    return Frame(frame.columns, frame.height, records, extended, new)


def _arrow(table: Any, new: Mapping[str, Kind], wrap: Callable[[Any], Any] = lambda table: table) -> Frame:
    pyarrow = import_module("pyarrow")

    def records() -> Iterator[Mapping[str, Any]]:
        for batch in table.to_batches(CHUNK):
            yield from cast("list[dict[str, Any]]", batch.to_pylist())

    def extended(columns: list[Column]) -> Any:
        types = {"bool": pyarrow.bool_(), "text": pyarrow.string(), "number": pyarrow.float64()}
        longer = table
        for name, kind, values in columns:
            longer = longer.append_column(name, pyarrow.array(values, types[kind]))
        return wrap(longer)

    return Frame(table.column_names, table.num_rows, records, extended, new)
