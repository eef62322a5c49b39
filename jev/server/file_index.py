"""The index of stored files: a small SQLite database that threads and processes share."""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

BUSY_SECONDS = 10.0
"""How long a writer waits for another process."""

_TABLE = """
CREATE TABLE IF NOT EXISTS files (
    id TEXT PRIMARY KEY, name TEXT NOT NULL, kind TEXT NOT NULL, size INTEGER NOT NULL,
    sha256 TEXT NOT NULL, created REAL NOT NULL, used REAL NOT NULL
)
"""
_BY_USE = "CREATE INDEX IF NOT EXISTS by_use ON files (used)"


class Row(NamedTuple):
    """What is known about one stored file; times are seconds since 1970."""

    id: str
    name: str
    kind: str
    size: int
    sha256: str
    created: float
    used: float


class Index:
    """Rows by id. Every method may be called from any thread.

    Args:
        path: the database; made with its owner's rights only.

    Raises:
        OSError: it cannot be made, or is not a regular file.
        sqlite3.Error: it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with suppress(FileExistsError):
            os.close(os.open(path, flags, 0o600))
        if not stat.S_ISREG(path.lstat().st_mode):
            raise OSError(0, f"{path.name} is not a regular file")
        self._lock = threading.RLock()
        self._db = sqlite3.connect(path, BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            self._prepare()
        except BaseException:
            self._db.close()
            raise

    def close(self) -> None:
        """Close the database; whatever uses it later raises sqlite3.ProgrammingError."""
        with self._lock:
            self._db.close()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Keep every other writer out, in all processes; an exception undoes what was written."""
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):  # the first error says more
                    self._db.execute("ROLLBACK")
                raise

    def get(self, file: str) -> Row | None:
        """Return the row of an id."""
        rows = self._rows("WHERE id = ?", file)
        return rows[0] if rows else None

    def newest(self, limit: int, *, used_after: float) -> list[Row]:
        """Return rows from the newest on, without those that were last used too long ago."""
        return self._rows("WHERE used > ? ORDER BY created DESC, rowid DESC LIMIT ?", used_after, limit)

    def unused_since(self, when: float) -> list[Row]:
        """Return rows that were last used at or before `when`, the longest unused first."""
        return self._rows("WHERE used <= ? ORDER BY used", when)

    def ids(self) -> set[str]:
        """Return all ids."""
        with self._lock:
            return {file for (file,) in self._db.execute("SELECT id FROM files")}

    def total(self) -> tuple[int, int]:
        """Return how many files there are and their bytes."""
        with self._lock:
            return self._db.execute("SELECT count(*), coalesce(sum(size), 0) FROM files").fetchone()

    def put(self, row: Row) -> None:
        """Add a row in place of one with its id."""
        with self._lock:
            self._db.execute("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?, ?)", row)

    def touch(self, file: str, now: float) -> None:
        """Note a use."""
        with self._lock:
            self._db.execute("UPDATE files SET used = max(used, ?) WHERE id = ?", (now, file))

    def remove(self, files: Iterable[str]) -> None:
        """Remove rows."""
        with self._lock:
            self._db.executemany("DELETE FROM files WHERE id = ?", [(file,) for file in files])

    def _rows(self, condition: str, *values: object) -> list[Row]:
        with self._lock:
            found = self._db.execute(f"SELECT * FROM files {condition}", values)  # noqa: S608 - our own text
            return [Row(*row) for row in found]

    def _prepare(self) -> None:
        give_up = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                # A write-ahead log needs no fsync for each upload, and survives a crash whole.
                self._db.execute("PRAGMA journal_mode = WAL")
                self._db.execute("PRAGMA synchronous = NORMAL")
                with self.writing():
                    self._db.execute(_TABLE)
                    self._db.execute(_BY_USE)
                return
            except sqlite3.OperationalError as error:
                # Turning the log on does not wait for other processes that do the same.
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > give_up:
                    raise
                time.sleep(0.05)
