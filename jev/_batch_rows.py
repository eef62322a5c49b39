"""Rows given to `batch`: what each one asks about, what became of it, and its columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypedDict, TypeVar, cast

from jev._attachments import Attachable, LoadedFile, UploadedFile, listed, load_all
from jev._body import DecideOptions, Questions, State, build_body
from jev.errors import AuthenticationError, InvalidRequestError, JevError, PermissionDeniedError
from jev.results import Decision
from jev.retry import RetryPolicy
from jev.schemas import ChoiceAnswer, NoulAnswer, Row

D = TypeVar("D", bound=Decision)

Progress: TypeAlias = Callable[[int, int | None], None]
"""Called with the rows that are done and all rows; None where nobody knows how many there are."""

HOPELESS = (AuthenticationError, PermissionDeniedError)
"""Errors that every other row would get too: they end a batch."""

ERROR_COLUMN = "error"


class RowOptions(TypedDict, total=False):
    """How `batch` takes rows.

    Attributes:
        concurrency: rows that are asked at once; 8 by default. Together in one step in process.
        progress: called after each row with the rows done and all rows, the second None where the number
            is not known; in the thread that called `batch`.
        state_columns: the state of rows that are mappings or lines of a table: one column as it is,
            several as an object. By default all columns as an object.
        id_column: the rows' ids.
        attachment_column: paths of files, one or a list in each row.
        folder: what relative paths of attachments are relative to; by default the working directory.
        retry: when a row is tried again. By default as the client does, but for ten minutes at least,
            unless the client does not try again at all. No meaning in process.
    """

    concurrency: int
    progress: Progress | None
    state_columns: str | Sequence[str] | None
    id_column: str | None
    attachment_column: str | None
    folder: str | PathLike[str] | None
    retry: RetryPolicy | None


class BatchOptions(RowOptions, DecideOptions, total=False):
    """The options of `batch`: how rows are taken (see `RowOptions`), and those of `decide`.

    Attachments given as an option belong to every row, before its own.
    """


@dataclass(frozen=True, kw_only=True)
class RowResult(Generic[D]):
    """What became of one row; exactly one of `decision` and `error` is there.

    Attributes:
        number: its place among the rows, from 0.
        row: the row as it was given.
        id: the id that it brought.
        decision: the answers.
        error: why there are none.
    """

    number: int
    row: Any
    id: str | None = None
    decision: D | None = None
    error: Exception | None = None

    def record(self) -> dict[str, Any]:
        """The row's own columns, those of its answers, and `error`.

        A row that is no mapping is one column, `state`.
        """
        given: object = self.row
        own = {ERROR_COLUMN: None if self.error is None else str(self.error)}
        answers = {} if self.decision is None else columns_of(self.decision)
        if isinstance(given, Mapping):
            return {**cast("Mapping[str, Any]", given), **answers, **own}
        if isinstance(given, Row):
            return {**given.model_dump(exclude_none=True), **answers, **own}
        return {"state": given, **answers, **own}


def columns_of(decision: Decision) -> dict[str, Any]:
    """The columns of a decision. For a question `q` they are `q` and `q_probability`.

    `q` is true or false for a noul (at P(yes) >= 0.5), the option of a choice, the expected level of a
    score; `q_probability` is P(yes), or the largest probability.
    """
    columns: dict[str, Any] = {}
    for name, answer in decision.answers.items():
        probability = f"{name}_probability"
        if isinstance(answer, NoulAnswer):
            columns[name], columns[probability] = answer.yes, answer.noul
            continue
        columns[name] = answer.choice if isinstance(answer, ChoiceAnswer) else answer.score
        columns[probability] = max(answer.probabilities.values())
    return columns


@dataclass(frozen=True)
class Item:
    """A row on its way: what to ask, or why it cannot be asked."""

    number: int
    row: Any
    id: str | None = None
    state: State = ""
    attachments: tuple[Attachable, ...] = ()
    questions: Questions | None = None
    error: Exception | None = None

    def done(self, outcome: D | Exception) -> RowResult[D]:
        """What became of it."""
        failed = isinstance(outcome, Exception)
        return RowResult(
            number=self.number,
            row=self.row,
            id=self.id,
            decision=None if failed else outcome,
            error=outcome if failed else None,
        )


@dataclass(frozen=True)
class Job:
    """The arguments of one `batch`, checked.

    Attributes:
        questions: what is asked of rows without questions of their own.
        options: of `decide`, without attachments.
        shared: attachments of every row.
        rows: how rows are taken.
    """

    questions: Questions | type[Any]
    options: DecideOptions
    shared: tuple[LoadedFile | UploadedFile, ...]
    rows: RowOptions

    @classmethod
    def of(cls, questions: Questions | type[Any], options: BatchOptions) -> Job:
        """Check the arguments before anything is read or sent.

        Raises:
            TypeError: for an unknown option or questions that cannot be asked.
            ValueError: for an option out of range.
            OSError: for an attachment of all rows that cannot be read.
        """
        given: dict[str, Any] = dict(options)
        rows: dict[str, Any] = {name: given.pop(name) for name in RowOptions.__annotations__ if name in given}
        shared = load_all(listed(given.pop("attachments", None)))  # once: a file object can be read once only
        if rows.setdefault("concurrency", 8) < 1:
            raise ValueError(f"concurrency must be 1 or more, got {rows['concurrency']!r}")
        decide = cast(DecideOptions, given)
        build_body("", questions, decide)
        return cls(questions, decide, shared, cast(RowOptions, rows))

    @property
    def concurrency(self) -> int:
        """Rows at once."""
        return self.rows.get("concurrency", 8)

    def patient(self, policy: RetryPolicy) -> RetryPolicy:
        """When rows are tried again, for a client with this policy."""
        given = self.rows.get("retry")
        if given is not None or policy.max_retries == 0:
            return given or policy
        return RetryPolicy(
            max_retries=max(policy.max_retries, 8),
            backoff=policy.backoff,
            max_backoff=max(policy.max_backoff, 30.0),
            jitter=policy.jitter,
            statuses=policy.statuses,
            budget=max(policy.budget, 600.0),
        )

    def items(self, rows: Iterable[Any]) -> Iterator[Item]:
        """Rows as items, one by one as they are wanted."""
        for number, row in enumerate(rows):
            try:
                yield self._item(number, row)
            except (JevError, ValueError) as error:
                yield Item(number, row, error=error)

    def report(self, done: int, total: int | None) -> None:
        """Tell how far the batch is."""
        progress = self.rows.get("progress")
        if progress is not None:
            progress(done, total)

    def options_of(self, item: Item) -> DecideOptions:
        """The options of `decide` for one row."""
        attachments = (*self.shared, *item.attachments)
        return {**self.options, "attachments": attachments} if attachments else self.options

    def _item(self, number: int, row: Any) -> Item:
        if isinstance(row, Row):
            if row.questions is not None and isinstance(self.questions, type):
                raise InvalidRequestError.at(
                    "questions", msg="A row cannot have questions of its own where a class is asked"
                )
            paths = self._paths(row.attachments)
            return Item(number, row, row.id, row.state, paths, row.questions)
        if not isinstance(row, Mapping):
            return Item(number, row, state=row)
        record = cast("Mapping[str, Any]", row)
        id_column, files = self.rows.get("id_column"), self.rows.get("attachment_column")
        id = None if id_column is None else _cell(record, id_column)
        attachments = () if files is None else self._paths(_cell(record, files))
        state = self._state(record, {id_column, files})
        return Item(number, row, None if id is None else str(id), state, attachments)

    def _state(self, record: Mapping[str, Any], used: set[str | None]) -> State:
        columns = self.rows.get("state_columns")
        if columns is None:
            return {name: _plain(value) for name, value in record.items() if name not in used}
        if not isinstance(columns, str):
            return {name: _plain(_cell(record, name)) for name in columns}
        value = _plain(_cell(record, columns))
        if value is None or value == "":
            raise InvalidRequestError.at("state", msg=f"The column {columns!r} is empty", type="missing")
        return cast(State, value) if isinstance(value, (str, Mapping, Sequence)) else str(value)

    def _paths(self, cell: Any) -> tuple[Attachable, ...]:
        cell = _plain(cell)
        if cell is None or cell == "":
            return ()
        folder = Path(self.rows.get("folder") or "")
        entries = cast("Sequence[Any]", cell) if isinstance(cell, (list, tuple)) else [cell]
        return tuple(
            folder / one if isinstance(one, (str, PathLike)) else _attachable(one) for one in entries
        )


def _attachable(one: Any) -> Attachable:
    if isinstance(one, (bytes, UploadedFile)):
        return one
    raise InvalidRequestError.at("files", msg=f"An attachment is a path, got {type(one).__name__}")


def _cell(record: Mapping[str, Any], name: str) -> Any:
    if name not in record:
        raise InvalidRequestError.at(name, msg="The row has no such column", type="missing")
    return record[name]


def _plain(value: Any) -> Any:
    """A value as JSON can have it: tables say "nothing" with a number that is none."""
    return None if isinstance(value, float) and math.isnan(value) else value
