"""The ledger keeps what is entered whole or not at all, knows its job and lets one process in."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from jev.batch.ledger import Ledger, Totals, read_totals
from jev.batch.outcome import Outcome, failed
from jev.batch.readers import JobError, RowError

USAGE = {"input_tokens": 5, "output_tokens": 2}


def outcome(number: int, key: bytes = b"", *, sure: float = 0.9, copied: bool = False) -> Outcome:
    body = {"answers": {"q": {"type": "noul", "noul": sure}}, "usage": USAGE, "model": "m"}
    return Outcome(number, f"id {number}", body, key or b"%d" % number, sure, copied)


def bad(number: int) -> Outcome:
    return failed(number, None, RowError("no"))


def test_outcomes_come_back_by_number(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l.sqlite")
    given = [outcome(1), bad(2), outcome(4, copied=True), outcome(5, sure=0.6)]
    with ledger.transaction():
        ledger.add(reversed(given))
    assert list(ledger.outcomes()) == given
    assert list(ledger.outcomes(3)) == given[2:]
    assert list(ledger.outcomes(failed=True)) == [given[1]]
    assert [ledger.has(number) for number in range(1, 7)] == [True, True, False, True, True, False]
    assert ledger.first_open() == 3
    assert ledger.totals() == Totals(answered=3, failed=1, copied=1, input_tokens=10, output_tokens=4)
    assert ledger.find(b"5") == given[3]
    assert ledger.find(b"2") is None
    assert read_totals(ledger.path)[0] == ledger.totals()  # while it is open
    assert ledger.forget_failed() == 1
    assert ledger.first_open() == 2
    with pytest.raises(sqlite3.IntegrityError), ledger.transaction():
        ledger.add([outcome(2), outcome(4)])
    assert not ledger.has(2)
    ledger.close()


def test_the_first_open_row(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l.sqlite")
    for number, first in ((2, 1), (1, 3), (3, 4), (6, 4), (5, 4), (4, 7)):
        ledger.add([outcome(number)])
        assert ledger.first_open() == first
    ledger.close()


def test_a_transaction_that_fails_leaves_nothing(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l.sqlite")
    with pytest.raises(ZeroDivisionError), ledger.transaction():
        ledger.add([outcome(1)])
        ledger.set(note=1)
        _ = 1 / 0
    assert (ledger.has(1), ledger.get("note")) == (False, "")
    ledger.close()


def test_it_is_of_one_job(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl.job" / "l.sqlite"
    ledger = Ledger(path)
    ledger.identify({"input": "a", "model": "m"})
    ledger.add([outcome(1)])
    ledger.close()
    ledger = Ledger(path)
    ledger.identify({"model": "m", "input": "a"})
    with pytest.raises(JobError, match=r"other input and model; --restart begins anew"):
        ledger.identify({"input": "b", "model": "n"})
    assert ledger.has(1)
    ledger.close()
    ledger = Ledger(path, restart=True)
    ledger.identify({"input": "b", "model": "n"})
    assert not ledger.has(1)
    ledger.close()


def test_one_process_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "l.sqlite"
    ledger = Ledger(path)
    script = f"from pathlib import Path; from jev.batch.ledger import Ledger; Ledger(Path({str(path)!r}))"
    other = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "another process is running this job" in other.stderr
    with pytest.raises(JobError, match="another process"):
        Ledger(path, restart=True)
    ledger.add([outcome(1)])
    ledger.close()
    ledger = Ledger(path)
    assert ledger.has(1)
    ledger.close()


def test_what_is_no_ledger_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "l.sqlite"
    with pytest.raises(JobError, match="there is no ledger"):
        read_totals(path)
    path.write_bytes(b"something else that is long enough to be looked at" * 100)
    for use in (Ledger, read_totals):
        with pytest.raises(JobError, match="as a ledger"):
            use(path)
    other = Ledger(path, restart=True)
    other.set(format=99)
    other.close()
    with pytest.raises(JobError, match="another version"):
        Ledger(path)
