"""How long a route works for its caller: until the deadline, and while the caller is there."""

from __future__ import annotations

import math
from collections.abc import Awaitable
from typing import TypeVar

from starlette.datastructures import Headers
from starlette.types import Receive

from jev.errors import InvalidRequestError
from jev.schemas import Issue
from jev.server.errors import ClientGoneError
from jev.unless import unless

T = TypeVar("T")


async def unless_gone(receive: Receive, work: Awaitable[T]) -> T:
    """Await `work`, but cancel it and raise ClientGoneError as soon as the client closes the connection."""
    return await unless(disconnected(receive), work, ClientGoneError())


async def disconnected(receive: Receive) -> None:
    """Return once the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


def seconds_allowed(headers: Headers, limit: float) -> float:
    """The deadline in seconds: the setting, or less if the caller's `timeout` header says so.

    Raises:
        InvalidRequestError: the header is not a number of seconds.
    """
    text = headers.get("timeout")
    if text is None:
        return limit
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not (seconds > 0 and math.isfinite(seconds)):
        msg = "Input should be a number of seconds greater than 0"
        raise InvalidRequestError.of([Issue(loc=["header", "timeout"], msg=msg, type="float_parsing")])
    return min(limit, seconds)
