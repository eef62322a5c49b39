"""The questions to review: from the lines of a review queue, or any rows, to one item a question."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError

from jev.batch.inputs import Columns, Input, open_input, row_of
from jev.batch.outcome import dumps
from jev.batch.readers import RowError
from jev.errors import JevError
from jev.schemas import Answer, Question, Row, distribution, index_of, issues_of

UNSURE = "unsure"
"""The reason of a row in the file of skipped ones: whoever reviewed it found no answer that fits."""

_ANSWERS: TypeAdapter[dict[str, Answer]] = TypeAdapter(dict[str, Answer])


class ReviewError(JevError, ValueError):
    """A review that cannot run as it is; one sentence says why."""


@dataclass(frozen=True)
class BadRow:
    """A row that cannot be reviewed: its number in the queue's file, from 1, and why."""

    number: int
    reason: str


@dataclass(frozen=True)
class File:
    """An attachment: its path as the row names it, and where it is."""

    name: str
    path: Path


@dataclass(frozen=True)
class Item:
    """One question about one row.

    Attributes:
        number: the row's number in the queue's file, from 1.
        row: as it is written when it is reviewed, without questions and answers; paths of attachments
            are relative to the output's folder.
        identity: what tells the row from others: its id, state and attachments.
        name: the question's id.
        question: what is asked.
        proposed: index of the model's answer, or of the label that the row has, among `alternatives`.
        probabilities: of the alternatives, where a model gave them.
        files: the row's attachments.
    """

    number: int
    row: Row
    identity: str
    name: str
    question: Question
    proposed: int | None = None
    probabilities: tuple[float, ...] | None = None
    files: tuple[File, ...] = ()

    @property
    def certainty(self) -> float | None:
        """Probability of the model's answer."""
        return None if self.probabilities is None else max(self.probabilities)


@dataclass
class Queue:
    """What there is to review, and the rows that cannot be."""

    items: list[Item] = field(default_factory=list[Item])
    bad: list[BadRow] = field(default_factory=list[BadRow])


def load_queue(
    path: Path,
    *,
    out: Path,
    questions: Mapping[str, Question] | None = None,
    root: Path | None = None,
    all_questions: bool = False,
) -> Queue:
    """Read a review queue as `jev batch` writes it, or rows in any form that `jev batch` reads.

    A line of a queue gives an item for its least certain `question`; other rows, and with `all_questions`
    these too, give one for each question. A question that is asked twice about one row is one item.

    Args:
        path: the file.
        out: where reviewed rows will be written: they can name attachments in its folder or below.
        questions: for rows without questions of their own.
        root: folder that paths of attachments are relative to and may not leave; None = the file's own.
        all_questions: whether to review all questions of a queue's line.

    Raises:
        JobError: the file cannot be read.
        ReviewError: reviewed rows could not name their attachments from where `out` is.
        MissingExtraError: pyarrow is needed and not installed.
    """
    source = open_input(path, root=root)
    reader = _Reader(source, out, dict(questions or {}), all_questions)
    queue = Queue()
    seen: dict[tuple[str, str], Item] = {}
    for number, record in source.records():
        try:
            for item in reader.items(number, record):
                first = seen.setdefault((item.identity, item.name), item)
                if first is item:
                    queue.items.append(item)
                elif first.question != item.question:
                    raise _Bad(f"{item.name}: row {first.number} is the same row and asks it otherwise")
        except _Bad as bad:
            queue.bad.append(BadRow(number, str(bad)))
    return queue


_NO_STATE = "it has neither a state nor attachments"


class _Bad(Exception):
    """A row that cannot be reviewed."""


@dataclass
class _Answered:
    """A row with its questions and, by question id, the proposed index and the probabilities."""

    row: Row
    questions: Mapping[str, Question]
    proposed: dict[str, tuple[int, tuple[float, ...] | None]]
    least: str | None = None


