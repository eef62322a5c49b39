"""Running a job on the command line: progress, signals, what is said in the end and the exit code."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any

import typer

from jev.cli.console import one_line, shown, spinner
from jev.cli.errors import FailureError, exit_code, message_of
from jev.cli.options import check_loadable
from jev.settings import Settings

if TYPE_CHECKING:
    from jev.batch import Job, OpenJob, Progress, Summary
    from jev.batch.deciders import Decider
    from jev.batch.estimate import Estimate
    from jev.batch.run import Decide, Report

SOME_FAILED = 3
PLAIN_SECONDS = 10.0
"""How often progress is a line of its own where it cannot be a bar."""


@dataclass(frozen=True)
class RunFlags:
    """How a job is run, besides what it is."""

    restart: bool = False
    retry_failed: bool = False
    dry_run: bool = False
    price: float | None = None
    api_key: str | None = None
    timeout: float | None = None
    as_json: bool = False
    engine: str = "local"
    actors: int = 1


def run_job(job: Job, settings: Settings, flags: RunFlags) -> int:
    """Run or estimate a job and say how it went; returns the exit code.

    Raises:
        JobError, CheckpointError, SettingsError, MissingExtraError: it cannot run as it is.
        FailureError: the ledger, the output or the model failed.
    """
    from jev.batch.opening import identity, open_decider, parsed_backend, settings_for  # noqa: PLC0415

    spec = parsed_backend(job)
    if not spec.remote:
        check_loadable(settings_for(spec, settings))

    def decider() -> Decider:
        with spinner().status("opening the backend"):
            try:
                return open_decider(job, settings, api_key=flags.api_key, timeout=flags.timeout)
            except (RuntimeError, MemoryError) as error:
                reason = str(error) or type(error).__name__
                raise FailureError(f"the model cannot be loaded: {reason}") from error

    if flags.dry_run:
        return _dry_run(job, flags, decider)
    from jev.batch import OpenJob, in_process  # noqa: PLC0415

    decide = _on_ray(settings, flags) if flags.engine == "ray" else in_process(decider)
    try:
        opened = OpenJob(
            job,
            model=identity(spec, settings),
            restart=flags.restart,
            retry_failed=flags.retry_failed,
        )
        try:
            return asyncio.run(_run(opened, decide, flags))
        finally:
            opened.close()
    except KeyboardInterrupt:  # before there were rows in hand
        return 128 + signal.SIGINT
    except sqlite3.Error as error:
        raise FailureError(f"the ledger in {job.folder} failed: {error}") from None
    except OSError as error:
        raise FailureError(f"{error.filename or job.output}: {error.strerror or error}") from None


async def _run(opened: OpenJob, decide: Decide, flags: RunFlags) -> int:
    from jev.batch import JobStopped  # noqa: PLC0415

    stop, signals = asyncio.Event(), _Signals()
    with signals.caught(stop), _shown() as report:
        try:
            summary = await opened.run(decide, stop=stop, report=report)
        except JobStopped as error:
            done = opened.ledger.totals().done
            cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
            typer.echo(f"error: {one_line(message_of(cause))}; {_kept(done, opened.total)}", err=True)
            return 1 if cause is error else exit_code(cause)
    if not summary.finished:
        done = summary.progress.totals.done
        typer.echo(f"interrupted: {_kept(done, opened.total)}", err=True)
        return 128 + (signals.first or signal.SIGINT)
    _say(opened, summary, flags.as_json)
    return SOME_FAILED if summary.progress.totals.failed else 0


def _on_ray(settings: Settings, flags: RunFlags) -> Decide:
    from jev.batch.ray_engine import RayOptions, run_on_ray  # noqa: PLC0415

    options = RayOptions(flags.actors, gpus=1 if settings.device.startswith("cuda") else 0)

    async def decide(opened: OpenJob, stop: asyncio.Event, report: Report) -> Progress:
        return await run_on_ray(opened, settings, options, stop=stop, report=report)

    return decide


def _kept(done: int, total: int) -> str:
    return f"{done:,} of {total:,} rows are done and kept, the same command goes on with the rest"


class _Signals:
    """The first Ctrl+C or SIGTERM ends the job after the rows in hand, the second at once."""

    first: int | None = None

    @contextmanager
    def caught(self, stop: asyncio.Event) -> Iterator[None]:
        loop = asyncio.get_running_loop()

        def handle(number: int, _: FrameType | None) -> None:
            if self.first is not None:
                os._exit(128 + number)  # the ledger is whole at any moment
            self.first = number
            loop.call_soon_threadsafe(stop.set)
            # Written by hand: the signal may have come in the middle of something else that writes there.
            with suppress(OSError):
                os.write(2, b"stopping after the rows in hand; once more stops at once\n")

        # Not the loop's own handlers: these would wait while a model is loaded or an output written.
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        for number in before:
            loop.add_signal_handler(number, lambda: None)  # has the system wake the loop
            signal.signal(number, handle)
        try:
            yield
        finally:
            for number, handler in before.items():
                loop.remove_signal_handler(number)
                signal.signal(number, handler)


@contextmanager
def _shown() -> Iterator[Callable[[Progress], None]]:
    """Where progress is reported to: a bar on a terminal, else a line now and then on stderr."""
    console = spinner()
    if not console.is_terminal:
        yield _Lines()
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn  # noqa: PLC0415
    from rich.progress import Progress as Bars  # noqa: PLC0415

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Bars(*columns, console=console, transient=True) as bars:
        bar = bars.add_task("starting", total=None)

        def report(progress: Progress) -> None:
            done = progress.totals.done
            bars.update(bar, completed=done, total=progress.total, description=_speed(progress))

        yield report


class _Lines:
    """Progress as lines, the first one after a while."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def __call__(self, progress: Progress) -> None:
        if time.monotonic() - self._last < PLAIN_SECONDS:
            return
        self._last = time.monotonic()
        of = f" of {progress.total:,}" if progress.total is not None else ""
        typer.echo(f"{progress.totals.done:,}{of} rows, {_speed(progress)}", err=True)


