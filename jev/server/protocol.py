"""HTTP/1.1 on the socket: no upgrades, JSON for what is not HTTP, an end to connections that stall."""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from jev.errors import InvalidRequestError
from jev.server.errors import error_response
from jev.server.record import new_request_id

STALL_SECONDS = 30.0
"""How long the head of a request, or a body that nobody waits for, may take to arrive."""


class HTTPProtocol(H11Protocol):
    """uvicorn's protocol, with what an app cannot do from inside."""

    _stall: asyncio.TimerHandle | None = None
    _refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Start to wait for the first request."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Feed the parser, unless it has given up on this connection."""
        if not self._refused:
            super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._unwatch()
        super().connection_lost(exc)

    def _should_upgrade(self) -> bool:
        # Every request is answered in HTTP/1.1, which is what a client that asks for more must accept;
        # uvicorn would log advice to install a library for what is not served.
        return False

    def send_400_response(self, msg: str) -> None:
        """Refuse bytes that are not HTTP in the same form as any other error."""
        response = error_response(InvalidRequestError(msg, status=400))
        name = new_request_id().encode()
        headers = [
            *response.raw_headers,
            (b"x-typesafe-request-id", name),
            (b"x-request-id", name),
            (b"connection", b"close"),
        ]
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()  # another response is under way
            return
        # The parser has failed, but the half that writes still works.
        start = h11.Response(status_code=400, headers=headers, reason=b"Bad Request")
        for event in (start, h11.Data(data=bytes(response.body)), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        # Closing with bytes unread would reset the connection and the client might miss the answer:
        # say that nothing more will come, and throw away what still arrives until the timer ends it.
        self._refused = True
        self.transport.write_eof()
        if self.cycle is not None:
            self.cycle.disconnected = True  # an app that was reading the body has nothing to answer
            self.cycle.message_event.set()

    def _watch(self) -> None:
        """Run the timer exactly while the client owes bytes that no app is reading."""
        if self.transport.is_closing() or self._is_served():
            self._unwatch()
        elif self._stall is None:
            self._stall = self.loop.call_later(STALL_SECONDS, self._stalled)

    def _unwatch(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def _stalled(self) -> None:
        self._stall = None
        if not self._is_served():
            self.transport.close()

    def _is_served(self) -> bool:
        """Whether an app is at work on a request of this connection."""
        return not self._refused and self.cycle is not None and not self.cycle.response_complete
