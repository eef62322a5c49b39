"""Runs `jev tune` again and again in processes that are killed, until one of them reaches its end.

Not a test: `test_kill.py` starts it. Everything heavy is imported once; each process is a fork of this one.
Prints after how many steps each was killed.

    python killing.py OUT STEP,STEP,... ARGUMENT...
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import jev.engine
import jev.tune.together  # noqa: F401
from jev.cli import app
from jev.tune.keep import STATE, load

SECONDS = 120.0


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


def steps(state: Path) -> int:
    """Steps that are saved; 0 before anything is."""
    return load(state)["record"]["step"] if state.exists() else 0


def killed(arguments: list[str], state: Path, step: int) -> int:
    """Start a run and kill it once `step` steps are saved, with the next ones in hand."""
    process = started(["tune", *arguments])
    until = time.monotonic() + SECONDS
    while steps(state) < step:
        if os.waitpid(process, os.WNOHANG) != (0, 0) or time.monotonic() > until:
            sys.exit(f"the run was to reach step {step} and reached {steps(state)}")
        time.sleep(0.01)
    time.sleep(0.02)
    os.kill(process, signal.SIGKILL)
    _, status = os.waitpid(process, 0)
    if not os.WIFSIGNALED(status):
        sys.exit(f"the run ended by itself after {steps(state)} steps")
    return steps(state)


def main() -> None:
    state = Path(sys.argv[1]) / "training" / STATE
    moments = [int(moment) for moment in sys.argv[2].split(",")]
    arguments = sys.argv[3:]
    found = [killed(arguments, state, moment) for moment in moments]
    _, status = os.waitpid(started(["tune", *arguments]), 0)
    print(json.dumps({"killed": found, "code": os.waitstatus_to_exitcode(status)}))


if __name__ == "__main__":
    main()
