"""What the reader of a text sees: its events in order, from the model's thread to an event loop."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Self

from jev.errors import OverloadedError
from jev.writing import Draft, Ended, Event

logger = logging.getLogger(__name__)


class TextStream(AsyncIterator[Event]):
    """The events of one text. A draft that nobody has looked at gives way to what follows,
    unless it is a canvas's last.

    Args:
        stop: called once nobody wants the rest.
        deadline: when to give up, on the clock of `time.monotonic`.
    """

    def __init__(self, stop: Callable[[], None], deadline: float | None = None) -> None:
        self._stop = stop
        self._deadline = deadline
        self._loop = asyncio.get_running_loop()
        self._events: deque[Event | Exception] = deque()
        self._arrived = asyncio.Event()
        self._over = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def __anext__(self) -> Event:
        """The next event, `Ended` last.

        Raises:
            OverloadedError: the deadline passed; the text is given up.
            ModelUnavailableError: the scheduler closed.
            ServerError: the model failed; the log says where.
        """
        while not self._events:
            if self._over:
                raise StopAsyncIteration
            self._arrived.clear()
            left = None if self._deadline is None else self._deadline - time.monotonic()
            try:
                async with asyncio.timeout(left):
                    await self._arrived.wait()
            except TimeoutError:
                await self.aclose()
                raise deadline_passed() from None
        event = self._events.popleft()
        if isinstance(event, Exception):
            self._over = True
            raise event
        self._over = isinstance(event, Ended)
        return event

    async def aclose(self) -> None:
        """Give up the rest: the model stops within one forward."""
        self._over = True
        self._events.clear()
        self._stop()

    def push(self, *events: Event | Exception) -> None:
        """Add events, from any thread; nobody may be listening any more."""
        try:
            self._loop.call_soon_threadsafe(self._take, events)
        except RuntimeError:
            logger.debug("the event loop of a text closed before its end")

    def _take(self, events: tuple[Event | Exception, ...]) -> None:
        if self._over:
            return
        for event in events:
            last = self._events[-1] if self._events else None
            if isinstance(last, Draft) and not last.final:
                self._events.pop()  # whatever comes now is newer
            self._events.append(event)
        self._arrived.set()


def deadline_passed() -> OverloadedError:
    """What is said of a text that was not finished in time."""
    return OverloadedError("The deadline passed before the text was finished", retry_after=1)
