"""The ledger of a job: which rows are done and with what outcome, in one SQLite file.

A row is in it or is not; there is no state in between. What is decided together is entered in one
transaction, so a job that is killed has lost at most what it was working on, and what it has is whole.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from jev.batch.outcome import Outcome, dumps
from jev.batch.readers import JobError

FORMAT = "1"
"""Version of the tables; a ledger of another one is refused."""

_TABLES = """
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS rows (
    number INTEGER PRIMARY KEY,
    id TEXT,
    answered INTEGER NOT NULL,
    key BLOB,
    certainty REAL,
    copied INTEGER NOT NULL,
    input_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    body TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS answered_keys ON rows (key) WHERE answered = 1;
CREATE INDEX IF NOT EXISTS failures ON rows (number) WHERE answered = 0;
"""

_COLUMNS = "number, id, key, certainty, copied, body"


@dataclass(frozen=True)
class Totals:
    """What a ledger holds.

    Attributes:
        answered: rows with answers.
        failed: rows with an error.
        copied: answered rows whose answers are those of an equal row.
        input_tokens: prompt tokens read.
        output_tokens: canvas tokens read.
    """

    answered: int = 0
    failed: int = 0
    copied: int = 0
    input_tokens: int = 0
    output_tokens: int = 0

    @property
    def done(self) -> int:
        """Rows with an outcome."""
        return self.answered + self.failed

    def plus(self, outcomes: Sequence[Outcome]) -> Totals:
        """The totals once these are entered too."""
        return Totals(
            answered=self.answered + sum(one.answered for one in outcomes),
            failed=self.failed + sum(not one.answered for one in outcomes),
            copied=self.copied + sum(one.copied for one in outcomes),
            input_tokens=self.input_tokens + sum(one.tokens[0] for one in outcomes),
            output_tokens=self.output_tokens + sum(one.tokens[1] for one in outcomes),
        )


class Ledger:
    """The outcomes of one job's rows. One process at a time may have it open for writing.

    Use it from one thread at a time.

    Args:
        path: the SQLite file; it and its companions (`-wal`, `-shm`, `.lock`) are made.
        restart: forget what it holds.
        later: only see that nobody else has it open; `open` follows.

    Raises:
        JobError: it is in use, of another version or not a ledger.
    """

    _db: sqlite3.Connection
    _opened = False

    def __init__(self, path: Path, *, restart: bool = False, later: bool = False) -> None:
        self.path = path
        self._lock = _locked(path)
        if not later:
            try:
                self.open(restart=restart)
            except BaseException:
                self.close()
                raise

    def open(self, *, restart: bool = False) -> None:
        """Open the tables; errors as of the class."""
        if restart:
            for suffix in ("", "-wal", "-shm"):
                Path(f"{self.path}{suffix}").unlink(missing_ok=True)
        self._db, self._opened = _connected(self.path), True
        try:
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.executescript(_TABLES)
            self._check_format()
        except sqlite3.DatabaseError as error:
            raise JobError(f"{self.path}: it cannot be used as a ledger ({error})") from error

    def close(self) -> None:
        """Let go of the files."""
        if self._opened:
            self._db.close()
        self._lock.close()

    def get(self, name: str, default: str = "") -> str:
        """A note that was kept with `set`."""
        row = self._db.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        return default if row is None else row[0]

    def set(self, **notes: str | int) -> None:
        """Keep notes; in a `transaction` they are kept together with its outcomes."""
        rows = [(name, str(value)) for name, value in notes.items()]
        self._db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", rows)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All that is entered inside is kept, or nothing of it."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def add(self, outcomes: Iterable[Outcome]) -> None:
        """Enter outcomes; a row that has one already is an error of the caller's."""
        self._db.executemany(
            "INSERT INTO rows VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                (
                    one.number,
                    one.id,
                    int(one.answered),
                    one.key,
                    one.certainty,
                    int(one.copied),
                    *one.tokens,
                    dumps(one.body),
                )
                for one in outcomes
            ),
        )

    def has(self, number: int) -> bool:
        """Whether a row has an outcome."""
        return self._db.execute("SELECT 1 FROM rows WHERE number = ?", (number,)).fetchone() is not None

    def first_open(self) -> int:
        """The lowest number, from 1, without an outcome."""
        if not self.has(1):
            return 1
        most, count = self._db.execute("SELECT MAX(number), COUNT(*) FROM rows").fetchone()
        if most == count:
            return most + 1
        return self._db.execute(
            "SELECT number + 1 FROM rows AS one"
            " WHERE NOT EXISTS (SELECT 1 FROM rows WHERE number = one.number + 1) ORDER BY number LIMIT 1"
        ).fetchone()[0]

    def find(self, key: bytes) -> Outcome | None:
        """An answered row that asks the same."""
        row = self._db.execute(
            f"SELECT {_COLUMNS} FROM rows WHERE key = ? AND answered = 1 LIMIT 1",  # noqa: S608 - a constant
            (key,),
        ).fetchone()
        return None if row is None else _outcome(row)

    def outcomes(self, first: int = 1, *, failed: bool = False) -> Iterator[Outcome]:
        """Outcomes by number from `first` on; with `failed` only the errors."""
        where = "number >= ? AND answered = 0" if failed else "number >= ?"
        query = f"SELECT {_COLUMNS} FROM rows WHERE {where} ORDER BY number"  # noqa: S608 - constants
        for row in self._db.execute(query, (first,)):
            yield _outcome(row)

    def forget_failed(self) -> int:
        """Make failed rows open again; returns how many."""
        return self._db.execute("DELETE FROM rows WHERE answered = 0").rowcount

    def totals(self) -> Totals:
        """Count what it holds."""
        return _totals(self._db)

    def identify(self, fingerprint: Mapping[str, str]) -> None:
        """Make it the ledger of a job, or see that it is that job's.

        Args:
            fingerprint: what makes the job what it is, in parts that a message can name.

        Raises:
            JobError: it is another job's.
        """
        kept = self.get("fingerprint")
        if not kept:
            self.set(fingerprint=dumps(fingerprint))
            return
        known = json.loads(kept)
        other = sorted(name for name in {*known, *fingerprint} if known.get(name) != fingerprint.get(name))
        if other:
            raise JobError(
                f"{self.path.parent}: the job there has other {' and '.join(other)}; "
                "--restart begins anew, or choose another output"
            )

    def _check_format(self) -> None:
        kept = self.get("format")
        if not kept:
            self.set(format=FORMAT)
        elif kept != FORMAT:
            raise JobError(f"{self.path}: it was written by another version of jev; --restart begins anew")


