"""A tuning run on the command line: bad rows, estimates, progress, signals, and what is said in the end."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

import typer
from rich.text import Text

from jev.cli.console import Screen, number, one_line, size, spinner
from jev.cli.errors import NO_PATH, FailureError
from jev.errors import APIError, JevError
from jev.model.errors import CheckpointError
from jev.tune.job import Checked, Doing, Job, Needs, Told
from jev.tune.record import Forecast, Look, Step
from jev.tune.together import run_together
from jev.tune.trainer import Stopped

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

PLAIN_SECONDS = 15.0
"""How often progress is a line of its own where it cannot be a bar."""


def run_job(job: Job, *, as_json: bool) -> int:
    """Do a job and say how it went; returns the exit code.

    Raises:
        TuneError, JevError, CheckpointError: it cannot be done as it is.
        FailureError: the model, its device or another process failed.
    """
    signals = _Signals()
    with signals.caught(), _shown(job) as shown:
        try:
            report = run_together(job, tell=shown, stop=signals.asked)
        except Stopped as error:
            shown.close()
            typer.echo(f"{error}; what is done is kept, the same command goes on with the rest", err=True)
            return 128 + (signals.first or signal.SIGINT)
        except (JevError, CheckpointError, APIError):
            raise
        except (RuntimeError, MemoryError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise FailureError(f"training failed: {reason}") from error
        except OSError as error:
            if error.errno in NO_PATH:
                raise
            raise FailureError(f"{error.filename or job.out}: {error.strerror or error}") from None
    if report is None:  # one of several processes, and not the first
        return 0
    if as_json:
        typer.echo(json.dumps(report, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode())
    else:
        show_report(Screen.standard(), report, job)
    return 0


class _Signals:
    """The first Ctrl+C or SIGTERM ends the run after what is in hand, the second at once."""

    first: int | None = None

    def asked(self) -> bool:
        return self.first is not None

    @contextmanager
    def caught(self) -> Iterator[None]:
        def handle(number: int, frame: FrameType | None) -> None:
            if self.first is not None:
                os._exit(128 + number)  # what is kept is whole at any moment
            self.first = number
            typer.echo("stopping after what is in hand; once more stops at once", err=True)

        before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class _Shown:
    """Says what happens, on stderr: bars on a terminal, else a line now and then."""

    def __init__(self, job: Job, bars: Bars | None) -> None:
        self._job = job
        self._bars = bars
        self._task = None if bars is None else bars.add_task("starting", total=None)
        self._last = time.monotonic()
        self._look = ""

    def close(self) -> None:
        """Take the bar away."""
        if self._bars is not None:
            self._bars.stop()

    def __call__(self, told: Told) -> None:
        match told:
            case Checked():
                self._checked(told)
            case Needs():
                self._needs(told)
            case Forecast():
                self._say(_forecast(told))
            case Look():
                self._look = f"held out: loss {told.loss:.4f}, accuracy {told.accuracy:.1%}"
                self._say(f"step {told.step}: {self._look}")
            case Step():
                self._step(told)
            case Doing():
                self._doing(told)

    def _checked(self, told: Checked) -> None:
        for one in told.bad:
            self._say(f"bad: {one}")
        parts = [
            f"{told.learned:,} row{'s' * (told.learned != 1)} to learn from",
            f"{told.held_out:,} held out",
        ]
        if told.bad:
            parts.append(f"{len(told.bad):,} bad")
        if told.weightless:
            parts.append(f"{told.weightless:,} of weight 0")
        if told.overlap:
            parts.append(f"{told.overlap:,} left out because their state is held out")
        self._say("; ".join(parts) + ("; an earlier run goes on" if told.resumed else ""))

    def _needs(self, told: Needs) -> None:
        needed = told.memory
        free = "" if told.free is None else f"; {size(told.free)} are free"
        self._say(
            f"{number(told.trained)} numbers are trained; memory: about {size(needed.total)} "
            f"(weights {size(needed.weights)}, gradients and optimizer {size(needed.training)}, a forward of "
            f"{needed.largest:,} rows {size(needed.activations)}){free}"
        )

    def _doing(self, told: Doing) -> None:
        if self._bars is not None:
            self._bar(told.what, told.done, told.total)
        elif told.done and time.monotonic() - self._last >= PLAIN_SECONDS:
            self._last = time.monotonic()
            self._say(f"{told.what}: {told.done:,}" + ("" if told.total is None else f" of {told.total:,}"))

    def _step(self, told: Step) -> None:
        what = f"loss {told.loss:.4f}, accuracy {told.accuracy:.1%}"
        if self._bars is not None:
            self._bar(f"{what}; {self._look}" if self._look else what, told.step, self._job.recipe.steps)
        elif time.monotonic() - self._last >= PLAIN_SECONDS:
            self._last = time.monotonic()
            self._say(f"step {told.step}: {what}")

    def _bar(self, what: str, done: int, total: int | None) -> None:
        if self._bars is not None and self._task is not None:
            self._bars.update(self._task, description=what, completed=done, total=total)

    def _say(self, line: str) -> None:
        if self._bars is not None:
            self._bars.console.print(one_line(line), soft_wrap=True)
        else:
            typer.echo(one_line(line), err=True)


@contextmanager
def _shown(job: Job) -> Iterator[_Shown]:
    console = spinner()
    if not console.is_terminal:
        yield _Shown(job, None)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn  # noqa: PLC0415

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=console, transient=True) as bars:
        yield _Shown(job, bars)


def _forecast(told: Forecast) -> str:
    step = f"{told.step_seconds:.2g} s a step"
    steps = "" if told.steps is None else f"{told.steps:,} steps, "
    look = f", {told.look_seconds:.1f} s a look at the held-out part" if told.look_seconds else ""
    return f"about {_duration(told.seconds)} of training: {steps}{step}{look}"


def show_report(screen: Screen, report: dict[str, Any], job: Job) -> None:
    """The figures before and after, and how to serve the result."""
    before, after = report["before"], report["after"]
    training = report["training"]
    if before and after:
        table = screen.grid(5)
        table.add_row(*(Text(head, "dim") for head in ("held out", "answers", "accuracy", "NLL", "ECE")))
        for when, figures in (("before", before), ("after", after)):
            cells = (
                f"{figures['n']:,}",
                f"{figures['accuracy']:.1%}",
                f"{figures['nll']:.3f}",
                f"{figures['ece']:.3f}",
            )
            table.add_row(Text(when, "bold"), *cells)
        screen.show(table)
    best = "" if training["best_step"] == training["steps"] else f", the best after {training['best_step']:,}"
    took = f"{_duration(training['seconds'])}; ended by {training['ended_by']}"
    screen.show(
        Text(f"{training['steps']:,} step{'s' * (training['steps'] != 1)}{best}, {took}", "dim"), wrap=False
    )
    if training["best_step"] == 0 < training["steps"]:
        screen.show(
            Text("no step lowered the held-out loss, so the result answers as the base does", "yellow")
        )
    how = f"--model {job.out}" if report["kind"] == "full" else f"--adapter tuned={job.out}"
    screen.show(Text(f"wrote {job.out}; serve it with: jev serve {how}", "dim"), wrap=False)


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes / 60:.1f} h"
