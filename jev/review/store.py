"""Where decisions are kept: a file of reviewed rows, and beside it one of the rows that no answer fits.

Both hold rows (`jev.schemas.Row`), one line each, and are whole after every decision: a row that is new is
appended and synced, a row that changes makes the file be written anew beside itself and put in its place.
So a row and question never have two answers, and a kill loses at most the line that was being appended.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import IO, Any, cast

from pydantic import ValidationError

from jev.batch.outcome import dumps
from jev.disk import sync_folder
from jev.review.queue import UNSURE, Item, ReviewError, identity_of
from jev.schemas import (
    BadRequestError,
    Choice,
    Noul,
    Question,
    Row,
    index_of,
    issues_of,
    parse_json,
)
from jev.schemas.request import MAX_QUESTIONS


def label_of(question: Question, index: int) -> bool | int | str:
    """The label of an alternative as a row has it; `index_of` is the way back."""
    if isinstance(question, Noul):
        return index == 0
    return list(question.criteria)[index] if isinstance(question, Choice) else index


def skipped_file(out: Path) -> Path:
    """Where the rows are that no answer fits: reviewed.skipped.jsonl beside reviewed.jsonl."""
    return out.with_name(f"{out.stem}.skipped{out.suffix}")


class Store:
    """The decisions of a file, those of earlier runs too. One process at a time may have it open.

    Args:
        out: the file of reviewed rows, made with the first one; its name ends in .jsonl.

    Attributes:
        torn: names of files whose last line was cut off by a kill and is gone.

    Raises:
        ReviewError: it is in use, or cannot be read or written.
    """

    def __init__(self, out: Path) -> None:
        if out.suffix != ".jsonl" or out.is_dir():
            raise ReviewError(f"--out {out}: it must be a file whose name ends in .jsonl")
        for path in (out, skipped_file(out)):  # reading a pipe would wait for ever
            if path.exists() and not path.is_file():
                raise ReviewError(f"{path}: it is not a file")
        if not out.parent.is_dir():
            raise ReviewError(f"--out {out}: there is no folder {out.parent}")
        self.out = out
        if out.is_symlink():  # else the link would be replaced
            out = Path(os.path.realpath(out))
            if out.is_symlink():
                raise ReviewError(f"--out {self.out}: it is a link in a circle")
        with ExitStack() as opened:
            # Both, for another review may have the second one as its first.
            for path in (out, skipped_file(out)):
                opened.enter_context(closing(_Lock(path)))
            self._answers = _Rows(out, _check_answers)
            self._skipped = _Rows(skipped_file(out), _check_skipped)
            self._locks = opened.pop_all()
        self.torn = [rows.path for rows in (self._answers, self._skipped) if rows.torn]
        self._changes: list[tuple[_Rows, str, dict[str, Any] | None]] = []

    def close(self) -> None:
        """Let others have the file."""
        self._locks.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def decided(self, item: Item) -> bool:
        """Whether this question about this row is answered, or marked as one that no answer fits."""
        answered, skipped = (rows.lines.get(item.identity, {}) for rows in (self._answers, self._skipped))
        return _asks(answered, item, answered.get("answers")) or _asks(skipped, item, _marks(skipped))

    def answer(self, item: Item, index: int) -> None:
        """Keep an answer: the index of an alternative.

        Raises:
            OSError: it cannot be written, and is not kept.
        """
        line, questions = self._changed(self._answers, item)
        answers = {**(line.get("answers") or {}), item.name: label_of(item.question, index)}
        self._put(self._answers, item, {**line, "questions": questions, "answers": answers})

    def unsure(self, item: Item) -> None:
        """Keep that no answer fits; see `answer`."""
        line, questions = self._changed(self._skipped, item)
        # What the row itself may say under that name is something else.
        marks = _marks(self._skipped.lines.get(item.identity, {}))
        metadata = {**(line.get("metadata") or {}), "skipped": {**marks, item.name: UNSURE}}
        self._put(self._skipped, item, {**line, "metadata": metadata, "questions": questions})

    def undo(self) -> None:
        """Take back the last change that was made through this object; see `answer`."""
        rows, identity, before = self._changes[-1]
        rows.put(identity, before)
        self._changes.pop()

    def _changed(self, rows: _Rows, item: Item) -> tuple[dict[str, Any], dict[str, Any]]:
        """The row's line, or a new one, and its questions with this one."""
        line = rows.lines.get(item.identity) or item.row.model_dump(
            mode="json", exclude_defaults=True, include={"id", "state", "attachments", "weight", "metadata"}
        )
        questions = {**(line.get("questions") or {}), item.name: _wire(item.question)}
        if len(questions) > MAX_QUESTIONS:
            raise ReviewError(f"{rows.path}: a row has more than {MAX_QUESTIONS} questions")
        return line, questions

    def _put(self, rows: _Rows, item: Item, line: dict[str, Any]) -> None:
        before = rows.lines.get(item.identity)
        rows.put(item.identity, line)
        self._changes.append((rows, item.identity, before))


