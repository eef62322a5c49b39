"""The input of a job: from a file's records to rows, by the names of their columns."""

from __future__ import annotations

import os
import shutil
import sys
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias, cast

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from jev.batch.readers import JobError, JsonLines, Reader, Record, RowError, first_line, open_reader
from jev.schemas import Row, issues_of

STDIN = "-"

Outcomes: TypeAlias = Iterator[tuple[int, Row | RowError]]


@dataclass(frozen=True)
class Columns:
    """Where in a record a row's parts stand.

    Attributes:
        state: columns that are the state: one as it is, several as a JSON object. Empty = the column
            `state`; in a table without one all columns as a JSON object.
        id: column with the row's name; None = `id`, where there is one.
        attachments: columns with paths of files; empty = `attachments`, where there is one.
    """

    state: tuple[str, ...] = ()
    id: str | None = None
    attachments: tuple[str, ...] = ()

    @property
    def named(self) -> tuple[str, ...]:
        """All columns that were named."""
        return (*self.state, *([self.id] if self.id is not None else []), *self.attachments)


class Input:
    """The rows of a job.

    Args:
        reader: the file.
        columns: where the parts of a row stand.
        root: folder that paths of attachments are relative to.
        label: what messages call it.

    Raises:
        JobError: for a named column that the table does not have.
    """

    def __init__(self, reader: Reader, columns: Columns, root: Path, label: str) -> None:
        self.reader = reader
        self.columns = columns
        self.root = root
        self.label = label
        for name in columns.named:
            if reader.columns is not None and name not in reader.columns:
                known = ", ".join(map(repr, reader.columns[:20]))
                raise JobError(f"input {label}: there is no column {name!r}; it has {known}")

    def records(self, skip: int = 0) -> Iterator[Record]:
        """The rows as they stand in the file; JobError when it cannot be read on."""
        with _readable(self.label):
            yield from self.reader.records(skip)

    def count(self) -> int:
        """How many rows there are; JobError when it cannot be read."""
        with _readable(self.label):
            return self.reader.count()

    def digest(self) -> str:
        """What the rows are, as a hash; JobError when it cannot be read."""
        with _readable(self.label):
            return self.reader.digest()

    def rows(self, skip: int = 0) -> Outcomes:
        """Numbers, from 1, and rows, or why one cannot be decided."""
        for number, record in self.records(skip):
            yield number, self.row(record)

    def row(self, record: Any) -> Row | RowError:
        """The row that a record stands for."""
        found = row_of(record, self.columns, table=self.reader.columns is not None)
        if isinstance(found, RowError) and isinstance(record, dict):
            name = cast("dict[str, Any]", record).get(self.columns.id or "id")
            if isinstance(name, (str, int)) and not isinstance(name, bool):
                return replace(found, id=str(name))
        return found


def open_input(
    path: str | Path, columns: Columns = Columns(), *, root: Path | None = None, spool: Path | None = None
) -> Input:
    """Open the input of a job.

    Args:
        path: a file or folder by its name; `-` is JSON lines from standard input.
        columns: where the parts of a row stand.
        root: folder that paths of attachments are relative to; by default the file's own.
        spool: where standard input is kept, so that the job can be resumed. What is there already is
            used instead of standard input.

    Raises:
        JobError: it cannot be used.
        MissingExtraError: pyarrow is needed and not installed.
    """
    if str(path) == STDIN:
        if spool is None:
            raise JobError("input -: standard input needs a job that can keep it")
        if not spool.exists():
            _spool(spool)
        return Input(JsonLines(spool), columns, root or Path.cwd(), "standard input")
    where = Path(path)
    folder = where if where.is_dir() else where.parent
    with _readable(str(where)):
        reader = open_reader(where)
    return Input(reader, columns, root or folder, str(where))


@contextmanager
def _readable(label: str) -> Iterator[None]:
    try:
        yield
    except (OSError, EOFError, zlib.error) as error:
        raise JobError(f"input {label}: it cannot be read ({first_line(error)})") from None


def _spool(target: Path) -> None:
    """Keep standard input; what is there is all of it or nothing."""
    if sys.stdin is None or sys.stdin.isatty():
        raise JobError("input -: nothing is piped in")
    partial = target.with_suffix(".part")
    with partial.open("wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file, 2**20)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(target)


def row_of(record: Any, columns: Columns, *, table: bool = False) -> Row | RowError:
    """The row that a record stands for.

    Args:
        record: a JSON value, or why there is none.
        columns: where the parts of a row stand.
        table: whether the record comes from a file with columns, where all of them may be the state.
    """
    if isinstance(record, RowError):
        return record
    if isinstance(record, str) and not columns.named:
        record = {"state": record}
    if not isinstance(record, dict):
        return RowError("a row is a JSON object (or its state as a string)", type="invalid_row")
    given = cast("dict[str, Any]", record)
    missing = [name for name in columns.named if given.get(name) is None]
    # An id or attachment that a row lacks is no loss; a state is.
    absent = [name for name in missing if name in columns.state] or [
        name for name in missing if name not in given
    ]
    if absent:
        return RowError(f"the column {absent[0]!r} is missing or empty", (absent[0],), "missing")
    fields = _table_fields(given, columns) if table else dict(given)
    if columns.state:
        state = {name: given[name] for name in columns.state}
        fields["state"] = _text(next(iter(state.values()))) if len(state) == 1 else state
    if columns.id is not None:
        fields["id"] = given[columns.id]
    if columns.attachments:
        fields["attachments"] = [path for name in columns.attachments for path in _paths(given[name])]
    return _checked(fields, table=table)


def _table_fields(given: Mapping[str, Any], columns: Columns) -> dict[str, Any]:
    """The parts of a row by the columns' own names; without a `state` all others are the state."""
    used = {columns.id or "id", *(columns.attachments or ("attachments",))}
    fields: dict[str, Any] = {"id": given.get("id"), "attachments": _paths(given.get("attachments"))}
    if "state" in given:
        fields["state"] = _text(given["state"])
    else:
        fields["state"] = {name: value for name, value in given.items() if name not in used}
    return fields


def _checked(fields: dict[str, Any], *, table: bool) -> Row | RowError:
    if "state" not in fields and "attachments" not in fields:
        return RowError(
            "there is neither a state nor attachments; name the state's column with --state-column",
            type="missing",
        )
    try:
        if table:  # dates, decimals and the like
            fields = to_jsonable_python(fields)
        row = Row.model_validate({name: value for name, value in fields.items() if value is not None})
    except ValidationError as error:
        issue = issues_of(error, prefix=())[0]
        where = ".".join(map(str, issue.loc))
        return RowError(f"{where}: {issue.msg}", tuple(issue.loc), issue.type)
    except (PydanticSerializationError, ValueError) as error:
        return RowError(f"a value is not text: {str(error)[:200]}", type="invalid_row")
    if not row.attachments and row.state in ("", {}, []):
        return RowError("the state is empty and there is no attachment", ("state",), "missing")
    return row


def _text(value: Any) -> Any:
    """A cell as text: numbers and the like as they are written, JSON as it is."""
    if value is None or isinstance(value, (str, dict, list)):
        return value or ""
    return value if isinstance(value, bytes) else str(value)


def _paths(value: Any) -> list[Any]:
    if value is None or value == "":
        return []
    return cast("list[Any]", value) if isinstance(value, list) else [value]
