"""Batches on disk: a folder for each, its state written whole, its results kept for a time.

batches_dir/
  batches.lock          held by the one server that uses the folder
  batch_<32 hex>/
    batch.json          the batch as the API shows it; replaced, never changed
    input.jsonl         a copy of the upload, until the batch has ended
    ledger.sqlite       outcomes by line, until the batch has ended
    output.jsonl        results with an answer
    errors.jsonl        results without
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from heapq import merge
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from jev.errors import TooLargeError
from jev.schemas.batches import Batch, BatchCreate
from jev.server.scratch import TemporaryFolder
from jev.settings import SettingsError

logger = logging.getLogger(__name__)

LOCK = "batches.lock"
STATE = "batch.json"
INPUT = "input.jsonl"
LEDGER = "ledger.sqlite"
OUTPUT = "output.jsonl"
ERRORS = "errors.jsonl"

LIVE = ("validating", "in_progress", "finalizing")
"""Statuses of a batch that has not ended and that nobody has cancelled."""

BLOCK = 2**16
"""Bytes of results that are sent together, about."""

_ID = re.compile(r"batch_[0-9a-f]{32}", re.ASCII)
_NEW = re.compile(r"new-[0-9a-f]{32}", re.ASCII)
_RESULT = re.compile(r"file-(?P<id>batch_[0-9a-f]{32})-(?P<kind>output|errors)", re.ASCII)
_NUMBER = re.compile(rb'"id":"batch_req_[0-9a-f]{32}_([0-9]+)"')


@dataclass(frozen=True, slots=True)
class ResultFile:
    """A batch's file of answers or of errors."""

    id: str
    batch: Batch
    path: Path
    size: int
    expires: float