class _Rows:
    """A file of rows: in memory by identity, and on disk."""

    def __init__(self, path: Path, check: Callable[[Row], None]) -> None:
        self.path = path
        self.lines: dict[str, dict[str, Any]] = {}
        self.torn = False
        self._check = check
        self._seen = self._stamp()
        *whole, last = self._read().split(b"\n")
        clean = not last
        if _is_torn(last) and any(text.strip() for text in whole):
            self.torn, last = True, b""
        for identity, line in self._each([*whole, last]):
            if identity in self.lines:
                self.lines[identity], clean = _merged(self.lines[identity], line), False
            else:
                self.lines[identity] = line
        if not clean:
            try:
                self._write_all()
            except OSError as error:
                raise ReviewError(f"{path}: it cannot be written ({error.strerror})") from None

    def _read(self) -> bytes:
        """What the file holds; none if there is no file."""
        try:
            return self.path.read_bytes() if self.path.exists() else b""
        except OSError as error:
            raise ReviewError(f"{self.path}: it cannot be read ({error.strerror})") from None

    def _each(self, texts: Sequence[bytes]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Each line that is not empty, by the identity of its row; ReviewError for one that is no row."""
        for number, text in enumerate(texts, 1):
            if text.strip():
                try:
                    yield _parsed(text, self._check)
                except ValueError as error:
                    raise ReviewError(f"{self.path}: row {number}: {error}") from None

    def _stamp(self) -> tuple[int, int] | None:
        """By which a file is known to be as it was."""
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return None
        return found.st_size, found.st_mtime_ns

    def put(self, identity: str, line: dict[str, Any] | None) -> None:
        """Set or remove a row, on disk before this returns; OSError leaves both as they were."""
        before = dict(self.lines)
        try:
            if line is None or identity in before:
                self._take_in_others()
                if line is None:
                    self.lines.pop(identity, None)
                else:
                    self.lines[identity] = line
                self._write_all()
            else:
                self._append(line)
                self.lines[identity] = line
        except OSError:
            self.lines = before
            raise

    def _append(self, line: dict[str, Any]) -> None:
        new, known = not self.path.exists(), self._stamp() == self._seen
        with self.path.open("ab", buffering=0) as file:  # a buffer would try again when it is closed
            size = file.seek(0, os.SEEK_END)
            text = dumps(line) + "\n"
            if size and not self._ends_with_newline():
                text = "\n" + text  # somebody else's line lacks its end
            rest = memoryview(text.encode())
            try:
                while rest:
                    rest = rest[file.write(rest) :]
                os.fsync(file.fileno())
            except OSError:
                with suppress(OSError):
                    file.truncate(size)
                raise
        if known:
            self._seen = self._stamp()
        if new:
            sync_folder(self.path.parent)

    def _ends_with_newline(self) -> bool:
        with self.path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read() == b"\n"

    def _take_in_others(self) -> None:
        """Take in rows that somebody else has appended meanwhile; of a row that both have, ours stays."""
        now = self._stamp()
        if now == self._seen:
            return
        try:
            for identity, line in self._each(self._read().split(b"\n")):
                self.lines.setdefault(identity, line)
        except ReviewError as error:
            raise OSError(errno.EIO, f"somebody else has changed it: {error}", str(self.path)) from None
        self._seen = now

    def _write_all(self) -> None:
        if not self.lines:
            self.path.unlink(missing_ok=True)
            self._seen = None
            return
        partial = self.path.with_name(f".{self.path.name}.part")
        try:
            with partial.open("wb") as file:
                file.writelines(f"{dumps(line)}\n".encode() for line in self.lines.values())
                file.flush()
                os.fsync(file.fileno())
            partial.replace(self.path)
            self._seen = self._stamp()
        except BaseException:
            with suppress(OSError):
                partial.unlink(missing_ok=True)
            raise
        sync_folder(self.path.parent)


class _Lock:
    """Holds a hidden file beside another until it is closed or the process ends, however it ends."""

    def __init__(self, out: Path) -> None:
        self._path = out.with_name(f".{out.name}.lock")
        while True:
            try:
                self._file: IO[bytes] = self._path.open("ab")
            except OSError as error:
                raise ReviewError(f"{out}: it cannot be written ({error.strerror})") from None
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._path.stat().st_ino == os.fstat(self._file.fileno()).st_ino:
                    return
            except FileNotFoundError:  # the one who had it has just removed it
                pass
            except OSError:
                self._file.close()
                raise ReviewError(f"{out}: another jev review is writing to it") from None
            self._file.close()

    def close(self) -> None:
        """Remove it while it is held, so that nobody removes another's."""
        if not self._file.closed:
            self._path.unlink(missing_ok=True)
            self._file.close()


def _parsed(text: bytes, check: Callable[[Row], None]) -> tuple[str, dict[str, Any]]:
    try:
        line = parse_json(text)
        row = Row.model_validate(line)
    except BadRequestError as error:
        raise ValueError(error.issues[0].msg) from None
    except ValidationError as error:
        issue = issues_of(error, ())[0]
        raise ValueError(f"{'.'.join(map(str, issue.loc)) or 'row'}: {issue.msg}") from None
    check(row)
    return identity_of(row), line


def _is_torn(text: bytes) -> bool:
    """Whether it is the beginning of a line that a kill cut off, not somebody's own words."""
    if text[:2] not in (b"{", b'{"'):
        return False
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return error.msg != "Extra data"
    except UnicodeDecodeError:
        return True
    return False


def _check_answers(row: Row) -> None:
    for name, label in (row.answers or {}).items():
        if name not in (row.questions or {}):
            raise ValueError(f"answers.{name}: the row does not bring this question")
        index_of((row.questions or {})[name], label)


def _check_skipped(row: Row) -> None:
    skipped = (row.metadata or {}).get("skipped", {})
    if not isinstance(skipped, dict) or not skipped.keys() <= (row.questions or {}).keys():
        raise ValueError("metadata.skipped: it must be an object with a reason for each question")


def _asks(line: Mapping[str, Any], item: Item, decided: Mapping[str, Any] | None) -> bool:
    """Whether a line has this very question, and it is among those that are decided."""
    questions = line.get("questions") or {}
    if item.name not in questions or item.name not in (decided or {}):
        return False
    found = Row.model_validate({"questions": {item.name: questions[item.name]}}).questions or {}
    return found.get(item.name) == item.question


def _marks(line: Mapping[str, Any]) -> dict[str, Any]:
    """By question, why a line of the file of skipped rows has no answer."""
    marks = (line.get("metadata") or {}).get("skipped")
    return cast("dict[str, Any]", marks) if isinstance(marks, dict) else {}


def _merged(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """One line for two of the same row; the later one wins."""
    both = {**first, **second}
    for name in ("questions", "answers", "metadata"):
        if name in first or name in second:
            both[name] = {**(first.get(name) or {}), **(second.get(name) or {})}
    if marks := {**_marks(first), **_marks(second)}:
        both["metadata"]["skipped"] = marks
    return both


def _wire(question: Question) -> dict[str, Any]:
    return {name: value for name, value in question.model_dump(mode="json").items() if value is not None}
