"""From rows to requests: the job's questions and options, the row's state, its files inline."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from jev._attachments import load
from jev.batch.outcome import dumps
from jev.batch.readers import RowError
from jev.errors import APIError
from jev.schemas import ATTACHMENT_FIELDS, Attachment, Question, Row, SystemOneRequest, issues_of, render_text

MAX_FILE = 64 * 2**20
"""Bytes of the largest attachment that is read; what answers the row may allow less."""


@dataclass(frozen=True)
class Ask:
    """A row that is ready to be asked.

    Attributes:
        number: the row's number, from 1.
        id: the caller's name for it.
        request: what to ask.
        key: what it asks, as a digest: rows of one key get one answer.
        weight: bytes that it holds, about.
        files: how many attachments it has.
    """

    number: int
    id: str | None
    request: SystemOneRequest
    key: bytes
    weight: int
    files: int = 0


@dataclass(frozen=True)
class Bad:
    """A row that cannot be asked, and why."""

    number: int
    id: str | None
    error: RowError

    weight = 0
    files = 0


class Requests:
    """Turns rows into requests.

    Args:
        template: the job's options and questions, with any state.
        questions: whether the template's questions are the job's; without, each row brings its own.
        root: folder that paths of attachments are relative to, and that they may not leave.
        own_questions: whether rows may bring questions of their own.
    """

    def __init__(
        self, template: SystemOneRequest, *, questions: bool, root: Path, own_questions: bool = True
    ) -> None:
        self._template = template
        self._questions = template.questions if questions else None
        self._own_questions = own_questions
        self._root = root.resolve()
        options = template.model_dump(mode="json", exclude={"state", "questions", *ATTACHMENT_FIELDS})
        self._options = dumps(options).encode()
        self._digest = _digest(self._questions) if self._questions is not None else b""

    def prepared(self, rows: Iterable[tuple[int, Row | RowError]]) -> Iterator[Ask | Bad]:
        """Requests of rows, one by one as they are wanted."""
        for number, row in rows:
            yield self.prepare(number, row)

    def prepare(self, number: int, row: Row | RowError) -> Ask | Bad:
        """The request of one row; its files are read."""
        if isinstance(row, RowError):
            return Bad(number, row.id, row)
        if row.questions is not None and not self._own_questions:
            error = RowError(
                "a row with questions of its own needs a JSON lines output", ("questions",), "value_error"
            )
            return Bad(number, row.id, error)
        questions = row.questions if row.questions is not None else self._questions
        if questions is None:
            return Bad(number, row.id, RowError("neither the row nor the job has questions", type="missing"))
        try:
            files = [self._file(path, index) for index, path in enumerate(row.attachments)]
        except _BadFileError as bad:
            return Bad(number, row.id, bad.error)
        digest = self._digest if row.questions is None else _digest(questions)
        state = render_text(row.state)
        if isinstance(row.state, str):
            state = "\0" + state  # text that looks like JSON is not that JSON to a server
        key = hashlib.sha256(b"\0".join((self._options, digest, state.encode())))
        for file in files:
            key.update(f"\0{file.name}\0".encode() + (file.data or "").encode())
        update: dict[str, Any] = {"state": row.state, "questions": questions}
        if files:
            update["files"] = files
        request = self._template.model_copy(update=update)
        weight = len(state) + sum(len(file.data or "") for file in files)
        return Ask(number, row.id, request, key.digest()[:16], weight, len(files))

    def _file(self, path: str, index: int) -> Attachment:
        def refuse(message: str) -> _BadFileError:
            where = ("attachments", index)
            return _BadFileError(RowError(f"Attachment {path[:200]!r}: {message}", where, "attachment"))

        try:
            found = (self._root / path).resolve()
            if not found.is_relative_to(self._root) or Path(path).is_absolute():
                raise refuse(f"it is not in the folder {self._root}")
            if not found.is_file():
                raise refuse("there is no such file")
            if (size := found.stat().st_size) > MAX_FILE:
                raise refuse(f"it has {size} bytes, the limit is {MAX_FILE}")
            return Attachment.model_validate(load(found, name=Path(path).name).inline())
        except (OSError, ValueError, RuntimeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            if isinstance(error, ValidationError):
                reason = issues_of(error)[0].msg
            raise refuse(f"it cannot be read ({reason})") from None
        except APIError as error:
            raise refuse(error.message) from None


class _BadFileError(Exception):
    def __init__(self, error: RowError) -> None:
        super().__init__(error.message)
        self.error = error


def _digest(questions: dict[str, Question]) -> bytes:
    wire = {name: question.model_dump(mode="json") for name, question in questions.items()}
    return hashlib.sha256(dumps(wire).encode()).digest()
