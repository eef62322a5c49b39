"""HTTP/1.1 on the socket: no upgrades, JSON for what is not HTTP, an end to connections that stall."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from jev.errors import InvalidRequestError
from jev.server.errors import error_response
from jev.server.record import new_request_id

STALL_SECONDS = 30.0
"""How long the head of a request, or a body that nobody waits for, may take to arrive."""


class _Parser(h11.Connection):
    """h11's parser, with a limit on heads that also binds those that arrive in one piece.

    Args:
        limit: most bytes of a head, and of what h11 holds of an unfinished one.

    Attributes:
        refusal: what is said about the bytes that it could not take.
    """

    def __init__(self, limit: int) -> None:
        super().__init__(h11.SERVER, limit)
        self.limit = limit
        self.refusal = "These bytes are not an HTTP/1.1 request"

    def next_event(self) -> Any:
        """The next event; RemoteProtocolError for bytes that are not HTTP, or a head over the limit."""
        try:
            event = super().next_event()
        except h11.RemoteProtocolError as error:
            if error.error_status_hint == 431:
                self.refusal = self._too_long()
            raise
        if isinstance(event, h11.Request) and _size(event) > self.limit:
            self.refusal = self._too_long()
            raise h11.RemoteProtocolError(self.refusal, error_status_hint=431)
        return event

    def _too_long(self) -> str:
        return f"The head of the request is over the limit of {self.limit} bytes"


class HTTPProtocol(H11Protocol):
    """uvicorn's protocol, with what an app cannot do from inside."""

    _stall: asyncio.TimerHandle | None = None
    _refused = False

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        limit = config.h11_max_incomplete_event_size
        assert limit is not None
        self.conn = self._parser = _Parser(limit)

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
        """Refuse what the parser could not take in the same form as any other error."""
        response = error_response(InvalidRequestError(self._parser.refusal, status=400))
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


def _size(request: h11.Request) -> int:
    """Bytes of a head as it is sent, without optional spaces."""
    line = len(request.method) + len(request.target) + len(" HTTP/1.1\r\n ")
    return line + sum(len(name) + len(value) + len(": \r\n") for name, value in request.headers) + len("\r\n")
