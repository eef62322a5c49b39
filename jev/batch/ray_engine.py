"""A job on Ray: parts of its rows go to actors that each hold the model; the ledger stays here.

Ray Data runs the actors and starts one anew that dies, with the part it was at. What a part became is
entered in one transaction, parts in the order of their rows, so a job may be killed and resumed as
without Ray, and with either. Actors read input and attachments themselves: on several machines the
paths must mean the same files on all of them.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jev.batch.deciders import Decider
from jev.batch.inputs import open_input
from jev.batch.job import Job
from jev.batch.ledger import Ledger
from jev.batch.opening import open_decider, parsed_backend
from jev.batch.outcome import Outcome, answered, dumps, failed
from jev.batch.readers import JobError, RowError
from jev.batch.requests import Ask, Bad, Requests
from jev.batch.runner import JobStopped, Progress
from jev.errors import MissingExtraError
from jev.schemas import Row, SystemOneResponse

if TYPE_CHECKING:
    from jev.batch.run import OpenJob
    from jev.settings import Settings

MAX_PARTS = 2000
"""Parts of one run, about: Ray Data keeps something of each."""

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class RayOptions:
    """How a job runs on Ray.

    Attributes:
        actors: processes that hold the model.
        gpus: GPUs of each; 0 for a model on the CPU.
        object_store_bytes: shared memory of a Ray that is started for the job; None = Ray decides.
    """

    actors: int = 1
    gpus: float = 0
    object_store_bytes: int | None = None


async def run_on_ray(
    opened: OpenJob,
    settings: Settings,
    options: RayOptions,
    *,
    stop: asyncio.Event | None = None,
    report: Callable[[Progress], None] = lambda _: None,
) -> Progress:
    """Decide the open rows of a job on the Ray that `RAY_ADDRESS` names, or on one started here.

    Args:
        opened: the job.
        settings: of the model, and how attachments are read.
        options: how it runs on Ray.
        stop: ends the run early once it is set; parts that are not entered are done again.
        report: called with the progress whenever outcomes were entered.

    Raises:
        JobError: the backend does not run here, or there are not enough CPUs for the actors.
        MissingExtraError: Ray is not installed.
    """
    if parsed_backend(opened.job).remote:
        raise JobError(f"engine ray: backend {opened.job.backend} is a server, which is asked without Ray")
    run = _Run(opened, settings, options, report)
    with ThreadPoolExecutor(1, thread_name_prefix="jev-ray") as thread:
        work = asyncio.get_running_loop().run_in_executor(thread, run.run)
        waiting = None if stop is None else asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({work, *([waiting] if waiting else [])}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            run.stopped = True
            if waiting is not None:
                waiting.cancel()
        return await work


class _Run:
    """One `run_on_ray`, in a thread of its own."""

    def __init__(
        self, opened: OpenJob, settings: Settings, options: RayOptions, report: Callable[[Progress], None]
    ) -> None:
        self.stopped = False
        self._opened = opened
        self._settings = settings
        self._options = options
        self._report = report

    def run(self) -> Progress:
        """Decide and enter."""
        opened = self._opened
        before = opened.ledger.totals()
        began = time.monotonic()
        progress = Progress(opened.total, before.done, before, 0.0)
        self._report(progress)
        with redirect_stdout(sys.stderr), _ray(self._options) as (ray, cpus):  # Ray prints of dead actors
            for part in self._decided(ray, cpus):
                totals = progress.totals.plus(self._enter(part))
                progress = replace(progress, totals=totals, seconds=time.monotonic() - began)
                self._report(progress)
                if self.stopped:
                    break
        return progress

    def _decided(self, ray: Any, cpus: int) -> Iterator[list[Outcome]]:
        """What became of each part, in the order of their rows."""
        context = ray.data.DataContext.get_current()
        context.execution_options.preserve_order = True
        context.enable_progress_bars = False
        parts = list(parts_of(self._opened.ledger, self._opened.total, self._opened.job.group_rows))
        if not parts:
            return
        # A block for each part: what an actor is at when it dies is one part, not several.
        rows = ray.data.from_items(
            [{"part": json.dumps(part)} for part in parts], override_num_blocks=len(parts)
        )
        decided = rows.map_batches(
            PartDecider,
            fn_constructor_args=(self._opened.job.model_dump_json(), self._settings, str(Path.cwd())),
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(size=self._options.actors),
            num_cpus=cpus,
            num_gpus=self._options.gpus or None,
        )
        try:
            for row in decided.iter_rows():
                found = json.loads(row["outcomes"])
                if isinstance(found, dict):
                    raise JobStopped(found["stops"]) from JobError(found["stops"])
                yield [_read(one) for one in found]
        except ray.exceptions.RayError as error:
            # The last line of what Ray says is what the actor raised; before it stands where.
            said = _COLOUR.sub("", str(error)).strip().splitlines() or [type(error).__name__]
            raise JobStopped(f"an actor of Ray failed: {said[-1][:300]}") from None

    def _enter(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """Enter a part, with copies where an earlier row asked the same."""
        ledger, output = self._opened.ledger, self._opened.output
        entered: list[Outcome] = []
        with ledger.transaction():
            for one in outcomes:
                known = ledger.find(one.key) if self._opened.job.dedup and one.key is not None else None
                entered.append(
                    one if known is None else replace(known, number=one.number, id=one.id, copied=True)
                )
                ledger.add(entered[-1:])
            output.enter(entered)
        return entered


class _StopsError(Exception):
    """What every other row would be told too."""


class PartDecider:
    """What an actor runs: the model, and the job's input.

    Args:
        job: the job as JSON.
        settings: of the model.
        folder: what relative paths of the job are relative to.
    """

    def __init__(self, job: str, settings: Settings, folder: str) -> None:
        os.chdir(folder)
        self._job = Job.model_validate_json(job)
        template, own = self._job.template()
        spool = self._job.folder / "input.jsonl"
        self._input = open_input(
            self._job.input, self._job.columns, root=self._job.attachments_root, spool=spool
        )
        self._requests = Requests(
            template, questions=own, root=self._input.root, own_questions=not self._job.parquet
        )
        self._decider: Decider = open_decider(self._job, settings)
        self._loop = asyncio.Runner()
        self._rows: Iterator[tuple[int, Row | RowError]] = iter(())
        self._next = 0

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[str]]:
        """Decide the parts of a batch."""
        return {"outcomes": [self._decide(json.loads(str(part))) for part in batch["part"]]}

    def _decide(self, part: list[tuple[int, int]]) -> str:
        rows = chain.from_iterable(self._between(first, last) for first, last in part)
        outcomes: list[Outcome] = []
        prepared = self._requests.prepared(rows)
        while group := list(islice(prepared, self._job.group_rows)):
            try:
                outcomes += self._loop.run(self._outcomes(group))
            except _StopsError as error:  # as a value: not every error can be sent
                return dumps({"stops": str(error)})
        return dumps([_written(one) for one in outcomes])

    def _between(self, first: int, last: int) -> Iterator[tuple[int, Row | RowError]]:
        """Rows by number; the input is read forward, since parts mostly come in order."""
        if not 0 < self._next <= first:
            self._rows, self._next = self._input.rows(first - 1), first
        for number, row in self._rows:
            self._next = number + 1
            if number >= first:
                yield number, row
            if number == last:
                return

    async def _outcomes(self, group: list[Ask | Bad]) -> list[Outcome]:
        asked: dict[bytes, Ask] = {}
        for one in group:
            if isinstance(one, Ask):
                asked.setdefault(one.key if self._job.dedup else str(one.number).encode(), one)
        answers = await self._decider.decide([one.request for one in asked.values()]) if asked else []
        for answer in answers:
            if not isinstance(answer, SystemOneResponse) and self._decider.stops(answer):
                raise _StopsError(str(answer))
        known = dict(zip(asked, answers, strict=True))
        outcomes: list[Outcome] = []
        for one in group:
            if isinstance(one, Bad):
                outcomes.append(failed(one.number, one.id, one.error))
                continue
            answer = known[one.key if self._job.dedup else str(one.number).encode()]
            if isinstance(answer, SystemOneResponse):
                outcomes.append(answered(one.number, one.id, one.key, answer))
            else:
                outcomes.append(failed(one.number, one.id, answer, one.key))
        return outcomes


def parts_of(ledger: Ledger, total: int, group: int) -> Iterator[list[tuple[int, int]]]:
    """Open rows in parts of whole groups; a part is a list of first and last numbers of runs of rows."""
    first = ledger.first_open()
    if first > total:
        return
    groups = -(-(total - first + 1) // group)
    size = group * max(1, -(-groups // MAX_PARTS))
    holes = ledger.totals().done != first - 1
    for start in range(1 + (first - 1) // size * size, total + 1, size):
        last = min(start + size - 1, total)
        part = list(_open_runs(ledger, max(first, start), last)) if holes else [(max(first, start), last)]
        if part:
            yield part


def _open_runs(ledger: Ledger, first: int, last: int) -> Iterator[tuple[int, int]]:
    begun: int | None = None
    for number in range(first, last + 2):
        wanted = number <= last and not ledger.has(number)
        if wanted and begun is None:
            begun = number
        elif not wanted and begun is not None:
            yield begun, number - 1
            begun = None


@contextmanager
def _ray(options: RayOptions) -> Iterator[tuple[Any, int]]:
    """Ray, connected to the cluster of RAY_ADDRESS or to one that is started here, and an actor's CPUs.

    Raises:
        MissingExtraError: it is not installed.
        JobError: it has not as many CPUs as there are to be actors.
    """
    try:
        import ray  # noqa: PLC0415 - an extra
        import ray.data  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise MissingExtraError("The engine ray needs Ray: pip install 'jev-server[ray]'") from error
    ours = not ray.is_initialized()
    if ours:
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # it writes over the progress bar
        here: dict[str, Any] = {}
        if not os.environ.get("RAY_ADDRESS"):
            here = {"include_dashboard": False, "object_store_memory": options.object_store_bytes}
        ray.init(logging_level=logging.ERROR, log_to_driver=False, **here)
        logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # what it logs it raises too
    try:
        cpus = int(ray.cluster_resources().get("CPU", 0))
        if cpus < options.actors:
            raise JobError(f"actors: {options.actors} need as many CPUs, and Ray has {cpus}")
        yield ray, cpus // options.actors
    finally:
        if ours:
            ray.shutdown()


def _written(outcome: Outcome) -> dict[str, Any]:
    return {**asdict(outcome), "key": outcome.key.hex() if outcome.key is not None else None}


def _read(row: dict[str, Any]) -> Outcome:
    return Outcome(**{**row, "key": bytes.fromhex(row["key"]) if row["key"] is not None else None})
