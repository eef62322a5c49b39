"""Uploaded files on disk: each content once, kept while it is used, within a quota.

The folder holds one blob `file-<32 hex>` for every content, `part-*` while an upload arrives, and the
index. Several processes may share a folder: blobs and the index change together, under the index's
write lock, and a lock on its `part-*.lock` shows that an upload is alive.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from jev.errors import OverloadedError, ServerError, TooLargeError
from jev.server.file_folder import (
    BLOB,
    INDEX,
    PART,
    create,
    is_locked,
    own_folder,
    read_regular,
    storage,
    unlink,
)
from jev.server.file_index import Index, Row
from jev.server.file_kind import kind_of
from jev.server.scratch import TemporaryFolder
from jev.settings import SettingsError

MAX_STORED = 100_000
"""Most files of one folder: small ones fill a disk's table of files long before its bytes."""
MAX_BATCHES = 32
"""Uploads that one process receives at once."""
SWEEP_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One uploaded file; `expires` is in seconds since 1970, and each use moves it."""

    id: str
    name: str
    kind: str
    size: int
    sha256: str
    expires: float


class FileStore:
    """Uploads by id. Every method may be called from any thread.

    The id is made of the content: the same bytes have the same id and are stored once, under the name
    that they were last uploaded with.

    Args:
        directory: the folder, of these files only; None for a temporary one that `close` removes.
        quota_bytes: most bytes of all files, and of all that is arriving; nothing that has not expired
            is removed to make room.
        ttl_s: seconds that a file is kept after it was last uploaded or read.
        max_bytes: most bytes of one file.
        clock: returns the time in seconds since 1970.

    Raises:
        SettingsError: the folder cannot be used.
    """

    def __init__(
        self,
        directory: Path | None,
        *,
        quota_bytes: int,
        ttl_s: float,
        max_bytes: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.quota_bytes = quota_bytes
        self.max_bytes = max_bytes
        self.stored_bytes = 0
        """Bytes of all files when this process last changed or swept them."""
        self._ttl_s = ttl_s
        self._clock = clock
        self._guard = threading.Lock()
        self._batches = 0
        self._arriving = 0
        self._temporary = None
        if directory is None:
            self._temporary = TemporaryFolder("jev-files-")
            directory = self._temporary.path
        try:
            self._folder = own_folder(directory)
            self._index = Index(self._folder / INDEX)
            try:
                self.sweep()
            except BaseException:
                self._index.close()
                raise
        except (OSError, sqlite3.Error, ServerError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise SettingsError(f"files_dir: {directory} cannot be used ({reason})") from None
        self._closed = threading.Event()
        self._sweeper = threading.Thread(target=self._keep_swept, name="jev-files", daemon=True)
        self._sweeper.start()

    def close(self) -> None:
        """End; a temporary folder is removed."""
        self._closed.set()
        self._sweeper.join()
        self._index.close()
        if self._temporary is not None:
            self._temporary.cleanup()

    def begin(self) -> Batch:
        """Return a batch for the files of one request; it does nothing to the disk yet.

        Raises:
            OverloadedError: too many are being received.
        """
        with self._guard:
            if self._batches >= MAX_BATCHES:
                raise OverloadedError("Too many uploads are being received", retry_after=1)
            self._batches += 1
        return Batch(self)

    def get(self, file: str) -> StoredFile:
        """Return what is known about a file; that is no use of it.

        Raises:
            KeyError: there is none with this id, or it has expired.
        """
        return self._shown(self._row(file))

    def size(self, file: str) -> int:
        """Return how many bytes a file has; that is no use of it either. KeyError as `get`."""
        return self._row(file).size

    def read(self, file: str) -> tuple[str, bytes]:
        """Return a file's name and bytes, and keep it for its time from now on; KeyError as `get`."""
        row = self._row(file)
        now = self._clock()
        with storage():
            if now - row.used > self._ttl_s / 100:  # not a write for every one of many reads
                self._index.touch(file, now)
            return row.name, read_regular(self._path(file), row.size)

    def list(self, limit: int) -> list[StoredFile]:
        """Return files, the newest upload first."""
        with storage():
            rows = self._index.newest(limit, used_after=self._clock() - self._ttl_s)
        return [self._shown(row) for row in rows]

    def delete(self, file: str) -> None:
        """Remove a file; KeyError as `get`."""
        with storage(), self._index.writing():
            self._row(file)
            self._remove([file])

    def sweep(self) -> None:
        """Remove what has expired, and what processes that died or a damaged folder left behind."""
        with storage(), self._index.writing():
            self._remove([row.id for row in self._index.unused_since(self._clock() - self._ttl_s)])
            known = self._index.ids()
            there: set[str] = set()
            alive: dict[str, bool] = {}
            with os.scandir(self._folder) as entries:
                for entry in entries:
                    if BLOB.fullmatch(entry.name):
                        if entry.name in known and entry.is_file(follow_symlinks=False):
                            there.add(entry.name)
                        else:
                            unlink(Path(entry))
                    elif part := PART.fullmatch(entry.name):
                        stem = part[1]
                        if stem not in alive:
                            alive[stem] = is_locked(self._folder / f"{stem}.lock")
                        if not alive[stem]:
                            unlink(Path(entry))
            self._index.remove(known - there)
            self.stored_bytes = self._index.total()[1]

    def _place(self, parts: Sequence[_Part]) -> list[StoredFile]:
        """Store files that have arrived, all of them or none."""
        now = self._clock()
        with storage():
            with self._index.writing():
                self._remove([row.id for row in self._index.unused_since(now - self._ttl_s)])
            with self._index.writing():
                new = {part.id: part for part in parts if not self._has(part)}
                self._index.remove(new)  # rows whose blob somebody has removed
                count, size = self._index.total()
                if size + sum(part.size for part in new.values()) > self.quota_bytes:
                    raise self._over_quota()
                if count + len(new) > MAX_STORED:
                    raise TooLargeError(f"There are {count} uploads, and the most is {MAX_STORED}")
                try:
                    for part in new.values():
                        part.path.replace(self._path(part.id))
                    rows = [Row(p.id, p.name, p.kind, p.size, p.sha256, now, now) for p in parts]
                    for row in rows:
                        self._index.put(row)
                    self.stored_bytes = self._index.total()[1]
                except BaseException:
                    # Here, not later: under the lock nobody else can have stored the same again.
                    for part in new.values():
                        unlink(self._path(part.id))
                    raise
        return [self._shown(row) for row in rows]

    def _has(self, part: _Part) -> bool:
        """Whether the index and the folder both have this content."""
        if self._index.get(part.id) is None:
            return False
        try:
            found = self._path(part.id).lstat()
        except FileNotFoundError:
            return False
        return stat.S_ISREG(found.st_mode) and found.st_size == part.size

    def _remove(self, files: Sequence[str]) -> None:
        self._index.remove(files)
        for file in files:
            unlink(self._path(file))
        self.stored_bytes = self._index.total()[1]

    def _row(self, file: str) -> Row:
        with storage():
            row = self._index.get(file) if BLOB.fullmatch(file) else None
        if row is None or row.used + self._ttl_s <= self._clock():
            raise KeyError(file)
        return row

    def _path(self, file: str) -> Path:
        assert BLOB.fullmatch(file)
        return self._folder / file

    def _shown(self, row: Row) -> StoredFile:
        return StoredFile(row.id, row.name, row.kind, row.size, row.sha256, row.used + self._ttl_s)

    def _arrive(self, count: int, size: int) -> None:
        """Count bytes that arrive for an upload that then has `size`.

        What arrives may be there already, so it has a room of its own, as large as the quota.
        """
        if size > self.quota_bytes:
            raise self._over_quota()
        with self._guard:
            if self._arriving + count > self.quota_bytes:
                raise OverloadedError("Too many large uploads are being received", retry_after=1)
            self._arriving += count

    def _end(self, count: int) -> None:
        with self._guard:
            self._batches -= 1
            self._arriving -= count

    def _over_quota(self) -> TooLargeError:
        return TooLargeError(f"The uploads would exceed their quota of {self.quota_bytes} bytes")

    def _keep_swept(self) -> None:
        while not self._closed.wait(max(1.0, min(SWEEP_SECONDS, self._ttl_s))):
            with suppress(ServerError):  # logged, and tried again later
                self.sweep()


