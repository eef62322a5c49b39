"""Runs `jev batch run` again and again in processes that are killed, until one of them reaches its end.

Not a test: `test_kill.py` starts it. Everything heavy is imported once; each process is a fork of this one,
so that a job is at work a moment after it began. The kills are spread over the rows of the job by chance.
Prints how many rows were done at each kill.

    python killing.py KILLS ROWS SEED ARGUMENT...
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import jev.engine  # noqa: F401 - what the forks will need
from jev.batch.ledger import read_totals
from jev.batch.readers import JobError
from jev.batch.run import ledger_of
from jev.cli import app

SECONDS = 240.0


def started(arguments: list[str]) -> int:
    """Run the command line in a process of its own; returns its id."""
    if process := os.fork():
        return process
    code = 70
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = app(arguments, standalone_mode=False) or 0
    except BaseException as error:
        sys.stderr.write(f"{error!r}\n")
    finally:
        sys.stderr.flush()
        os._exit(code)


def done(ledger: Path) -> int:
    """Rows that are done."""
    with suppress(JobError):
        return read_totals(ledger)[0].done
    return 0


def killed(arguments: list[str], ledger: Path, rows: int, chance: random.Random, *, early: bool) -> int:
    """Start the job and kill it once `rows` are done, or early: at any moment; returns the rows then done."""
    process = started(["batch", "run", *arguments])
    until = time.monotonic() + SECONDS
    while not early and done(ledger) < rows:
        if os.waitpid(process, os.WNOHANG) != (0, 0) or time.monotonic() > until:
            sys.exit(f"the job was to reach {rows} rows and reached {done(ledger)}")
        time.sleep(0.005)
    time.sleep(chance.uniform(0.0, 0.2 if early else 0.03))
    os.kill(process, signal.SIGKILL)
    _, status = os.waitpid(process, 0)
    if not os.WIFSIGNALED(status):
        sys.exit(f"the job ended by itself with {done(ledger)} rows done")
    return done(ledger)


def main() -> None:
    kills, rows, seed = map(int, sys.argv[1:4])
    arguments = sys.argv[4:]
    chance = random.Random(seed)
    ledger = ledger_of(Path(arguments[arguments.index("--output") + 1]))
    moments = sorted(chance.randrange(1, rows * 9 // 10) for _ in range(kills))
    found = [
        killed(arguments, ledger, moment, chance, early=kill % 4 == 0) for kill, moment in enumerate(moments)
    ]
    _, status = os.waitpid(started(["batch", "run", *arguments]), 0)
    print(json.dumps({"killed": found, "code": os.waitstatus_to_exitcode(status)}))


if __name__ == "__main__":
    main()
