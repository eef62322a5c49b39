"""Who decides the rows of a job: an engine in this process, group by group, or any backend, row by row."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

from jev.backends.base import Backend
from jev.errors import (
    APIError,
    AuthenticationError,
    ConnectionError,
    InvalidRequestError,
    JevError,
    NotFoundError,
    OverloadedError,
    PermissionDeniedError,
    RateLimitError,
    ServerError,
    TimeoutError,
)
from jev.retry import RetryPolicy
from jev.schemas import ATTACHMENT_FIELDS, SystemOneRequest, SystemOneResponse

if TYPE_CHECKING:
    from jev.engine import Engine
    from jev.plan import Plan
    from jev.settings import Settings

T = TypeVar("T")

Decided: TypeAlias = SystemOneResponse | JevError

_FOR_ALL = (AuthenticationError, PermissionDeniedError, RateLimitError, OverloadedError)
"""What a server says to all rows, whatever is in them; to the last two only after all tries."""

GROUP_ROWS = 64
"""Rows that an engine decides together: what a kill loses at most, twice."""

PREPARE_THREADS = 2

JOB_FIELDS = frozenset(SystemOneRequest.model_fields) - {
    *("state", "questions", "instructions", "assets"),
    *ATTACHMENT_FIELDS,
}
"""Fields of a request that are no row's own. What is too long may be called instructions, but it is not
too long for every row."""


class Decider(Protocol):
    """Decides groups of requests."""

    @property
    def model(self) -> str:
        """Name of the model that answers."""
        ...

    @property
    def rows(self) -> int:
        """Most requests of a group."""
        ...

    @property
    def groups(self) -> int:
        """How many groups it works on at once."""
        ...

    async def decide(self, requests: Sequence[SystemOneRequest]) -> list[Decided]:
        """Answer requests; the outcome of each is a response or the error that refused it."""
        ...

    def stops(self, error: JevError) -> bool:
        """Whether asking for other rows makes no sense after an error."""
        ...

    async def aclose(self) -> None:
        """Free what it holds."""
        ...


class EngineDecider:
    """An engine that decides one group while the next is tokenised and its attachments are read.

    A group is packed the same way whatever was decided before it, so the same groups give the same
    numbers: what is resumed equals what was never interrupted. Rows of one group share states.

    Args:
        engine: a loaded engine that nothing else uses meanwhile.
        settings: how attachments are read.
        rows: rows of a group.
        adapter: one of the engine's, which answers requests whose model names none; None = none.
    """

    def __init__(
        self, engine: Engine, settings: Settings, *, rows: int = GROUP_ROWS, adapter: str | None = None
    ) -> None:
        from jev.backends.material import MaterialReader  # noqa: PLC0415 - the extra, as the engine

        self.model = engine.name if adapter is None else f"{engine.name}+{adapter}"
        self.rows = rows
        self.groups = 2
        self._engine = engine
        self._adapter = adapter
        self._material = MaterialReader(settings, has_vision=engine.has_vision)
        self._tokenising = ThreadPoolExecutor(PREPARE_THREADS, thread_name_prefix="jev-prepare")
        self._modelling = ThreadPoolExecutor(1, thread_name_prefix="jev-model")

    async def decide(self, requests: Sequence[SystemOneRequest]) -> list[Decided]:
        """See `Decider`."""
        plans = await asyncio.gather(*map(self._prepare, requests))
        wanted = [plan for plan in plans if not isinstance(plan, JevError)]
        answers = iter(await self._on(self._modelling, lambda: self._run(wanted)))
        return [plan if isinstance(plan, JevError) else next(answers) for plan in plans]

    def stops(self, error: JevError) -> bool:
        """See `Decider`."""
        return is_the_jobs(error)

    async def aclose(self) -> None:
        """See `Decider`."""
        self._modelling.shutdown(cancel_futures=True)
        self._tokenising.shutdown(cancel_futures=True)
        await self._material.aclose()

    async def _prepare(self, request: SystemOneRequest) -> Plan | JevError:
        try:
            material = await self._material.of(request)
            if material is not None:  # what was read is in it; the files need not stay in memory
                request = request.model_copy(update={name: [] for name in ATTACHMENT_FIELDS})
            prepare = partial(self._engine.prepare, request, material, adapter=self._adapter)
            return await self._on(self._tokenising, prepare)
        except JevError as error:
            return error

    def _run(self, plans: list[Plan]) -> list[Decided]:
        if not plans:
            return []
        return [_decided(one) for one in self._engine.run_many(plans, fresh=True)]

    async def _on(self, pool: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(pool, work)


def is_the_jobs(error: JevError) -> bool:
    """Whether an error is about what all rows have in common: the model, or an option of the requests."""
    if isinstance(error, NotFoundError):
        return True
    places = [issue.loc[1:2] for issue in error.issues] if isinstance(error, InvalidRequestError) else []
    return bool(places) and all(place and place[0] in JOB_FIELDS for place in places)


def _decided(one: SystemOneResponse | Exception) -> Decided:
    if isinstance(one, (SystemOneResponse, JevError)):
        return one
    return ServerError(f"The model failed: {type(one).__name__}")


class BackendDecider:
    """Any backend, as many rows at once as it makes use of.

    Args:
        backend: what answers; it is closed with the decider.
        concurrency: rows at once; None = as many as the backend makes use of.
        retry: when a row is asked again; None for a backend that sees to it itself.
    """

    rows = 1

    def __init__(
        self, backend: Backend, *, concurrency: int | None = None, retry: RetryPolicy | None = None
    ) -> None:
        self._backend = backend
        self._retry = retry or RetryPolicy(max_retries=0)
        self.groups = concurrency or backend.concurrency

    @property
    def model(self) -> str:
        """See `Decider`."""
        return self._backend.model

    async def decide(self, requests: Sequence[SystemOneRequest]) -> list[Decided]:
        """See `Decider`."""
        return [await self._one(request) for request in requests]

    def stops(self, error: JevError) -> bool:
        """See `Decider`. A row that takes too long says nothing about the others."""
        if isinstance(error, ConnectionError):
            return not isinstance(error, TimeoutError)
        return is_the_jobs(error) or isinstance(error, _FOR_ALL)

    async def aclose(self) -> None:
        """See `Decider`."""
        await self._backend.aclose()

    async def _one(self, request: SystemOneRequest) -> Decided:
        started, retries = time.monotonic(), 0
        while True:
            try:
                return await self._backend.decide(request)
            except JevError as error:
                wait = self._wait(error, retries, time.monotonic() - started)
                if wait is None:
                    return error
            retries += 1
            await asyncio.sleep(wait)

    def _wait(self, error: JevError, retries: int, elapsed: float) -> float | None:
        """Seconds until the row is asked again; None for never."""
        if isinstance(error, APIError):
            if error.status not in self._retry.statuses:
                return None
        elif not isinstance(error, ConnectionError):
            return None
        after = getattr(error, "retry_after", None)
        return self._retry.delay(retries, elapsed=elapsed, retry_after=after, chance=random.random)