def _speed(progress: Progress) -> str:
    parts = [f"{progress.rate:,.1f} rows/s"]
    if progress.left is not None:
        parts.append(f"{_duration(progress.left)} left")
    if progress.totals.failed:
        parts.append(f"{progress.totals.failed:,} failed")
    return ", ".join(parts)


def _say(opened: OpenJob, summary: Summary, as_json: bool) -> None:
    totals, progress = summary.progress.totals, summary.progress
    job = opened.job
    if as_json:
        report: dict[str, Any] = {
            "rows": opened.total,
            "answered": totals.answered,
            "failed": totals.failed,
            "copied": totals.copied,
            "input_tokens": totals.input_tokens,
            "output_tokens": totals.output_tokens,
            "seconds": round(progress.seconds, 3),
            "output": shown(job.output),
            "review": shown(job.review_file) if summary.reviewed is not None else None,
            "reviewed": summary.reviewed,
        }
        typer.echo(json.dumps(report, ensure_ascii=False))
        return
    copies = f" ({totals.copied:,} as copies of equal rows)" if totals.copied else ""
    typer.echo(f"{opened.total:,} rows: {totals.answered:,} answered{copies}, {totals.failed:,} failed")
    tokens = f"{totals.input_tokens:,} + {totals.output_tokens:,} tokens"
    now = totals.done - progress.before
    if now:
        tokens += f"; {now:,} rows now in {_duration(progress.seconds)}, {progress.rate:,.1f} rows/s"
    typer.echo(tokens)
    typer.echo(f"output: {shown(job.output)}")
    if summary.reviewed is not None:
        typer.echo(f"review: {shown(job.review_file)} ({summary.reviewed:,} rows below {job.review_below:g})")
    for one in summary.failures:
        typer.echo(one_line(f"failed: row {one.number}: {one.body['error']['message'][:300]}"), err=True)
    if totals.failed > len(summary.failures):
        more = totals.failed - len(summary.failures)
        typer.echo(f"failed: {more:,} more; each is in the output with its reason", err=True)


def _dry_run(job: Job, flags: RunFlags, decider: Callable[[], Decider]) -> int:
    from jev.batch.estimate import estimate  # noqa: PLC0415
    from jev.batch.inputs import open_input  # noqa: PLC0415
    from jev.batch.requests import Requests  # noqa: PLC0415

    template, own = job.template()
    source = open_input(job.input, job.columns, root=job.attachments_root)
    requests = Requests(template, questions=own, root=source.root, own_questions=not job.parquet)

    async def probe() -> Estimate:
        opened = decider()
        try:
            return await estimate(source, requests, opened, dedup=job.dedup, price=flags.price)
        finally:
            await opened.aclose()

    found = asyncio.run(probe())
    if flags.as_json:
        typer.echo(json.dumps(found.__dict__))
        return 0
    typer.echo(f"{found.rows:,} rows; of {found.sampled:,} looked at {found.bad:,} cannot be asked")
    if found.equal:
        typer.echo(f"{found.equal:,} of them ask what another one asks")
    typer.echo(f"about {found.input_tokens:,} + {found.output_tokens:,} tokens")
    if found.seconds is not None:
        typer.echo(f"about {_duration(found.seconds)}, measured on {found.probed:,} rows")
    if found.cost is not None:
        typer.echo(f"about {found.cost:,.2f} at {flags.price:g} for a million tokens")
    return 0


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes / 60:.1f} h"
