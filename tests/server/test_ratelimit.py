"""A caller may burst up to its rate and then waits exactly as long as it is told."""

from __future__ import annotations

import pytest

from jev.errors import RateLimitError
from jev.server import ratelimit
from jev.server.ratelimit import RateLimiter


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def allowed(limiter: RateLimiter, caller: str = "a") -> bool:
    try:
        limiter.check(caller)
    except RateLimitError:
        return False
    return True


def test_burst_then_rate() -> None:
    clock = Clock()
    limiter = RateLimiter(60, clock=clock)
    assert sum(allowed(limiter) for _ in range(100)) == 60
    clock.now += 0.5
    assert not allowed(limiter)
    clock.now += 0.5
    assert allowed(limiter)
    assert not allowed(limiter)
    clock.now += 3600
    assert sum(allowed(limiter) for _ in range(100)) == 60


def test_the_wait_it_names_is_enough_and_no_longer() -> None:
    clock = Clock()
    limiter = RateLimiter(7, clock=clock)
    while allowed(limiter):
        pass
    with pytest.raises(RateLimitError) as caught:
        limiter.check("a")
    assert caught.value.retry_after == pytest.approx(60 / 7)
    assert caught.value.retry_after is not None
    clock.now += caught.value.retry_after - 0.01
    assert not allowed(limiter)
    clock.now += 0.011
    assert allowed(limiter)


def test_refused_requests_do_not_cost_anything() -> None:
    clock = Clock()
    limiter = RateLimiter(1, clock=clock)
    assert allowed(limiter)
    for _ in range(119):
        clock.now += 0.5
        assert not allowed(limiter)
    clock.now += 0.5
    assert allowed(limiter)


def test_callers_are_apart() -> None:
    limiter = RateLimiter(1, clock=Clock())
    assert [allowed(limiter, caller) for caller in "abab"] == [True, True, False, False]


def test_zero_means_no_limit() -> None:
    limiter = RateLimiter(0, clock=Clock())
    assert all(allowed(limiter) for _ in range(1000))


def test_the_number_of_callers_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ratelimit, "MAX_BUCKETS", 3)
    limiter = RateLimiter(1, clock=Clock())
    for caller in "abc":
        assert allowed(limiter, caller)
    assert not allowed(limiter, "a")  # refreshes a: b is now the oldest
    assert allowed(limiter, "d")
    assert not allowed(limiter, "a")
    assert allowed(limiter, "b")  # forgotten, so it starts afresh