class BatchStore:
    """Batches by id. Every method may be called from any thread.

    Args:
        directory: the folder, of batches only; None for a temporary one that `close` removes.
        ttl_s: seconds that a batch is kept after it has ended.
        max_batches: most batches kept, ended ones too; none is removed early to make room.
        clock: returns the time in seconds since 1970.

    Raises:
        SettingsError: the folder cannot be used, or another server uses it.
    """

    def __init__(
        self,
        directory: Path | None,
        *,
        ttl_s: float,
        max_batches: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.clock = clock
        self._ttl_s = ttl_s
        self._max = max_batches
        # Of what `get` returns; nobody who holds it waits for the disk, for the event loop takes it too.
        self._guard = threading.Lock()
        # Of states on disk; held while one is written. `_guard` is taken inside it, never the other way.
        self._writing = threading.Lock()
        self._making = 0
        # Batches whose end is on disk and is not shown yet.
        self._over: dict[str, Batch] = {}
        self._temporary = None
        if directory is None:
            self._temporary = TemporaryFolder("jev-batches-")
            directory = self._temporary.path
        try:
            self._folder = _own_folder(directory)
            self._lock = os.open(self._folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(self._lock)
                raise SettingsError(f"batches_dir: {directory} is used by another server") from None
            self._batches = dict(self._read_all())
            self.sweep()
        except OSError as error:
            reason = error.strerror or str(error)
            raise SettingsError(f"batches_dir: {directory} cannot be used ({reason})") from None

    def close(self) -> None:
        """End; a temporary folder is removed."""
        os.close(self._lock)
        if self._temporary is not None:
            self._temporary.cleanup()

    def create(self, request: BatchCreate, data: bytes) -> Batch:
        """Store a batch that is still to be validated.

        Args:
            request: what was asked for.
            data: the input file.

        Raises:
            TooLargeError: there are too many batches.
            OSError: the disk is full or fails; nothing is stored then.
        """
        now = self.clock()
        window = int(request.completion_window[:-1]) * 3600
        self.sweep()
        with self._guard:
            count = len(self._batches) + self._making
            if count >= self._max:
                raise TooLargeError(
                    f"There are {count} batches and the most is {self._max}; "
                    f"an ended one is removed {self._ttl_s:g} s after its end, or by DELETE"
                )
            self._making += 1
        batch = Batch(
            id=f"batch_{time.time_ns():016x}{secrets.token_hex(8)}",  # ids sort as they were made
            input_file_id=request.input_file_id,
            completion_window=request.completion_window,
            status="validating",
            created_at=int(now),
            expires_at=int(now) + window,
            metadata=request.metadata,
        )
        new = self._folder / f"new-{secrets.token_hex(16)}"
        made = False
        try:
            new.mkdir(mode=0o700)
            _write(new / INPUT, data)
            _write(new / STATE, batch.model_dump_json().encode())
            new.rename(self.folder(batch.id))
            _sync_folder(self._folder)
            made = True
        finally:
            if not made:
                shutil.rmtree(new, ignore_errors=True)
            with self._guard:
                self._making -= 1
                if made:
                    self._batches[batch.id] = batch
        return batch

    def get(self, id: str) -> Batch:
        """Return a batch; KeyError if there is none with this id."""
        with self._guard:
            return self._batches[id]

    def all(self) -> list[Batch]:
        """Return all batches, the newest first."""
        with self._guard:
            return [self._batches[id] for id in sorted(self._batches, reverse=True)]

    def update(self, id: str, *, only: Sequence[str], **changes: Any) -> Batch:
        """Change fields of a batch, on disk and then for `get`; KeyError and OSError.

        Args:
            id: the batch's.
            only: a batch of another status stays as it is, and so does one whose end is on disk.
            changes: the fields.

        Returns:
            The batch as it is now.
        """
        with self._writing:
            batch = self.get(id)
            if batch.status not in only or id in self._over:
                return self._over.get(id, batch)
            self._write_state(batch.model_copy(update=changes))
            return self.show(id, lambda _: changes)

    def write(self, id: str, **changes: Any) -> Batch:
        """Write how a batch has ended, which the disk has now and `get` does not; KeyError and OSError."""
        with self._writing:
            batch = self.get(id).model_copy(update=changes)
            self._write_state(batch)
            self._over[id] = batch
            return batch

    def show(self, id: str, changes: Callable[[Batch], Mapping[str, Any]]) -> Batch:
        """Change what `get` returns and not the disk, which has it already or need not have it.

        Args:
            id: the batch's; KeyError if there is none.
            changes: fields, from the batch as it is.
        """
        with self._guard:
            batch = self._batches[id]
            self._batches[id] = batch.model_copy(update=changes(batch))
            if self._batches[id].ended:
                self._over.pop(id, None)
            return self._batches[id]

    def _write_state(self, batch: Batch) -> None:
        folder = self.folder(batch.id)
        _write(folder / f"{STATE}.new", batch.model_dump_json().encode())
        (folder / f"{STATE}.new").replace(folder / STATE)
        _sync_folder(folder)

    def remove(self, id: str) -> None:
        """Remove a batch with its results; KeyError if there is none with this id."""
        with self._guard:
            del self._batches[id]
        _remove(self.folder(id))

    def tidy(self, id: str) -> None:
        """Remove what a batch that has ended needs no more: its input and its ledger."""
        folder = self.folder(id)
        for name in (INPUT, *(LEDGER + suffix for suffix in ("", "-wal", "-shm", ".lock"))):
            try:
                (folder / name).unlink(missing_ok=True)
            except OSError as error:
                logger.warning("a file of an ended batch cannot be removed: %s", error)

    def sweep(self) -> None:
        """Remove batches whose time after their end is over."""
        now = self.clock()
        for batch in self.all():
            if batch.ended and self.expires(batch) <= now:
                with suppress(KeyError):  # somebody else has removed it
                    self.remove(batch.id)

    def expires(self, batch: Batch) -> float:
        """When a batch that has ended is removed, in seconds since 1970."""
        times = (batch.completed_at, batch.failed_at, batch.expired_at, batch.cancelled_at)
        ended = next((when for when in times if when is not None), batch.created_at)
        return ended + self._ttl_s

    def folder(self, id: str) -> Path:
        """The folder of a batch."""
        assert _ID.fullmatch(id)
        return self._folder / id

    def result(self, file: str) -> ResultFile:
        """Return a result file by its id; KeyError if there is none."""
        parts = _RESULT.fullmatch(file)
        if parts is None:
            raise KeyError(file)
        batch = self.get(parts["id"])
        if file not in (batch.output_file_id, batch.error_file_id):
            raise KeyError(file)
        path = self.folder(batch.id) / (OUTPUT if parts["kind"] == "output" else ERRORS)
        try:
            return ResultFile(file, batch, path, path.stat().st_size, self.expires(batch))
        except FileNotFoundError:
            raise KeyError(file) from None

    def results(self, id: str) -> Iterator[bytes]:
        """Yield all result lines of an ended batch in the order of its input, many at a time."""
        folder = self.folder(id)
        block: list[bytes] = []
        size = 0
        for line in merge(_lines(folder / OUTPUT), _lines(folder / ERRORS), key=_number_of):
            block.append(line)
            size += len(line)
            if size >= BLOCK:
                yield b"".join(block)
                block, size = [], 0
        yield b"".join(block)

    def _read_all(self) -> Iterator[tuple[str, Batch]]:
        for path in list(self._folder.iterdir()):
            if _NEW.fullmatch(path.name):
                _remove(path)  # its server died before it said that there is a batch
            elif _ID.fullmatch(path.name):
                try:
                    batch = Batch.model_validate_json((path / STATE).read_bytes())
                    if batch.ended:
                        self.tidy(batch.id)
                    yield path.name, batch
                except (OSError, ValidationError) as error:
                    logger.error("the batch in %s cannot be read and is left alone: %s", path, error)


def result_id(batch: str, kind: str) -> str:
    """The file id of a batch's results; `kind` is "output" or "errors"."""
    return f"file-{batch}-{kind}"


def line_id(batch: str, number: int) -> str:
    """The id of the result of an input line; the same whenever it is decided."""
    return f"batch_req_{batch.removeprefix('batch_')}_{number}"


def write_lines(path: Path, lines: Iterator[bytes]) -> int:
    """Write a file whole or not at all; returns its lines. An empty one is not written."""
    count = 0
    partial = path.with_name(f"{path.name}.new")
    with partial.open("wb") as file:
        for line in lines:
            file.write(line + b"\n")
            count += 1
        file.flush()
        os.fsync(file.fileno())
    if count:
        partial.replace(path)
    else:
        partial.unlink()
    return count


def _lines(path: Path) -> Iterator[bytes]:
    with suppress(FileNotFoundError), path.open("rb") as file:
        yield from file


def _number_of(line: bytes) -> int:
    found = _NUMBER.search(line)
    assert found is not None, "every result line has its number in its id"
    return int(found[1])


def _own_folder(directory: Path) -> Path:
    """Make the folder, or take one that is empty or was made before."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = directory.resolve(strict=True)
    if not (folder / LOCK).exists():
        for entry in folder.iterdir():
            if entry.name != "lost+found":
                raise OSError(0, "it has other files in it")
    return folder


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    """Have renames in a folder survive the machine, where its file system can."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        logger.warning("a batch cannot be removed: %s", folder)
