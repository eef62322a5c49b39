"""Starting the processes of a run: none, some on this machine, or those that `torchrun` started."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from jev.tune.group import free_port, from_torchrun, join, leave
from jev.tune.job import Job, Tell
from jev.tune.recipe import TuneError
from jev.tune.run import run

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
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    context = multiprocessing.get_context("spawn")
    others: list[BaseProcess] = [
        context.Process(target=_other, args=(job, rank, world), daemon=True, name=f"jev-tune-{rank}")
        for rank in range(1, world)
    ]
    for other in others:
        other.start()
    try:
        report = _member(job, 0, world, tell, stop)
        for other in others:
            other.join(END_SECONDS)
        return report
    finally:
        for other in others:
            other.kill()


def _member(job: Job, rank: int, world: int, tell: Tell, stop: Callable[[], bool]) -> dict[str, Any] | None:
    device = torch.device(job.settings.device)
    if job.settings.threads is not None:
        torch.set_num_threads(job.settings.threads)
    group = join(rank, world, device)
    try:
        return run(job, group=group, tell=tell, stop=stop)
    finally:
        leave(group)


def _other(job: Job, rank: int, world: int) -> None:
    """A process besides the first; Ctrl+C in a terminal reaches it too, but the first one decides."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _member(job, rank, world, lambda told: None, lambda: False)
