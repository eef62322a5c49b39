"""Texts that wait for the model or are being written: bounded admission, and turns of one canvas.

Nothing here is for several threads: the scheduler's lock is held by whoever calls, but for `run`.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jev.crash import crash_report
from jev.errors import APIError, ModelUnavailableError, OverloadedError, ServerError
from jev.reads import MAX_RETRY_AFTER, MIN_RETRY_AFTER
from jev.text_stream import deadline_passed
from jev.writing import Ended

if TYPE_CHECKING:
    from jev.engine import Engine
    from jev.text_stream import TextStream
    from jev.writer import Text
    from jev.writing import Event, TextPlan

logger = logging.getLogger(__name__)

MEMORY = 0.2
"""Weight of the last text in the mean time of a text."""


@dataclass(frozen=True)
class TextLimits:
    """How many texts are taken, and how they share the model.

    Attributes:
        texts: most that wait or are live.
        live: most that take turns; their keys and values are in memory.
        tokens: most rows of live ones together; a larger one is live alone.
        batch: texts of one forward.
    """

    texts: int = 128
    live: int = 4
    tokens: int = 262144
    batch: int = 1


@dataclass(eq=False, slots=True)
class TextJob:
    """One admitted text."""

    plan: TextPlan
    submitted: float
    deadline: float | None = None
    stream: TextStream | None = None
    started: float | None = None
    stop: bool = False
    text: Text | None = None

    @property
    def refining(self) -> bool:
        """Whether a canvas is begun and not finished."""
        return self.text is not None and self.text.refining


class Texts:
    """The queue of texts and the ring of live ones.

    The first of the ring is written until its canvas is finished; then it goes to the end of the ring. A
    text that waits comes in when there is a place, which is at the end of a canvas.
    """

    def __init__(self, engine: Engine, limits: TextLimits) -> None:
        self._engine = engine
        self._limits = limits
        self._waiting: deque[TextJob] = deque()
        self._ring: deque[TextJob] = deque()
        self._mean_s = 0.0

    @property
    def pending(self) -> tuple[int, int]:
        """Texts that wait or are live, and rows that they may take."""
        jobs = (*self._waiting, *self._ring)
        return len(jobs), sum(job.plan.tokens for job in jobs)

    def admit(self, plan: TextPlan, deadline: float | None) -> TextJob:
        """Put a text in the queue.

        Raises:
            OverloadedError: there is no place for it, or its deadline has passed.
        """
        count = sum(not job.stop for job in (*self._waiting, *self._ring))
        wait = min(max(count * self._mean_s, MIN_RETRY_AFTER), MAX_RETRY_AFTER)
        if deadline is not None and deadline <= time.monotonic():
            raise OverloadedError("The deadline passed before the text was queued", retry_after=wait)
        if count >= self._limits.texts:
            raise OverloadedError(f"{count} texts are pending already", retry_after=wait)
        job = TextJob(plan, time.monotonic(), deadline)
        self._waiting.append(job)
        return job

    def drop(self, why: ModelUnavailableError | None) -> None:
        """End all: with an error, or as aborted where they are."""
        for job in (*self._waiting, *self._ring):
            if not job.stop:
                job.stop = True
                _push(job, why or _aborted(job))
        self._waiting.clear()

    def sort(self, *, take: bool = True) -> None:
        """Let go of what is not wanted and, with `take`, take up what waits; for the model's thread."""
        self._end_late()
        for job in [job for job in self._ring if job.stop]:
            if job.text is not None:
                job.text.cancel()
            self._ring.remove(job)
        self._waiting = deque(job for job in self._waiting if not job.stop)
        while take and self._waiting and self._has_room(self._waiting[0].plan):
            job = self._waiting.popleft()
            job.started = time.monotonic()
            self._ring.append(job)

    def _end_late(self) -> None:
        """End what is over its deadline: a reader that does not read does not notice it."""
        now = time.monotonic()
        for job in (*self._waiting, *self._ring):
            if not job.stop and job.deadline is not None and job.deadline <= now:
                job.stop = True
                _push(job, deadline_passed())

    def _has_room(self, plan: TextPlan) -> bool:
        if not self._ring:
            return True
        used = sum(job.plan.tokens for job in self._ring)
        return len(self._ring) < self._limits.live and used + plan.tokens <= self._limits.tokens

    def wanted(self, *, finishing: bool = False) -> list[TextJob]:
        """Whose turn it is: texts with one adapter; with `finishing` only canvases that are begun."""
        due = [job for job in self._ring if job.refining or not finishing]
        if not due:
            return []
        same = [job for job in due if job.plan.adapter == due[0].plan.adapter]
        return same[: self._limits.batch]

    def run(self, jobs: Sequence[TextJob]) -> None:
        """Take one step with the jobs; what fails is kept in the text that failed."""
        try:
            for job in jobs:
                if job.text is None:
                    job.text = self._engine.writer.start(job.plan)
            self._engine.writer.step([job.text for job in jobs if job.text is not None])
        except BaseException as error:  # the thread outlives whatever a text does to it
            logger.error("a step of the model failed: %s", crash_report(error))
            for job in jobs:
                job.text = None

    def settle(self, jobs: Sequence[TextJob]) -> None:
        """Hand out what came of a step, let go of what has ended, and give others their turn."""
        for job in jobs:
            text = job.text
            if text is None or text.error is not None:
                error = None if text is None else text.error
                if error is not None and not isinstance(error, APIError):
                    logger.error("a text failed in the engine: %s", crash_report(error))
                    error = None
                _push(job, error or ServerError())
                self._ring.remove(job)
                continue
            if not job.stop:
                _push(job, *text.take())
            if text.done:
                self._ring.remove(job)
                self._learn(time.monotonic() - (job.started or job.submitted))
            elif text.turned:
                self._ring.remove(job)
                self._ring.append(job)

    def _learn(self, seconds: float) -> None:
        live = max(1, len(self._ring) + 1)
        self._mean_s += (MEMORY if self._mean_s else 1.0) * (seconds / live - self._mean_s)


def _push(job: TextJob, *events: Event | Exception) -> None:
    if job.stream is not None and events:
        job.stream.push(*events)


def _aborted(job: TextJob) -> Ended:
    """The end of a text that somebody else has ended."""
    generation = job.text.generation if job.text is not None else None
    if generation is None:
        return Ended("aborted", 0, 0, 0)
    return Ended("aborted", len(generation.tokens), len(generation.committed), generation.steps)
