"""Runs the rows of a job: what is open is asked, what comes back is entered, a bounded number at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from jev.batch.deciders import Decider
from jev.batch.ledger import Ledger, Totals
from jev.batch.outcome import Outcome, answered, failed
from jev.batch.requests import Ask, Bad
from jev.errors import JevError
from jev.schemas import SystemOneResponse

T = TypeVar("T")
R = TypeVar("R")

GROUP_BYTES = 8 * 2**20
GROUP_FILES = 16
"""A group ends with the row that brings it to this many bytes or attachments. Only the rows of a group
decide where it ends, so that it ends at the same row when a job is resumed."""

FLIGHT_BYTES = 64 * 2**20
"""Bytes of requests in flight above which no further rows are read."""

ENTER_ROWS = 64
ENTER_SECONDS = 0.1
"""Outcomes are entered together: so many, or those of so long. A kill loses what is not entered."""

STOP_SECONDS = 0.5
"""How often it is looked whether to stop."""


class JobStopped(JevError):
    """The job cannot go on; its rows so far are kept. The cause says why."""


@dataclass(frozen=True)
class Progress:
    """How far a job is.

    Attributes:
        total: rows of the input; None where that is not known.
        before: rows that were done when this run began.
        totals: what the ledger holds now.
        seconds: since this run began.
    """

    total: int | None
    before: int
    totals: Totals
    seconds: float

    @property
    def rate(self) -> float:
        """Rows a second of this run."""
        return (self.totals.done - self.before) / self.seconds if self.seconds > 0 else 0.0

    @property
    def left(self) -> float | None:
        """Seconds until the end at this rate, where that can be said."""
        if self.total is None or not self.rate:
            return None
        return max(0, self.total - self.totals.done) / self.rate


class Output(Protocol):
    """Where outcomes are written."""

    def enter(self, outcomes: Sequence[Outcome]) -> None:
        """Write what the ledger has just been given, inside the same transaction."""
        ...


@dataclass(frozen=True)
class Rows(Generic[T]):
    """Where the rows of a job come from.

    Attributes:
        read: the rows behind the first so many, with their numbers.
        prepare: what to ask about one of them; it may read files.
    """

    read: Callable[[int], Iterator[tuple[int, T]]]
    prepare: Callable[[int, T], Ask | Bad]


_Group: TypeAlias = "list[Ask | Bad | Outcome]"


async def run_rows(
    rows: Rows[Any],
    decider: Decider,
    ledger: Ledger,
    output: Output,
    *,
    total: int | None = None,
    dedup: bool = True,
    stop: asyncio.Event | None = None,
    report: Callable[[Progress], None] = lambda _: None,
) -> Progress:
    """Ask all rows that the ledger has no outcome of.

    Args:
        rows: the rows.
        decider: who decides them.
        ledger: where outcomes are entered.
        output: where they are written.
        total: how many rows there are, for the reports.
        dedup: whether a row that asks what an answered one asked gets a copy of its answers.
        stop: ends the run early once it is set; what is being decided then is finished and entered.
        report: called with the progress whenever outcomes were entered.

    Raises:
        JobStopped: no further row can be decided either.
        JobError: the input cannot be read any further.
        sqlite3.Error, OSError: the ledger or the output cannot be written.
    """
    run = _Run(rows, decider, ledger, output, total, dedup, report)
    try:
        return await run.run(stop or asyncio.Event())
    finally:
        await run.close()


class _Run:
    """One `run_rows`."""

    def __init__(
        self,
        rows: Rows[Any],
        decider: Decider,
        ledger: Ledger,
        output: Output,
        total: int | None,
        dedup: bool,
        report: Callable[[Progress], None],
    ) -> None:
        self._decider = decider
        self._ledger = ledger
        self._output = output
        self._report = report
        # Reading rows, the ledger and the output share one thread: none of them may hold up the loop.
        self._keeper = ThreadPoolExecutor(1, thread_name_prefix="jev-ledger")
        self._groups = _groups(rows, ledger, decider.rows, dedup)
        self._asked: dict[bytes, asyncio.Future[Outcome]] = {}
        self._active: dict[asyncio.Task[list[Outcome]], int] = {}
        self._finished: list[Outcome] = []
        self._entered = time.monotonic()
        self._dedup = dedup
        self._stopped: JevError | None = None
        self._began = time.monotonic()
        totals = ledger.totals()
        self._progress = Progress(total, totals.done, totals, 0.0)

    async def run(self, stop: asyncio.Event) -> Progress:
        """Run to the end, or until `stop` is set."""
        self._report(self._progress)
        more = True
        while True:
            free = self._decider.groups - len(self._active)
            halted = stop.is_set() or self._stopped is not None
            if more and not halted and free > 0 and sum(self._active.values()) < FLIGHT_BYTES:
                group = await self._kept(lambda: next(self._groups, None))
                more = group is not None
                if group is not None:
                    self._start(group)
                continue
            if not self._active:
                break
            wait = ENTER_SECONDS if self._finished else STOP_SECONDS
            done, _ = await asyncio.wait(self._active, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                self._active.pop(task)
                self._finished += task.result()
            late = time.monotonic() - self._entered >= ENTER_SECONDS
            if len(self._finished) >= ENTER_ROWS or late or not self._active:
                await self._enter()
        await self._enter()
        if self._stopped is not None:
            raise JobStopped(str(self._stopped)) from self._stopped
        return self._progress

    async def close(self) -> None:
        """Cancel what is still running."""
        for task in self._active:
            task.cancel()
        await asyncio.gather(*self._active, return_exceptions=True)
        await asyncio.to_thread(self._keeper.shutdown)

    def _start(self, group: _Group) -> None:
        """Begin to decide a group. Which rows are copies is settled here, before anything can change."""
        fresh: list[tuple[Ask, asyncio.Future[Outcome]]] = []
        copies: list[tuple[Ask, asyncio.Future[Outcome]]] = []
        ready: list[Outcome] = []
        loop = asyncio.get_running_loop()
        for one in group:
            if isinstance(one, Outcome):
                ready.append(one)
            elif isinstance(one, Bad):
                ready.append(failed(one.number, one.id, one.error))
            elif self._dedup and one.key in self._asked:
                copies.append((one, self._asked[one.key]))
            else:
                future: asyncio.Future[Outcome] = loop.create_future()
                self._asked[one.key] = future
                fresh.append((one, future))
        weight = sum(ask.weight for ask, _ in fresh)
        self._active[asyncio.create_task(self._decide(ready, fresh, copies))] = weight

    async def _decide(
        self,
        ready: list[Outcome],
        fresh: list[tuple[Ask, asyncio.Future[Outcome]]],
        copies: list[tuple[Ask, asyncio.Future[Outcome]]],
    ) -> list[Outcome]:
        try:
            answers = await self._decider.decide([ask.request for ask, _ in fresh]) if fresh else []
            for (ask, future), answer in zip(fresh, answers, strict=True):
                if isinstance(answer, SystemOneResponse):
                    outcome = answered(ask.number, ask.id, ask.key, answer)
                elif self._decider.stops(answer):
                    self._stopped = self._stopped or answer
                    future.cancel()
                    continue
                else:
                    outcome = failed(ask.number, ask.id, answer, ask.key)
                future.set_result(outcome)
                ready.append(outcome)
        finally:
            for _, future in fresh:
                future.cancel()
        for ask, future in copies:
            await asyncio.wait([future])
            if not future.cancelled():
                ready.append(copy_for(ask, future.result()))
        return ready

    async def _enter(self) -> None:
        self._entered = time.monotonic()
        outcomes, self._finished = self._finished, []
        if not outcomes:
            return
        outcomes.sort(key=lambda one: one.number)

        def enter() -> None:
            with self._ledger.transaction():
                self._ledger.add(outcomes)
                self._output.enter(outcomes)

        await self._kept(enter)
        for one in outcomes:
            if one.key is not None and not one.copied:
                self._asked.pop(one.key, None)
        self._progress = replace(
            self._progress,
            totals=self._progress.totals.plus(outcomes),
            seconds=time.monotonic() - self._began,
        )
        self._report(self._progress)

    async def _kept(self, work: Callable[[], R]) -> R:
        return await asyncio.get_running_loop().run_in_executor(self._keeper, work)


def copy_for(ask: Ask, outcome: Outcome) -> Outcome:
    """What became of a row that asks what another one asked."""
    return replace(outcome, number=ask.number, id=ask.id, copied=outcome.answered)


def _groups(rows: Rows[Any], ledger: Ledger, size: int, dedup: bool) -> Iterator[_Group]:
    """The open rows in groups; a row whose answers are known already is its outcome."""
    group: _Group = []
    weight = files = 0
    first = ledger.first_open()
    for number, row in rows.read(first - 1):
        if ledger.has(number):
            continue
        one = rows.prepare(number, row)
        if dedup and isinstance(one, Ask) and (known := ledger.find(one.key)) is not None:
            group.append(copy_for(one, known))
        else:
            group.append(one)
        weight += one.weight
        files += one.files
        if len(group) >= size or weight >= GROUP_BYTES or files >= GROUP_FILES:
            yield group
            group, weight, files = [], 0, 0
    if group:
        yield group
