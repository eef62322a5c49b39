"""Runs `jev batch run` again and again in processes that are killed, until one of them reaches its end.

Not a test: `test_kill.py` starts it. Everything heavy is imported once; each process is a fork of this one,
so that a job is at work a moment after it began. Prints how many rows were done at each kill.

    python killing.py KILLS SEED ARGUMENT...
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

START_SECONDS = 60.0


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


def main() -> None:
    kills, seed, *arguments = sys.argv[1:]
    chance = random.Random(int(seed))
    ledger = ledger_of(Path(arguments[arguments.index("--output") + 1]))
    killed: list[int] = []
    for kill in range(int(kills)):
        before = done(ledger)
        process = started(["batch", "run", *arguments])
        # Some die at any moment, the others at any moment of their work.
        until = time.monotonic() + START_SECONDS
        while kill % 4 and done(ledger) == before and time.monotonic() < until:
            if os.waitpid(process, os.WNOHANG) != (0, 0):
                sys.exit(f"the job ended before kill {kill + 1}, with {done(ledger)} rows done")
            time.sleep(0.01)
        time.sleep(chance.uniform(0.0, 0.3))
        os.kill(process, signal.SIGKILL)
        _, status = os.waitpid(process, 0)
        if not os.WIFSIGNALED(status):
            sys.exit(f"the job ended before kill {kill + 1}, with {done(ledger)} rows done")
        killed.append(done(ledger))
    _, status = os.waitpid(started(["batch", "run", *arguments]), 0)
    print(json.dumps({"killed": killed, "code": os.waitstatus_to_exitcode(status)}))


if __name__ == "__main__":
    main()