class _Reader:
    def __init__(self, source: Input, out: Path, questions: dict[str, Question], every: bool) -> None:
        self._source = source
        self._root = source.root.resolve()
        self._base = out.resolve().parent
        self._out = out
        self._questions = questions
        self._every = every

    def items(self, number: int, record: Any) -> Iterator[Item]:
        """The items of a record; _Bad if it has none."""
        found = self._line(record) if _is_answered(record) else self._plain(record)
        if not found.questions:
            raise _Bad("it brings no questions; give them with --questions")
        row, files = self._placed(found.row)
        identity = identity_of(row)
        names = [found.least] if found.least is not None and not self._every else list(found.questions)
        for name in names:
            proposed, probabilities = found.proposed.get(name, (None, None))
            question = found.questions[name]
            yield Item(number, row, identity, name, question, proposed, probabilities, files)

    def _plain(self, record: Any) -> _Answered:
        """A row, perhaps with labels."""
        row = _row(self._source.row(record))
        questions = row.questions or self._questions
        proposed: dict[str, tuple[int, tuple[float, ...] | None]] = {}
        for name, label in (row.answers or {}).items():
            if name not in questions:
                raise _Bad(f"answers.{name}: there is no such question")
            try:
                proposed[name] = index_of(questions[name], label), None
            except ValueError as error:
                raise _Bad(f"answers.{name}: {error}") from None
        return _Answered(row, questions, proposed)

    def _line(self, line: dict[str, Any]) -> _Answered:
        """A line of the queue, or of an output that kept its input."""
        row = _row(row_of(_fields(line), Columns()))
        questions = row.questions or self._questions
        try:
            answers = _ANSWERS.validate_python(line["answers"])
        except ValidationError as error:
            raise _Bad(_told(error, "answers")) from None
        proposed: dict[str, tuple[int, tuple[float, ...] | None]] = {}
        for name, answer in answers.items():
            if name not in questions:
                if not questions:
                    break
                raise _Bad(f"answers.{name}: there is no such question")
            try:
                shares = distribution(questions[name], answer)
            except ValueError as error:
                raise _Bad(f"answers.{name}: {error}") from None
            if not all(0 <= share <= 1 for share in shares):
                raise _Bad(f"answers.{name}: a probability is not between 0 and 1")
            proposed[name] = shares.index(max(shares)), shares
        least = line.get("question")
        if least is not None and not (isinstance(least, str) and least in questions) and questions:
            raise _Bad(f"question: there is no question {str(least)[:200]!r}")
        return _Answered(row, questions, proposed, least)

    def _placed(self, row: Row) -> tuple[Row, tuple[File, ...]]:
        """The row as it is written, and its attachments."""
        files = tuple(File(name, attachment_path(name, self._root)) for name in row.attachments)
        if files and not self._root.is_relative_to(self._base):
            raise ReviewError(
                f"--out {self._out}: a reviewed row names attachments below the folder of its file, and they "
                f"are in {self._root}; write it there or above"
            )
        paths = [os.path.relpath(self._root / name, self._base) for name in row.attachments]
        metadata = row.metadata
        if metadata is not None and _is_marks(metadata.get("skipped")):  # of an earlier review, not the row's
            metadata = {name: value for name, value in metadata.items() if name != "skipped"} or None
        kept = {"id": row.id, "state": row.state, "weight": row.weight, "metadata": metadata}
        return Row(**kept, attachments=paths), files


def attachment_path(name: str, root: Path) -> Path:
    """Where an attachment is; `root` is resolved.

    Raises:
        _Bad: it is not a file below the root: a row of others must not show any file of this machine.
    """
    shown = f"attachment {name[:200]!r}"
    try:
        found = (root / name).resolve()
        if not name or Path(name).is_absolute() or ".." in Path(name).parts:
            raise _Bad(f"{shown}: it is not a path below the folder of attachments")
        if not found.is_relative_to(root):
            raise _Bad(f"{shown}: it is a link out of {root}")
        if not found.is_file():
            raise _Bad(f"{shown}: there is no such file in {root}; --attachments-root names another folder")
    except (OSError, ValueError, RuntimeError) as error:  # too long, a NUL, links in a circle
        raise _Bad(f"{shown}: it cannot be read ({type(error).__name__})") from None
    return found


def identity_of(row: Row) -> str:
    """What tells a row from others: a digest of its id, state and attachments."""
    return hashlib.sha256(dumps([row.id, row.state, row.attachments]).encode()).hexdigest()[:32]


def _is_marks(value: Any) -> bool:
    """Whether it is what the file of skipped rows has for the questions that no answer fits."""
    return isinstance(value, dict) and all(one == UNSURE for one in cast("dict[str, Any]", value).values())


def _is_answered(record: Any) -> bool:
    """Whether a record is a line that `jev batch` wrote: answers with probabilities, or an error."""
    if not isinstance(record, dict):
        return False
    answers = cast("dict[str, Any]", record).get("answers")
    return isinstance(answers, dict) and any(isinstance(one, dict) for one in answers.values())


def _fields(line: dict[str, Any]) -> dict[str, Any]:
    """The fields of the row that a line is about: as it was asked, or else as it stands in the input."""
    kept = line.get("input")
    record: dict[str, Any] = (
        {"state": kept} if isinstance(kept, str) else kept if isinstance(kept, dict) else {}
    )
    asked = line if "state" in line or "attachments" in line else record
    if "state" not in asked and "attachments" not in asked:
        raise _Bad(_NO_STATE)
    fields = {name: asked[name] for name in ("state", "attachments", "questions") if name in asked}
    if isinstance(record.get("weight"), (int, float)):  # a table's column of that name is something else
        fields["weight"] = record["weight"]
    if isinstance(record.get("metadata"), dict):
        fields["metadata"] = record["metadata"]
    name = line.get("id", record.get("id"))
    return fields if name is None else {**fields, "id": name}


def _row(found: Row | RowError) -> Row:
    if isinstance(found, RowError):
        # Its own words name a flag of jev batch.
        raise _Bad(_NO_STATE if found.type == "missing" and not found.loc else found.message)
    return found


def _told(error: ValidationError, where: str) -> str:
    issue = issues_of(error, ())[0]
    return f"{'.'.join(map(str, [where, *issue.loc]))}: {issue.msg}"
