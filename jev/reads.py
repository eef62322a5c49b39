"""Decisions that wait for the model or run on it: bounded admission, and many of them in each step.

Nothing here is for several threads: the scheduler's lock is held by whoever calls, but for `run`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jev.crash import crash_report
from jev.errors import APIError, ModelUnavailableError, OverloadedError, ServerError
from jev.pace import Pace, Patience

if TYPE_CHECKING:
    from jev.engine import Engine
    from jev.plan import Plan
    from jev.run import Run
    from jev.schemas import SystemOneResponse

logger = logging.getLogger(__name__)

MIN_RETRY_AFTER = 1.0
MAX_RETRY_AFTER = 60.0
WELCOME = 8
"""Requests that are admitted however long they may wait: a slow machine must not turn everyone away."""


@dataclass(eq=False, slots=True)
class Job:
    """One admitted plan on its way through the queue and the model thread."""

    plan: Plan
    future: asyncio.Future[SystemOneResponse]
    submitted: float
    background: bool = False
    started: float | None = None
    stop: bool = False
    run: Run | None = None

    def settle(self, outcome: SystemOneResponse | Exception) -> None:
        """Hand the outcome to whoever waits, from any thread; nobody may be waiting any more."""

        def deliver() -> None:
            if self.future.done():
                return
            if isinstance(outcome, Exception):
                self.future.set_exception(outcome)
            else:
                self.future.set_result(outcome)

        try:
            self.future.get_loop().call_soon_threadsafe(deliver)
        except RuntimeError:
            logger.debug("the event loop of a request closed before its answer was ready")


class Reads:
    """The queue of plans and those that run; see `jev.scheduler.Scheduler` for the arguments."""

    def __init__(
        self, engine: Engine, max_requests: int, max_tokens: int, max_wait_s: float, step_rows: int
    ) -> None:
        self._engine = engine
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._step_rows = step_rows
        self._pace = Pace()
        self._patience = Patience(max_wait_s, WELCOME)
        self._queue: deque[Job] = deque()
        self._running: list[Job] = []
        self._unlearned_s = 0.0

    @property
    def pending(self) -> tuple[int, int]:
        """Requests and tokens that are waiting or running, without those in the background."""
        jobs = [job for job in (*self._queue, *self._running) if not job.background]
        return len(jobs), sum(job.plan.tokens for job in jobs)

    def admit(self, plan: Plan, deadline: float | None, background: bool) -> Job:
        """Put a plan in the queue.

        Raises:
            OverloadedError: there is no place for it, or its deadline has passed.
        """
        if deadline is not None and deadline <= time.monotonic():
            raise self._overloaded("The deadline passed before the request was queued", plan)
        requests, tokens = self.pending
        if not background and requests >= self._max_requests:
            raise self._overloaded(f"{requests} requests are pending already", plan)
        if not background and requests and tokens + plan.tokens > self._max_tokens:
            raise self._overloaded(
                f"{tokens} tokens are pending; {plan.tokens} more exceed the limit of {self._max_tokens}",
                plan,
            )
        if not background:
            self._check_wait(plan, requests, deadline)
        future: asyncio.Future[SystemOneResponse] = asyncio.get_running_loop().create_future()
        job = Job(plan, future, time.monotonic(), background)
        self._queue.append(job)
        return job

    def _check_wait(self, plan: Plan, pending: int, deadline: float | None) -> None:
        """Refuse what would have its answer too late for the others, or for its own caller."""
        now = time.monotonic()
        limit = self._patience.limit(pending, now)
        if deadline is not None and pending >= WELCOME:
            limit = min(limit, deadline - now)
        wait = self._wait(plan)
        if wait > limit:
            raise self._overloaded(
                f"{pending} requests are pending, about {wait:.1f} s; the limit is {limit:.3g} s", plan
            )

    def _wait(self, plan: Plan) -> float:
        """Seconds until what goes before `plan` will have run, by the pace of what ran lately."""
        # Longer ones let it go first, but keep a part of every step.
        most = max(plan.tokens, self._step_rows)
        before = [min(job.plan.tokens, most) for job in (*self._queue, *self._running) if not job.background]
        return self._pace.wait(sum(before), len(before))

    def release(self, job: Job) -> None:
        """Forget a job that nobody waits for any more; a finished one is gone already."""
        job.stop = True
        if job in self._queue:
            self._queue.remove(job)

    def late(self, job: Job) -> OverloadedError:
        """The refusal of a job whose deadline has passed."""
        where = "queued" if job.started is None else "running"
        return self._overloaded(f"The deadline passed while the request was {where}", job.plan)

    def _overloaded(self, message: str, plan: Plan) -> OverloadedError:
        """Build the refusal of a plan; it says to come back when what is pending now should have run."""
        seconds = min(max(self._wait(plan), MIN_RETRY_AFTER), MAX_RETRY_AFTER)
        return OverloadedError(message, retry_after=seconds)

    def drop(self, why: ModelUnavailableError) -> None:
        """Refuse what is queued and stop what runs."""
        for job in (*self._queue, *self._running):
            job.stop = True
            job.settle(why)
        self._queue.clear()

    def sort(self, *, take: bool = True) -> None:
        """Let go of what is not wanted and, with `take`, take up what waits; for the model's thread."""
        dropped = [job for job in self._running if job.stop]
        self._running = [job for job in self._running if not job.stop]
        if dropped:  # their part of the time must not be learned as that of others
            kept, gone = (sum(job.plan.tokens for job in jobs) for jobs in (self._running, dropped))
            self._unlearned_s *= kept / max(kept + gone, 1)
        for job in dropped:
            job.settle(shutting_down())
        while take and self._queue:
            job = self._queue.popleft()
            job.started = time.monotonic()
            self._running.append(job)

    def wanted(self) -> list[Job]:
        """What runs, in order of arrival, without what runs in the background."""
        return [job for job in self._running if not job.background]

    def idle_work(self) -> list[Job]:
        """What runs in the background, in order of arrival."""
        return [job for job in self._running if job.background]

    def run(self, jobs: Sequence[Job]) -> list[tuple[Job, SystemOneResponse | Exception]]:
        """Take one step with the jobs; returns those that ended. A failure is kept in the run that failed."""
        started = time.monotonic()
        try:
            for job in jobs:
                if job.run is None:
                    job.run = self._engine.start(job.plan)
            if left := [job.run for job in jobs if job.run is not None and not job.run.done]:
                self._engine.step(left)
        except BaseException as error:  # the thread outlives whatever a request does to it
            self._fail(jobs, error)
        self._unlearned_s += time.monotonic() - started
        return [(job, self._outcome(job)) for job in jobs if job.run is None or job.run.done]

    def settle(self, ended: Sequence[tuple[Job, SystemOneResponse | Exception]], held: int) -> None:
        """Take out what has ended in a step that held so many, and learn how long it took."""
        gone = {id(job) for job, _ in ended}
        self._running = [job for job in self._running if id(job) not in gone]
        tokens = sum(job.plan.tokens for job, _ in ended)
        if tokens:
            self._pace.learn(self._unlearned_s, tokens, held)
            self._unlearned_s = 0.0

    def _fail(self, jobs: Sequence[Job], error: BaseException) -> None:
        """End all jobs: nobody knows what state a step left that did not fail on its own terms."""
        logger.error("a step of the model failed: %s", crash_report(error))
        for job in jobs:
            job.run = None

    def _outcome(self, job: Job) -> SystemOneResponse | Exception:
        if job.run is None:
            return ServerError()
        try:
            return self._engine.finish(job.run)
        except APIError as error:
            return error
        except BaseException as error:
            logger.error("a request failed in the engine: %s", crash_report(error))
            return ServerError()


def shutting_down() -> ModelUnavailableError:
    """The refusal of whatever comes too late."""
    return ModelUnavailableError("The server is shutting down")
