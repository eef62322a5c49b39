"""Asks a backend many requests at once, with a bound, and keeps what it says."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

from jev.backends import Backend
from jev.errors import (
    APIError,
    AuthenticationError,
    ConnectionError,
    JevError,
    NotFoundError,
    PermissionDeniedError,
    TimeoutError,
)
from jev.quality.cache import ReplyCache, key_of
from jev.quality.replies import Failure, Reply, reply_of
from jev.schemas import SystemOneRequest

HOPELESS = (ConnectionError, AuthenticationError, PermissionDeniedError, NotFoundError)
"""Errors that the next request would get too."""

Maker: TypeAlias = Callable[[], SystemOneRequest]
"""Makes a request when its turn comes, so that the attachments of all rows are never in memory at once."""


class Collector:
    """One backend, its cache, and how many requests it gets at a time.

    Args:
        backend: who is asked.
        cache: where replies are kept and looked up; None = nowhere.
        concurrency: most requests in flight; None = as the backend says.
        known: ask nothing: what the cache does not have is a failure.
    """

    def __init__(
        self,
        backend: Backend,
        cache: ReplyCache | None = None,
        concurrency: int | None = None,
        *,
        known: bool = False,
    ) -> None:
        if concurrency is not None and concurrency < 1:
            raise ValueError(f"concurrency must be 1 or more, got {concurrency}")
        self.backend = backend
        self.cache = cache
        self.known = known
        self.concurrency = concurrency or backend.concurrency
        # Taken once: a remote backend learns its model's full name with the first answer.
        self._identity = "\0".join((backend.name, backend.model, getattr(backend, "fingerprint", "")))

    async def ask(
        self, makers: Sequence[Maker], done: Callable[[], None] | None = None
    ) -> list[Reply | Failure]:
        """Ask all; outcomes in their order, with a failure where the backend refused or erred.

        Args:
            makers: one for each request.
            done: called after each.

        Raises:
            DataError: a request could not be made.
            ConnectionError: the backend cannot be reached; replies so far are in the cache.
            APIError: the key or the model is refused, which no other row would change.
            OSError: a reply cannot be kept.
        """
        outcomes: list[Reply | Failure | None] = [None] * len(makers)
        waiting = iter(range(len(makers)))

        async def work() -> None:
            for index in waiting:
                outcomes[index] = await self._one(makers[index])
                if done is not None:
                    done()

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(self.concurrency, len(makers))):
                    group.create_task(work())
        except* (JevError, OSError) as errors:
            raise _first(errors) from None
        return [outcome for outcome in outcomes if outcome is not None]

    async def _one(self, make: Maker) -> Reply | Failure:
        request = make()
        key = key_of(self._identity, request) if self.cache is not None else ""
        if self.cache is not None and (kept := self.cache.get(key)) is not None:
            return kept
        if self.known:
            return Failure("no answer is kept")
        started = time.perf_counter()
        try:
            response = await self.backend.decide(request)
            reply = reply_of(request.questions, response, time.perf_counter() - started)
        except Exception as error:  # whatever one row does to a backend, the others are asked
            # That a row takes too long says nothing about the others.
            if isinstance(error, HOPELESS) and not isinstance(error, TimeoutError):
                raise
            return Failure(_reason(error))
        if self.cache is not None:
            self.cache.put(key, reply)
        return reply


def _reason(error: Exception) -> str:
    if isinstance(error, ValueError) and not isinstance(error, JevError):
        return f"bad answer: {error}"
    return f"{type(error).__name__}: {_message(error) if isinstance(error, APIError) else error}"


def _message(error: APIError) -> str:
    """The error's message; for a bad request its places below the body."""
    places = [(".".join(map(str, issue.loc[1:])), issue.msg) for issue in error.issues]
    return "; ".join(f"{where}: {told}" if where else told for where, told in places) or error.message


def _first(group: BaseExceptionGroup) -> BaseException:
    """The first error in a group of groups."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
