"""What runs on the model: bounded admission, many requests a step, cancellation and deadlines."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
import traceback
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
class _Job:
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


class Scheduler:
    """Runs plans on a thread of its own; each step of the model holds rows of as many as fit.

    Args:
        engine: what runs them.
        max_requests: most plans waiting or running.
        max_tokens: most tokens of all plans waiting or running; a larger plan is admitted alone.
        max_wait_s: longest wait, by the pace of what ran lately, for which a plan is still admitted
            to a queue that stands; a burst may wait longer (see `jev.pace`), and `WELCOME` plans are
            admitted anyhow.
        step_rows: most rows of a step; plans of more tokens let shorter ones go first.
    """

    def __init__(
        self,
        engine: Engine,
        max_requests: int,
        max_tokens: int,
        max_wait_s: float = math.inf,
        step_rows: int = 512,
    ) -> None:
        self._engine = engine
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._step_rows = step_rows
        self._pace = Pace()
        self._patience = Patience(max_wait_s, WELCOME)
        self._changed = threading.Condition()
        self._queue: deque[_Job] = deque()
        self._running: list[_Job] = []
        self._closing = False
        self._unlearned_s = 0.0
        self._thread = threading.Thread(target=self._work, name="jev-model", daemon=True)
        self._thread.start()

    @property
    def pending(self) -> tuple[int, int]:
        """Requests and tokens that are waiting or running."""
        with self._changed:
            return self._pending()

    async def submit(
        self, plan: Plan, *, deadline: float | None = None, background: bool = False
    ) -> tuple[SystemOneResponse, float]:
        """Wait for the model to run `plan`; returns the response and the seconds it was queued.

        Cancelling the caller takes the plan out of the queue or stops it at the engine's next check.

        Args:
            plan: what `Engine.prepare` made.
            deadline: when to give up, on the clock of `time.monotonic`.
            background: run it in steps that no other plan wants. It takes no place in the queue, so
                whoever submits such plans bounds them.

        Raises:
            OverloadedError: the queue is full, or the deadline passed.
            ModelUnavailableError: the scheduler is closing.
            ServerError: the engine failed; the log says where.
        """
        job = self._admit(plan, deadline, background)
        try:
            async with asyncio.timeout(None if deadline is None else deadline - time.monotonic()):
                response = await job.future
        except TimeoutError:
            raise self._late(job) from None
        finally:
            self._release(job)
        return response, (job.started or job.submitted) - job.submitted

    def close(self, *, drain: bool = False, timeout: float | None = None) -> None:
        """Refuse new plans, then finish (`drain`) or cancel the admitted ones and join the thread.

        Args:
            drain: let every admitted plan run to its end.
            timeout: seconds to wait for the thread; none = until it ends.
        """
        with self._changed:
            self._closing = True
            dropped: list[_Job] = []
            if not drain:
                dropped = list(self._queue)
                self._queue.clear()
                for job in self._running:
                    job.stop = True
            self._changed.notify_all()
        for job in dropped:
            job.settle(_shutting_down())
        self._thread.join(timeout)

    def _pending(self) -> tuple[int, int]:
        jobs = [job for job in (*self._queue, *self._running) if not job.background]
        return len(jobs), sum(job.plan.tokens for job in jobs)

    def _admit(self, plan: Plan, deadline: float | None, background: bool) -> _Job:
        with self._changed:
            if self._closing:
                raise _shutting_down()
            if deadline is not None and deadline <= time.monotonic():
                raise self._overloaded("The deadline passed before the request was queued", plan)
            requests, tokens = self._pending()
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
            job = _Job(plan, future, time.monotonic(), background)
            self._queue.append(job)
            self._changed.notify_all()
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

    def _release(self, job: _Job) -> None:
        """Forget a job that nobody waits for any more; a finished one is gone already."""
        with self._changed:
            job.stop = True
            if job in self._queue:
                self._queue.remove(job)

    def _late(self, job: _Job) -> OverloadedError:
        with self._changed:
            where = "queued" if job.started is None else "running"
            return self._overloaded(f"The deadline passed while the request was {where}", job.plan)

    def _overloaded(self, message: str, plan: Plan) -> OverloadedError:
        """Build the refusal of a plan; it says to come back when what is pending now should have run."""
        seconds = min(max(self._wait(plan), MIN_RETRY_AFTER), MAX_RETRY_AFTER)
        return OverloadedError(message, retry_after=seconds)

    def _work(self) -> None:
        while jobs := self._next():
            started = time.monotonic()
            self._step(jobs)
            self._unlearned_s += time.monotonic() - started
            finished = [(job, self._outcome(job)) for job in jobs if job.run is None or job.run.done]
            with self._changed:
                ended = {id(job) for job, _ in finished}
                self._running = [job for job in self._running if id(job) not in ended]
                self._learn(sum(job.plan.tokens for job, _ in finished), len(jobs))
            for job, outcome in finished:
                job.settle(outcome)
            del jobs, finished  # an idle thread must not keep the last requests alive

    def _next(self) -> list[_Job]:
        """Wait for work: everything that is wanted, in order of arrival; nothing once it is closed.

        What runs in the background is work only while nothing else is.
        """
        with self._changed:
            while True:
                self._sort()
                if self._running or self._closing:
                    wanted = [job for job in self._running if not job.background]
                    return wanted or list(self._running)
                self._changed.wait()

    def _sort(self) -> None:
        """Let go of what is not wanted and take up what waits; a waiting thread holds neither."""
        dropped = [job for job in self._running if job.stop]
        self._running = [job for job in self._running if not job.stop]
        for job in dropped:
            job.settle(_shutting_down())
        while self._queue:
            job = self._queue.popleft()
            job.started = time.monotonic()
            self._running.append(job)

    def _step(self, jobs: list[_Job]) -> None:
        """Take one step with the jobs; what fails is kept in the run that failed."""
        try:
            for job in jobs:
                if job.run is None:
                    job.run = self._engine.start(job.plan)
            if left := [job.run for job in jobs if job.run is not None and not job.run.done]:
                self._engine.step(left)
        except BaseException as error:  # the thread outlives whatever a request does to it
            self._fail(jobs, error)

    def _fail(self, jobs: list[_Job], error: BaseException) -> None:
        """End all jobs: nobody knows what state a step left that did not fail on its own terms."""
        logger.error("a step of the model failed: %s", crash_report(error))
        for job in jobs:
            job.run = None

    def _outcome(self, job: _Job) -> SystemOneResponse | Exception:
        if job.run is None:
            return ServerError()
        try:
            return self._engine.finish(job.run)
        except APIError as error:
            return error
        except BaseException as error:
            logger.error("a request failed in the engine: %s", crash_report(error))
            return ServerError()

    def _learn(self, tokens: int, requests: int) -> None:
        """Note how long the model was busy for the tokens of the requests that it finished."""
        if tokens:
            self._pace.learn(self._unlearned_s, tokens, requests)
            self._unlearned_s = 0.0


def crash_report(error: BaseException) -> str:
    """Say what was raised and where, causes first, without the messages: those may quote a request."""
    parts: list[str] = []
    seen: BaseException | None = error
    while seen is not None and len(parts) < 8:
        parts.append(f"{type(seen).__qualname__}\n{''.join(traceback.format_tb(seen.__traceback__))}")
        seen = seen.__cause__ or seen.__context__
    return "followed by ".join(reversed(parts)).rstrip()


def _shutting_down() -> ModelUnavailableError:
    return ModelUnavailableError("The server is shutting down")
