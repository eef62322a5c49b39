"""A response that is sent bit by bit, until its end or until nobody reads it any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, suppress

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from jev.server.record import RequestRecord
from jev.server.waiting import disconnected

SEND_SECONDS = 1.0
"""Time for the last bit when the server stops."""


class StreamedResponse(Response):
    """Sends bits as they come.

    Args:
        bits: what is sent; it must not raise, since it is too late for an error response.
        stopped: the last bit when the server stops and cannot wait for the others.
        held: closed at the end, and when the client goes away, even before the first bit.
        media_type: of all of it.
        headers: of the response.
    """

    def __init__(
        self,
        bits: AsyncGenerator[bytes],
        stopped: bytes,
        held: AsyncExitStack,
        media_type: str,
        headers: Mapping[str, str],
    ) -> None:
        # A proxy that gathers bits would undo them.
        super().__init__(None, 200, {**headers, "cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self.headers["content-type"] = media_type
        self._bits = bits
        self._stopped = stopped
        self._held = held
        self._begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        async with self._held:
            sending = asyncio.ensure_future(self._send(send))
            gone = asyncio.ensure_future(disconnected(receive))
            try:
                await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
                if not sending.done():
                    RequestRecord.of(scope).gone = True
            except asyncio.CancelledError:
                await _ended(sending)
                if not self._begun:
                    raise
                with suppress(TimeoutError):
                    async with asyncio.timeout(SEND_SECONDS):
                        await self._end(send, self._stopped)
            finally:
                await _ended(sending, gone)
                await self._bits.aclose()
            if not sending.cancelled():
                sending.result()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        self._begun = True
        async for bit in self._bits:
            await send({"type": "http.response.body", "body": bit, "more_body": True})
        await self._end(send, b"")

    async def _end(self, send: Send, last: bytes) -> None:
        await send({"type": "http.response.body", "body": last, "more_body": False})


async def _ended(*tasks: asyncio.Future[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
