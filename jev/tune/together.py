"""Starting the processes of a run: none, some on this machine, or those that `torchrun` started."""

from __future__ import annotations

import multiprocessing
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from jev.errors import JevError
from jev.model.errors import CheckpointError
from jev.tune.group import Group, from_torchrun, join, leave, meet
from jev.tune.job import Job, Tell
from jev.tune.recipe import TuneError
from jev.tune.run import run
from jev.tune.trainer import Stopped

END_SECONDS = 60


def run_together(
    job: Job, *, tell: Tell = lambda told: None, stop: Callable[[], bool] = lambda: False
) -> dict[str, Any] | None:
    """Do a job in as many processes as its recipe says, of which this is the first one.

    Under `torchrun` this is one of its processes, with a GPU of its own where there are any.

    Returns:
        The report, as `run` does.

    Raises:
        RuntimeError: another process ended.
        TuneError and others: as `run`.
    """
    started = from_torchrun()
    if started is not None:
        rank, world, here = started
        settings = job.settings
        if settings.device.partition(":")[0] == "cuda":
            settings = settings.model_copy(update={"device": f"cuda:{here}"})
            torch.cuda.set_device(here)
        recipe = job.recipe.model_copy(update={"processes": world})
        return _member(replace(job, settings=settings, recipe=recipe), rank, world, tell, stop)
    world = job.recipe.processes
    if world == 1:
        return run(job, tell=tell, stop=stop)
    if job.settings.device != "cpu":
        raise TuneError(
            "--processes is for CPUs; on GPUs start it with torchrun --nproc-per-node N -m jev tune"
        )
    meeting = Path(tempfile.mkdtemp(prefix="jev-tune-")) / "meeting"
    context = multiprocessing.get_context("spawn")
    others: list[BaseProcess] = [
        context.Process(target=_other, args=(job, rank, world, meeting), daemon=True, name=f"jev-tune-{rank}")
        for rank in range(1, world)
    ]
    for other in others:
        other.start()

    def check() -> None:
        for other in others:
            if code := other.exitcode:
                how = f"with exit code {code}" if code > 0 else f"by signal {-code}"
                raise RuntimeError(f"the process {other.name} was ended {how}")

    def waiting() -> None:
        check()
        if stop():
            raise Stopped("stopped before the first step")

    try:
        _use(job)
        report = _do(job, meet(0, world, meeting, waiting), tell, stop)
        for other in others:
            other.join(END_SECONDS)
        return report
    except RuntimeError:  # which may be for want of a process that ended
        for other in others:
            other.join(1)
        check()
        raise
    finally:
        for other in others:
            other.kill()
        shutil.rmtree(meeting.parent, ignore_errors=True)


def _member(job: Job, rank: int, world: int, tell: Tell, stop: Callable[[], bool]) -> dict[str, Any] | None:
    _use(job)
    return _do(job, join(rank, world, torch.device(job.settings.device)), tell, stop)


def _use(job: Job) -> None:
    if job.settings.threads is not None:
        torch.set_num_threads(job.settings.threads)


def _do(job: Job, group: Group, tell: Tell, stop: Callable[[], bool]) -> dict[str, Any] | None:
    try:
        return run(job, group=group, tell=tell, stop=stop)
    finally:
        leave(group)


def _other(job: Job, rank: int, world: int, meeting: Path) -> None:
    """A process besides the first, which decides and speaks: Ctrl+C in a terminal reaches this one too."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _use(job)
    try:
        _do(job, meet(rank, world, meeting, lambda: None), lambda told: None, lambda: False)
    except (TuneError, CheckpointError):  # the first process has come to the same
        sys.exit(2)
    except (JevError, MemoryError, OSError) as error:
        sys.exit(f"{multiprocessing.current_process().name}: {str(error) or type(error).__name__}")
    except RuntimeError:
        parent = multiprocessing.parent_process()
        if parent is not None and parent.is_alive():
            raise
        sys.exit(f"{multiprocessing.current_process().name}: the first process is gone")
