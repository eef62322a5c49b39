"""Labelled rows from JSONL: each with its questions and the index of each reviewed answer."""

from __future__ import annotations

import base64
import gzip
import hashlib
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any, cast

from pydantic import BaseModel, Field, ValidationError

from jev.errors import JevError
from jev.schemas import (
    BadRequestError,
    Question,
    Row,
    SystemOneRequest,
    index_of,
    issues_of,
    parse_json,
    render_text,
)
from jev.schemas.request import MAX_QUESTIONS, QuestionId

MAX_NAMED = 5
"""Most bad rows that one error names; the rest are counted."""

MAX_LINE = 64 * 2**20
"""Most bytes of one line."""


class _Asked(BaseModel):
    questions: dict[QuestionId, Question] = Field(min_length=1, max_length=MAX_QUESTIONS)


class DataError(JevError, ValueError):
    """A file of rows or questions that cannot be used; the message names the file and the rows."""


@dataclass(frozen=True)
class BadRow:
    """A row that cannot be used: its line in the file, from 1, and why."""

    number: int
    reason: str


@dataclass(frozen=True)
class LabelledRow:
    """A row with the questions that apply to it.

    Attributes:
        number: the line in its file, from 1.
        row: as it was read.
        questions: by id, the row's own or else the job's.
        gold: by question id, the index of the reviewed answer among `alternatives`; may be empty.
        folder: what the paths of attachments are relative to.
    """

    number: int
    row: Row
    questions: Mapping[str, Question]
    gold: Mapping[str, int]
    folder: Path

    @cached_property
    def state_key(self) -> str:
        """A digest of the state and of what the attachments hold, which are read once for it."""
        digest = hashlib.sha256(render_text(self.row.state).encode())
        for path in self.row.attachments:
            digest.update(b"\0" + hashlib.sha256((self.folder / path).read_bytes()).digest())
        return digest.hexdigest()

    @property
    def weight(self) -> float:
        """How much the row counts in means."""
        return self.row.weight

    def request(
        self, questions: Mapping[str, Question] | None = None, options: Mapping[str, Any] | None = None
    ) -> SystemOneRequest:
        """The request that asks this row's questions; attachments are read and go inside.

        Args:
            questions: other questions about the same state.
            options: further fields, such as `seed`.

        Raises:
            DataError: an attachment is gone, or an option is not valid; the message names the row.
        """
        body: dict[str, Any] = {
            **(options or {}),
            "state": self.row.state,
            "questions": dict(self.questions if questions is None else questions),
        }
        if self.row.attachments:
            body["files"] = [self._entry(path) for path in self.row.attachments]
        try:
            return SystemOneRequest.model_validate(body)
        except ValidationError as error:
            raise DataError(f"row {self.number}: {_told(error)}") from None

    def _entry(self, path: str) -> dict[str, str]:
        file = self.folder / path
        try:
            data = file.read_bytes()
        except OSError as error:
            raise DataError(f"row {self.number}: {file}: cannot be read ({error.strerror})") from None
        return {"name": file.name, "data": base64.b64encode(data).decode()}


def read_rows(
    path: Path, questions: Mapping[str, Question] | None = None, *, limit: int | None = None
) -> list[LabelledRow]:
    """Read a `.jsonl` or `.jsonl.gz` file of rows; empty lines are passed over but counted.

    Args:
        path: the file; attachments are relative to its folder.
        questions: for rows without questions of their own.
        limit: read the first rows only.

    Raises:
        DataError: naming the file and the first bad rows by their line numbers.
    """
    found = list(islice(each_row(path, questions), limit))
    bad = [f"row {one.number}: {one.reason}" for one in found if isinstance(one, BadRow)]
    if bad:
        more = f"; and {len(bad) - MAX_NAMED} more bad rows" if len(bad) > MAX_NAMED else ""
        raise DataError(f"{path}: {'; '.join(bad[:MAX_NAMED])}{more}")
    if not found:
        raise DataError(f"{path} has no rows")
    return [one for one in found if isinstance(one, LabelledRow)]


def each_row(path: Path, questions: Mapping[str, Question] | None = None) -> Iterator[LabelledRow | BadRow]:
    """Read a file as `read_rows` does, but give bad rows in their places.

    Raises:
        DataError: the file cannot be read, or a line is too long.
    """
    for number, line in _lines(path):
        try:
            yield _labelled(number, line, questions, path.parent)
        except DataError as error:
            yield BadRow(number, str(error))


def read_questions(path: Path) -> dict[str, Question]:
    """Read a JSON file of questions by id; a whole request body will do too.

    Raises:
        DataError: naming the file and what is wrong in it.
    """
    try:
        data = parse_json(path.read_bytes())
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    except BadRequestError as error:
        raise DataError(f"{path}: {error.issues[0].msg}") from None
    inner = cast("dict[str, Any]", data).get("questions") if isinstance(data, dict) else None
    whole = isinstance(inner, dict) and "type" not in inner
    try:
        return _Asked.model_validate({"questions": inner if whole else data}).questions
    except ValidationError as error:
        raise DataError(f"{path}: {_told(error)}") from None


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Each line that is not empty, with its number."""
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as stream:
            number = 0
            while line := stream.readline(MAX_LINE + 1):
                number += 1
                if len(line) > MAX_LINE:
                    raise DataError(f"{path}: row {number}: the line has more than {MAX_LINE} bytes")
                if line.strip():
                    yield number, line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: it is not a whole gzip file ({error})") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from None


def _labelled(
    number: int, line: bytes, questions: Mapping[str, Question] | None, folder: Path
) -> LabelledRow:
    try:
        row = Row.model_validate(parse_json(line))
    except BadRequestError as error:
        raise DataError(error.issues[0].msg) from None
    except ValidationError as error:
        raise DataError(_told(error)) from None
    asked = row.questions or questions
    if not asked:
        raise DataError("questions: it has none, and none were given for all rows")
    if not row.state and not row.attachments:
        raise DataError("it has neither a state nor attachments")
    for path in row.attachments:
        _check_attachment(path, folder)
    gold: dict[str, int] = {}
    for name, label in (row.answers or {}).items():
        if name not in asked:
            raise DataError(f"answers.{name}: there is no such question")
        try:
            gold[name] = index_of(asked[name], label)
        except ValueError as error:
            raise DataError(f"answers.{name}: {error}") from None
    return LabelledRow(number, row, asked, gold, folder)


def _check_attachment(path: str, folder: Path) -> None:
    """Refuse paths that leave the data's folder: rows of others must not send any file of this machine."""
    parts = PurePosixPath(path)
    if not path or parts.is_absolute() or ".." in parts.parts or "\0" in path:
        raise DataError(f"attachments: {path!r} is not a path below the data's folder")
    file = folder / path
    try:
        there, inside = file.is_file(), file.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError) as error:  # a name that is too long, links in a circle
        raise DataError(f"attachments: {path[:200]!r} cannot be read ({type(error).__name__})") from None
    if not there:
        raise DataError(f"attachments: {file} is not there")
    if not inside:
        raise DataError(f"attachments: {path!r} is a link out of the data's folder")


def _told(error: ValidationError) -> str:
    issue = issues_of(error, ())[0]
    where = ".".join(map(str, issue.loc))
    return f"{where}: {issue.msg}" if where else issue.msg
