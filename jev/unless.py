"""Work that is given up when something else happens."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def unless(happens: Awaitable[object], work: Awaitable[T], error: Exception) -> T:
    """Await `work`, but cancel it and raise `error` as soon as `happens` is done; work that is done wins."""
    task, other = asyncio.ensure_future(work), asyncio.ensure_future(happens)
    try:
        await asyncio.wait({task, other}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise error
        return task.result()
    finally:
        task.cancel()
        other.cancel()
        await asyncio.wait({task, other})
        for one in (task, other):
            if not one.cancelled():
                one.exception()  # seen, even when nobody raises it
