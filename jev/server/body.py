"""The request body: which kinds are served, how it is received, and how it becomes JSON and parts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from python_multipart.multipart import parse_options_header
from starlette.datastructures import Headers
from starlette.types import Receive

from jev.errors import OverloadedError, TooLargeError, UnsupportedMediaTypeError
from jev.schemas import BadRequestError
from jev.server.compression import decompress
from jev.server.errors import ClientGoneError, RequestTimeoutError
from jev.server.multipart import parse_multipart

ENCODINGS = {"": "identity", "identity": "identity", "gzip": "gzip", "x-gzip": "gzip", "zstd": "zstd"}


@dataclass(frozen=True, slots=True)
class Media:
    """How a body is packed: its content encoding and, for multipart, the boundary."""

    encoding: str
    boundary: bytes | None = None

    @classmethod
    def of(cls, headers: Headers) -> Media:
        """Read the headers.

        Raises:
            UnsupportedMediaTypeError: neither JSON nor multipart, or an encoding that is not served.
            BadRequestError: multipart without a boundary.
        """
        encoding = ENCODINGS.get(",".join(headers.getlist("content-encoding")).strip().lower())
        if encoding is None:
            raise UnsupportedMediaTypeError("The content encodings served are gzip and zstd, one at a time")
        kind, options = parse_options_header(headers.get("content-type", ""))
        if kind == b"multipart/form-data":
            if not options.get(b"boundary"):
                raise BadRequestError.at(msg="The multipart body names no boundary", type="multipart_invalid")
            return cls(encoding, options[b"boundary"])
        if kind not in (b"", b"application/json") and not kind.endswith(b"+json"):
            raise UnsupportedMediaTypeError(
                "Send application/json, or multipart/form-data with a part 'request'"
            )
        return cls(encoding)

    def unpack(self, raw: bytes, limit: int) -> tuple[bytes, dict[str, bytes]]:
        """Return the JSON and the other parts by name; slow for large bodies, so not for the event loop.

        Raises:
            TooLargeError: it expands to more than `limit` bytes, or a part is over its own limit.
            BadRequestError: the packing is malformed.
        """
        data = decompress(raw, self.encoding, limit)
        return (data, {}) if self.boundary is None else parse_multipart(data, self.boundary)


class BodyBudget:
    """Bounds the bytes that all request bodies in memory hold together."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = 0

    @contextmanager
    def lease(self) -> Iterator[Lease]:
        """Count bytes until the block ends."""
        lease = Lease(self)
        try:
            yield lease
        finally:
            self._held -= lease.held

    def take(self, count: int) -> None:
        """Count `count` more bytes, or raise OverloadedError."""
        if self._held + count > self._limit:
            raise OverloadedError("Too many large requests are being received", retry_after=1)
        self._held += count


@dataclass(slots=True)
class Lease:
    """The bytes one request holds of a budget."""

    budget: BodyBudget
    held: int = field(default=0)

    def take(self, count: int) -> None:
        """Hold `count` more bytes, or raise OverloadedError."""
        self.budget.take(count)
        self.held += count


async def receive_body(
    receive: Receive, headers: Headers, lease: Lease, *, limit: int, seconds: float
) -> bytes:
    """Read a whole body as it was sent.

    Raises:
        TooLargeError: `Content-Length`, or what arrived, is over `limit` bytes.
        RequestTimeoutError: it took longer than `seconds`.
        OverloadedError: other bodies hold too much memory already.
        ClientGoneError: the client closed the connection.
    """
    declared = headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > limit:
        raise _too_large(limit)
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(seconds):
            more = True
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGoneError
                chunk = message.get("body", b"")
                more = message.get("more_body", False)
                size += len(chunk)
                if size > limit:
                    raise _too_large(limit)
                lease.take(len(chunk))
                chunks.append(chunk)
    except TimeoutError:
        raise RequestTimeoutError(f"The request body did not arrive within {seconds:g} s") from None
    return b"".join(chunks)


def _too_large(limit: int) -> TooLargeError:
    return TooLargeError(f"The body is over the limit of {limit} bytes")
