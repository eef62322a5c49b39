"""A failed call is tried again where that can help, after the right wait, and within the budget."""

import asyncio
import email.utils
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from jev import AsyncJev, ConnectionError, Jev, JevError, RetryPolicy, TimeoutError
from jev.retry import retry_after_of

OK = {"status": "ok"}
NO_JITTER = RetryPolicy(jitter=0)


class Clock:
    """A clock that only the client's sleeps and the server's slowness move."""

    def __init__(self) -> None:
        self.now = 100.0
        self.waits: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds

    async def async_sleep(self, seconds: float) -> None:
        self.sleep(seconds)


class Run:
    """`health()` against a server that answers each try with the next of `script`."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.clock = Clock()
        self.tries = 0

    def __call__(self, *script: Any, retry: RetryPolicy = NO_JITTER, slow: float = 0.0) -> Any:
        steps: Iterator[Any] = iter(script)

        def answer(request: httpx.Request) -> httpx.Response:
            self.tries += 1
            self.clock.now += slow
            step = next(steps)
            if isinstance(step, Exception):
                raise step
            if isinstance(step, int):
                return httpx.Response(step, json=OK)
            status, headers = step
            return httpx.Response(status, headers=headers, json=OK)

        if self.kind == "sync":
            with Jev(transport=httpx.MockTransport(answer), retry=retry) as jev:
                jev._clock, jev._sleep = self.clock, self.clock.sleep
                return jev.health()

        async def run() -> Any:
            async with AsyncJev(transport=httpx.MockTransport(answer), retry=retry) as jev:
                jev._clock, jev._sleep = self.clock, self.clock.async_sleep
                return await jev.health()

        return asyncio.run(run())


@pytest.fixture(params=["sync", "async"])
def run(request: pytest.FixtureRequest) -> Run:
    return Run(request.param)


@pytest.mark.parametrize("status", [408, 429, 502, 503, 504, 529])
def test_passing_statuses_are_retried(run: Run, status: int) -> None:
    assert run(status, status, 200) == OK
    assert run.tries == 3
    assert run.clock.waits == [0.5, 1.0]


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 409, 413, 415, 422, 500, 501])
def test_other_statuses_are_not(run: Run, status: int) -> None:
    with pytest.raises(JevError):
        run(status, 200)
    assert run.tries == 1
    assert run.clock.waits == []


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (httpx.ConnectError("refused"), ConnectionError),
        (httpx.ConnectTimeout("slow"), TimeoutError),
        (httpx.ReadTimeout("slow"), TimeoutError),
        (httpx.WriteError("broken pipe"), ConnectionError),
        (httpx.ReadError("reset"), ConnectionError),
        (httpx.RemoteProtocolError("disconnected"), ConnectionError),
    ],
)
def test_broken_connections_and_timeouts_are_retried(
    run: Run, failure: httpx.HTTPError, kind: type[ConnectionError]
) -> None:
    assert run(failure, failure, 200) == OK
    assert run.tries == 3
    with pytest.raises(ConnectionError) as caught:
        run(failure, failure, failure, 200)
    assert type(caught.value) is kind
    assert caught.value.__cause__ is failure
    assert "http://127.0.0.1:8000" in str(caught.value)
    assert run.tries == 6


@pytest.mark.parametrize(
    "failure", [httpx.UnsupportedProtocol("x"), httpx.LocalProtocolError("x"), httpx.ProxyError("x")]
)
def test_failures_that_would_repeat_are_not_retried(run: Run, failure: httpx.HTTPError) -> None:
    with pytest.raises(ConnectionError):
        run(failure, 200)
    assert run.tries == 1


def test_the_last_error_is_raised_after_max_retries(run: Run) -> None:
    with pytest.raises(JevError) as caught:
        run(503, 502, 529, 200)
    assert getattr(caught.value, "status", None) == 529
    assert run.tries == 3


def test_zero_retries(run: Run) -> None:
    with pytest.raises(JevError):
        run(503, 200, retry=RetryPolicy(max_retries=0))
    assert run.tries == 1


def test_own_statuses_replace_the_default(run: Run) -> None:
    assert run(500, 200, retry=RetryPolicy(statuses={500})) == OK
    with pytest.raises(JevError):
        run(503, 200, retry=RetryPolicy(statuses={500}))
    assert run.tries == 3


def test_backoff_doubles_up_to_its_limit(run: Run) -> None:
    retry = RetryPolicy(max_retries=7, backoff=0.5, max_backoff=8.0, jitter=0)
    assert run(*[503] * 7, 200, retry=retry) == OK
    assert run.clock.waits == [0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0]


def test_jitter_shortens_waits_within_its_bounds(run: Run) -> None:
    retry = RetryPolicy(max_retries=60, jitter=0.25, backoff=1.0, max_backoff=1.0, budget=1000)
    assert run(*[503] * 60, 200, retry=retry) == OK
    assert all(0.75 <= wait <= 1.0 for wait in run.clock.waits)
    assert len(set(run.clock.waits)) > 50


def test_chance_decides_the_jitter() -> None:
    policy = RetryPolicy(backoff=4.0, jitter=0.5)
    waits = [policy.delay(0, elapsed=0, retry_after=None, chance=lambda c=c: c) for c in (0.0, 0.5, 1.0)]
    assert waits == [4.0, 3.0, 2.0]


def test_many_retries_do_not_overflow() -> None:
    policy = RetryPolicy(max_retries=5000, jitter=0)
    assert policy.delay(4000, elapsed=0, retry_after=None, chance=lambda: 0) == 8.0


@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        ({"retry-after": "3"}, 3.0),
        ({"retry-after": "20"}, 20.0),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after-ms": "soon", "retry-after": "2"}, 2.0),
        ({"retry-after": "whenever"}, 0.5),
        ({"retry-after": "-3"}, 0.5),
        ({"retry-after": "inf"}, 0.5),
        ({"retry-after": ""}, 0.5),
    ],
)
def test_the_servers_wait_replaces_the_computed_one(run: Run, headers: dict[str, str], wait: float) -> None:
    assert run((429, headers), 200) == OK
    assert run.clock.waits == [wait]


def test_retry_after_may_be_a_date(run: Run) -> None:
    date = email.utils.formatdate(time.time() + 30, usegmt=True)
    assert run((503, {"retry-after": date}), 200) == OK
    assert run.clock.waits == [pytest.approx(30, abs=5)]


def test_dates_are_read_as_utc_and_the_past_means_now() -> None:
    for date in ("Thu, 01 Jan 1970 00:01:40 GMT", "Thu, 01 Jan 1970 00:01:40 -0000"):
        assert retry_after_of({"retry-after": date}, now=90.0) == 10.0
    assert retry_after_of({"retry-after": "Thu, 01 Jan 1970 00:01:40 GMT"}, now=200.0) == 0.0
    assert retry_after_of({"retry-after": "Thu, 99 Jan 1970"}, now=0.0) is None
    assert retry_after_of({}, now=0.0) is None


def test_a_wait_beyond_the_budget_is_not_begun(run: Run) -> None:
    with pytest.raises(JevError) as caught:
        run((529, {"retry-after": "61"}), 200)
    assert getattr(caught.value, "retry_after", None) == 61.0
    assert run.clock.waits == []


def test_slow_tries_use_up_the_budget(run: Run) -> None:
    timeout = httpx.ReadTimeout("slow")
    with pytest.raises(TimeoutError):
        run(timeout, timeout, timeout, 200, retry=RetryPolicy(max_retries=9, jitter=0, budget=60), slow=25)
    # 25 + 0.5 + 25 + 1 + 25 is more than 60, so that the third try is the last.
    assert run.tries == 3


@pytest.mark.parametrize(
    "values",
    [
        {"max_retries": -1},
        {"backoff": -0.1},
        {"max_backoff": float("nan")},
        {"budget": -1},
        {"jitter": 1.5},
        {"statuses": {400}},
        {"statuses": {422, 503}},
        {"statuses": {200}},
    ],
)
def test_a_policy_out_of_range_is_a_value_error(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"RetryPolicy.{next(iter(values))}"):
        RetryPolicy(**values)


def test_an_async_call_can_be_cancelled_while_it_waits() -> None:
    async def main() -> int:
        tries = 0

        def answer(request: httpx.Request) -> httpx.Response:
            nonlocal tries
            tries += 1
            return httpx.Response(503, headers={"retry-after": "30"})

        async with AsyncJev(transport=httpx.MockTransport(answer)) as jev:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(jev.health(), timeout=0.2)
        return tries

    assert asyncio.run(main()) == 1
