"""What runs on the model: decisions and texts on one thread, one forward at a time."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, TypeAlias

from jev.errors import ModelUnavailableError
from jev.reads import Job, Reads, shutting_down
from jev.share import Share
from jev.text_stream import TextStream
from jev.texts import TextJob, TextLimits, Texts

if TYPE_CHECKING:
    from jev.engine import Engine
    from jev.plan import Plan
    from jev.schemas import SystemOneResponse
    from jev.writing import TextPlan

Pause: TypeAlias = Literal["keep", "finish", "abort"]
"""What a pause does with work that has begun; see `Scheduler.pause`."""


BACKGROUND_PART = 0.2
"""Part of the model's time that plans in the background get while texts, and no other plans, want it."""


class Scheduler:
    """Runs plans and texts on a thread of its own; a step of plans holds rows of as many as fit.

    A step is of plans or of texts. Plans go first, so that they wait for the forward in progress at
    most; see `jev.share` for what is left to texts meanwhile.

    Args:
        engine: what runs them.
        max_requests: most plans waiting or running.
        max_tokens: most tokens of all plans waiting or running; a larger plan is admitted alone.
        max_wait_s: longest wait, by the pace of what ran lately, for which a plan is still admitted
            to a queue that stands; a burst may wait longer (see `jev.pace`), and `jev.reads.WELCOME`
            plans are admitted anyhow.
        step_rows: most rows of a step; plans of more tokens let shorter ones go first.
        texts: how many texts are taken, and how they share the model.
        text_share: part of the model's time that texts get while plans wait.
    """

    def __init__(
        self,
        engine: Engine,
        max_requests: int,
        max_tokens: int,
        max_wait_s: float = math.inf,
        step_rows: int = 512,
        *,
        texts: TextLimits | None = None,
        text_share: float = 0.1,
    ) -> None:
        self._engine = engine
        self._reads = Reads(engine, max_requests, max_tokens, max_wait_s, step_rows)
        self._texts = Texts(engine, texts or TextLimits())
        self._text_share = Share(text_share)
        self._idle_share = Share(BACKGROUND_PART)
        self._changed = threading.Condition()
        self._closing = False
        self._paused: Pause | None = None
        self._quiet = False
        self._reset = False
        self._thread = threading.Thread(target=self._work, name="jev-model", daemon=True)
        self._thread.start()

    @property
    def pending(self) -> tuple[int, int]:
        """Requests and tokens that are waiting or running, texts not counted."""
        with self._changed:
            return self._reads.pending

    @property
    def pending_texts(self) -> tuple[int, int]:
        """Texts that wait or are being written, and rows that they may take."""
        with self._changed:
            return self._texts.pending

    @property
    def paused(self) -> bool:
        """Whether no step is taken."""
        return self._paused is not None

    async def submit(
        self, plan: Plan, *, deadline: float | None = None, background: bool = False
    ) -> tuple[SystemOneResponse, float]:
        """Wait for the model to run `plan`; returns the response and the seconds it was queued.

        Cancelling the caller takes the plan out of the queue or stops it at the engine's next check.

        Args:
            plan: what `Engine.prepare` made.
            deadline: when to give up, on the clock of `time.monotonic`.
            background: run it in steps that no other plan wants; while texts are written, in some of
                them. It takes no place in the queue, so whoever submits such plans bounds them.

        Raises:
            OverloadedError: the queue is full, or the deadline passed.
            ModelUnavailableError: the scheduler is closing.
            ServerError: the engine failed; the log says where.
        """
        with self._changed:
            if self._closing:
                raise shutting_down()
            job = self._reads.admit(plan, deadline, background)
            self._changed.notify_all()
        try:
            async with asyncio.timeout(None if deadline is None else deadline - time.monotonic()):
                response = await job.future
        except TimeoutError:
            with self._changed:
                late = self._reads.late(job)
            raise late from None
        finally:
            with self._changed:
                self._reads.release(job)
                self._changed.notify_all()  # a resting model lets go of it too
        return response, (job.started or job.submitted) - job.submitted

    async def write(self, plan: TextPlan, *, deadline: float | None = None) -> TextStream:
        """Admit a text; its events come from the stream that is returned, which whoever has it closes.

        Args:
            plan: what `Engine.prepare_text` made.
            deadline: when to give up, on the clock of `time.monotonic`.

        Raises:
            OverloadedError: too many texts are pending, or the deadline has passed.
            ModelUnavailableError: the scheduler is closing.
        """
        with self._changed:
            if self._closing:
                raise shutting_down()
            job = self._texts.admit(plan, deadline)

            def stop() -> None:
                with self._changed:
                    job.stop = True
                    self._changed.notify_all()

            job.stream = TextStream(stop, deadline)
            self._changed.notify_all()
        return job.stream

    async def pause(self, mode: Pause = "finish") -> None:
        """Take no more steps, and return once the model is at rest. What comes now waits for `resume`.

        Args:
            mode: `finish` lets plans that run end and canvases that are begun be finished; `keep` holds
                everything where it is after the forward in progress, and a text goes on from there as
                if nothing had been; `abort` ends texts as aborted and refuses plans, waiting or begun.
        """
        with self._changed:
            if self._closing:
                return
            self._paused, self._quiet = mode, False
            if mode == "abort":
                self._reads.drop(ModelUnavailableError("The model was paused", retry_after=1))
                self._texts.drop(None)
            self._changed.notify_all()
        await asyncio.to_thread(self._wait_until, lambda: self._quiet or self._paused is None)

    def resume(self) -> None:
        """Go on after a pause."""
        with self._changed:
            self._paused = None
            self._changed.notify_all()

    async def reset_cache(self) -> None:
        """Forget all cached prefixes and pictures, between two steps.

        What runs keeps the keys and values that it stands behind, so that nothing of it changes.
        """
        with self._changed:
            if self._closing:
                return
            self._reset = True
            self._changed.notify_all()
        await asyncio.to_thread(self._wait_until, lambda: not self._reset)

    def _wait_until(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: condition() or self._closing)

    def close(self, *, drain: bool = False, timeout: float | None = None) -> None:
        """Refuse new work, then finish (`drain`) or cancel what was admitted and join the thread.

        Args:
            drain: let everything that was admitted run to its end.
            timeout: seconds to wait for the thread; none = until it ends.
        """
        with self._changed:
            self._closing = True
            self._paused = None
            if not drain:
                self._reads.drop(shutting_down())
                self._texts.drop(shutting_down())
            self._changed.notify_all()
        self._thread.join(timeout)

    def _work(self) -> None:
        while (step := self._next()) is not None:
            step()
            del step  # an idle thread must not keep the last requests alive

    def _next(self) -> Callable[[], None] | None:
        """Wait for work and choose the next step; None once all is done and no more will come."""
        with self._changed:
            while True:
                if self._reset:
                    self._engine.forget()
                    self._reset = False
                    self._changed.notify_all()
                self._reads.sort(take=self._paused is None)
                self._texts.sort(take=self._paused is None)
                step = None if self._paused in ("keep", "abort") else self._choose()
                if step is not None:
                    return step
                if self._closing:
                    return None
                if self._paused is not None and not self._quiet:
                    self._quiet = True
                    self._changed.notify_all()
                self._changed.wait()

    def _choose(self) -> Callable[[], None] | None:
        """The next step: of plans, of texts, or of plans in the background."""
        plans = self._reads.wanted()
        texts = self._texts.wanted(finishing=self._paused == "finish")
        if self._text_share.is_second(first=bool(plans), second=bool(texts)):
            idle = self._reads.idle_work()
            if not self._idle_share.is_second(first=True, second=bool(idle)):
                return lambda: self._write(texts, contended=bool(idle))
            plans = idle
        both = bool(plans and texts)
        plans = plans or self._reads.idle_work()
        return (lambda: self._read(plans, contended=both)) if plans else None

    def _read(self, jobs: list[Job], *, contended: bool) -> None:
        started = time.monotonic()
        ended = self._reads.run(jobs)
        seconds = time.monotonic() - started
        self._text_share.note(seconds, second=False, contended=contended)
        if jobs[0].background:
            self._idle_share.note(seconds, second=True, contended=contended)
        with self._changed:
            self._reads.settle(ended, len(jobs))
        for job, outcome in ended:
            job.settle(outcome)

    def _write(self, jobs: list[TextJob], *, contended: bool) -> None:
        started = time.monotonic()
        self._texts.run(jobs)
        seconds = time.monotonic() - started
        self._text_share.note(seconds, second=True, contended=True)
        self._idle_share.note(seconds, second=False, contended=contended)
        with self._changed:
            self._texts.settle(jobs)
