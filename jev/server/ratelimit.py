"""A token bucket a caller."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from jev.errors import RateLimitError

MAX_BUCKETS = 10_000
"""Most callers remembered; beyond it the one seen least recently is forgotten."""


class RateLimiter:
    """Lets each caller send `per_minute` requests at once and then at that rate. 0 = no limit.

    Used from the event loop only, so it needs no lock.
    """

    def __init__(self, per_minute: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._capacity = float(per_minute)
        self._per_second = per_minute / 60
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # caller -> (tokens, when)

    def check(self, caller: str) -> None:
        """Count one request of `caller`.

        Raises:
            RateLimitError: it is over the rate; `retry_after` says when the next one is let through.
        """
        if not self._capacity:
            return
        now = self._clock()
        tokens, then = self._buckets.pop(caller, (self._capacity, now))
        tokens = min(self._capacity, tokens + (now - then) * self._per_second)
        allowed = tokens >= 1 - 1e-6  # a caller that waited as long as it was told must not fail by rounding
        self._buckets[caller] = (tokens - 1 if allowed else tokens, now)
        if len(self._buckets) > MAX_BUCKETS:
            self._buckets.popitem(last=False)
        if not allowed:
            raise RateLimitError(
                f"The limit is {self._capacity:.0f} requests a minute",
                retry_after=(1 - tokens) / self._per_second,
            )
