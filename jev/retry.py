"""When a failed call is tried again, and after how long."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime

RETRIED_STATUSES = frozenset({408, 429, 502, 503, 504, 529})
"""Statuses that say "not now": too slow, too many, a gateway's, loading, overloaded."""


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """How often and how patiently a client tries again.

    Besides `statuses`, a connection that fails or breaks and a timeout are retried: a decision
    changes nothing on the server, so asking twice is safe. A server's `retry-after-ms` or
    `Retry-After` header replaces the computed wait.

    Attributes:
        max_retries: tries after the first one; 0 turns retries off.
        backoff: seconds before the first retry; doubles with each retry.
        max_backoff: most seconds that the doubling reaches.
        jitter: largest fraction of a wait that chance takes off, from 0 to 1.
        statuses: HTTP statuses to retry; of the 4xx only 408 and 429 may be among them.
        budget: seconds from the first try after which no retry begins.

    Raises:
        ValueError: for a value out of range.
    """

    max_retries: int = 2
    backoff: float = 0.5
    max_backoff: float = 8.0
    jitter: float = 0.25
    statuses: Set[int] = RETRIED_STATUSES
    budget: float = 60.0

    def __post_init__(self) -> None:
        for name in ("max_retries", "backoff", "max_backoff", "budget"):
            value = getattr(self, name)
            if not value >= 0:
                raise ValueError(f"RetryPolicy.{name} must be 0 or more, got {value!r}")
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"RetryPolicy.jitter must be from 0 to 1, got {self.jitter!r}")
        hopeless = sorted(s for s in self.statuses if not 500 <= s < 600 and s not in (408, 429))
        if hopeless:
            raise ValueError(f"RetryPolicy.statuses: {hopeless} would fail the same way again")
        object.__setattr__(self, "statuses", frozenset(self.statuses))

    def delay(
        self, retries: int, *, elapsed: float, retry_after: float | None, chance: Callable[[], float]
    ) -> float | None:
        """Return the seconds to wait before the next try, or None when there is none.

        Args:
            retries: how many retries there were already.
            elapsed: seconds since the first try began.
            retry_after: seconds that the server asked for, if it did.
            chance: returns a number in [0, 1).
        """
        if retries >= self.max_retries:
            return None
        wait = retry_after
        if wait is None:
            # The exponent is bounded because 2.0**1024 overflows.
            wait = min(self.max_backoff, self.backoff * 2.0 ** min(retries, 64))
            wait *= 1 - self.jitter * chance()
        return wait if elapsed + wait < self.budget else None


def retry_after_of(headers: Mapping[str, str], now: float) -> float | None:
    """Return the seconds that a response asks to wait, or None where it does not say.

    Reads `retry-after-ms` first, then `Retry-After` as seconds or as an HTTP date, which is
    compared with `now` (seconds since 1970). Values that make no sense are as good as absent.
    """
    millis = _seconds(headers.get("retry-after-ms"))
    if millis is not None:
        return millis / 1000
    value = headers.get("retry-after")
    seconds = _seconds(value)
    if seconds is not None or value is None:
        return seconds
    try:
        date = parsedate_to_datetime(value)
    except ValueError:
        return None
    if date.tzinfo is None:  # "-0000" gives a date without a zone; HTTP dates are in UTC.
        date = date.replace(tzinfo=UTC)
    return max(0.0, date.timestamp() - now)


def _seconds(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None