def read_totals(path: Path) -> tuple[Totals, dict[str, str]]:
    """What a ledger holds and its notes, while another process may be writing it.

    Raises:
        JobError: there is none.
    """
    if not path.is_file():
        raise JobError(f"{path}: there is no ledger here")
    try:
        db = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=10)
        try:
            return _totals(db), dict(db.execute("SELECT name, value FROM meta"))
        finally:
            db.close()
    except sqlite3.DatabaseError as error:
        raise JobError(f"{path}: it cannot be read as a ledger ({error})") from None


def _totals(db: sqlite3.Connection) -> Totals:
    row = db.execute(
        "SELECT COALESCE(SUM(answered), 0), COUNT(*) - COALESCE(SUM(answered), 0),"
        " COALESCE(SUM(copied), 0),"
        " COALESCE(SUM(input_tokens), 0), COALESCE(SUM(output_tokens), 0) FROM rows"
    ).fetchone()
    return Totals(*row)


def _connected(path: Path) -> sqlite3.Connection:
    try:
        # Threads take turns: `run_job` enters outcomes from a worker thread.
        return sqlite3.connect(path, timeout=10, isolation_level=None, check_same_thread=False)
    except sqlite3.Error as error:
        raise JobError(f"{path}: it cannot be opened ({error})") from None


def _locked(path: Path) -> IO[bytes]:
    """Hold the lock file until it is closed or the process ends, however it ends."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.with_name(path.name + ".lock").open("ab")
    except OSError as error:
        raise JobError(f"{path}: it cannot be written ({error.strerror})") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise JobError(f"{path}: another process is running this job") from None
    os.set_inheritable(file.fileno(), False)
    return file


def _outcome(row: tuple[Any, ...]) -> Outcome:
    number, id, key, sure, copied, body = row
    return Outcome(number, id, json.loads(body), key, sure, bool(copied))