@dataclass(slots=True)
class _Part:
    """A file that is arriving or has arrived."""

    path: Path
    name: str
    file: BinaryIO
    digest: hashlib._Hash = field(default_factory=hashlib.sha256)
    size: int = 0
    kind: str = ""

    @property
    def sha256(self) -> str:
        return self.digest.hexdigest()

    @property
    def id(self) -> str:
        return f"file-{self.sha256[:32]}"


class Batch:
    """The files of one request while they arrive, one after another: all are stored, or none.

    A context manager. It may be closed while another thread is still writing to it.
    """

    def __init__(self, store: FileStore) -> None:
        self._store = store
        self._stem = f"part-{secrets.token_hex(16)}"
        self._lock = threading.Lock()
        self._claim: int | None = None
        self._parts: list[_Part] = []
        self._size = 0
        self._closed = False

    def __enter__(self) -> Batch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self, name: str) -> None:
        """Begin a file."""
        with self._using():
            if self._claim is None:
                self._claim = self._claimed()
            path = self._store._folder / f"{self._stem}-{len(self._parts)}"
            self._parts.append(_Part(path, name, os.fdopen(create(path), "w+b")))

    def write(self, data: bytes | memoryview) -> None:
        """Add bytes to the file that was begun.

        Raises:
            TooLargeError: the file is too large, or all files together are.
            OverloadedError: too much is arriving at once.
            ServerError: 503; the disk is full or fails.
        """
        with self._using():
            part = self._parts[-1]
            if part.size + len(data) > self._store.max_bytes:
                most = self._store.max_bytes
                raise TooLargeError(f"The file {part.name!r} is over the limit of {most} bytes")
            self._store._arrive(len(data), self._size + len(data))
            self._size += len(data)
            part.size += len(data)
            part.file.write(data)
            part.digest.update(data)

    def finish(self) -> None:
        """End the file that was begun.

        Raises:
            ExtractError: it is empty, or of a kind that is not served.
        """
        with self._using():
            part = self._parts[-1]
            part.file.flush()
            part.kind = kind_of(part.file, part.size, part.name)
            part.file.close()

    def commit(self) -> list[StoredFile]:
        """Store the files.

        Raises:
            TooLargeError: over the quota; nothing is stored then.
            ServerError: 503; the disk is full or fails.
        """
        with self._using():
            return self._store._place(self._parts)

    def close(self) -> None:
        """Remove what has not been stored."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for part in self._parts:
                with suppress(OSError):  # a full disk: what was buffered is not wanted any more
                    part.file.close()
                unlink(part.path)
            if self._claim is not None:
                unlink(self._store._folder / f"{self._stem}.lock")
                os.close(self._claim)
            self._store._end(self._size)

    def _claimed(self) -> int:
        """Make and lock the file that tells other processes that this upload is alive."""
        with self._store._index.writing():  # so that none of them sees it before it is locked
            claim = create(self._store._folder / f"{self._stem}.lock")
            fcntl.flock(claim, fcntl.LOCK_EX)
        return claim

    @contextmanager
    def _using(self) -> Iterator[None]:
        with self._lock, storage():
            if self._closed:
                raise ServerError("The upload has ended", status=503)
            yield
