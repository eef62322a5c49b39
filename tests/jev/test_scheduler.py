"""The scheduler admits a bounded amount, runs it together on one thread, and lets go of what nobody wants."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from jev.errors import InvalidRequestError, ModelUnavailableError, OverloadedError, ServerError
from jev.pace import BURST_PATIENCE, BURST_S, Pace, Patience
from jev.scheduler import Scheduler

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@dataclass
class Plan:
    tokens: int = 1
    name: str = ""
    raises: BaseException | None = None
    gate: threading.Event | None = None


@dataclass(eq=False)
class Run:
    plan: Plan
    done: bool = False
    error: BaseException | None = None


@dataclass
class Engine:
    """Finishes the runs of a step whose gates are open; plans that raise do so in `finish` or in the step."""

    ran: list[str] = field(default_factory=list)
    steps: list[list[str]] = field(default_factory=list)
    threads: set[int] = field(default_factory=set)
    started: threading.Event = field(default_factory=threading.Event)

    def start(self, plan: Plan) -> Run:
        self.threads.add(threading.get_ident())
        return Run(plan)

    def step(self, runs: list[Run]) -> None:
        self.started.set()
        self.steps.append([run.plan.name for run in runs])
        time.sleep(0.005)
        for run in runs:
            if run.plan.raises is not None and not isinstance(run.plan.raises, Exception):
                raise run.plan.raises
            if run.plan.gate is None or run.plan.gate.is_set():
                run.done, run.error = True, run.plan.raises

    def finish(self, run: Run) -> str:
        if run.error is not None:
            raise run.error
        self.ran.append(run.plan.name)
        return f"answer {run.plan.name}"


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def scheduler(engine: Engine) -> Iterator[Any]:
    scheduler: Any = Scheduler(engine, max_requests=4, max_tokens=100)  # pyright: ignore[reportArgumentType]
    yield scheduler
    scheduler.close(timeout=5)


async def until(condition: Callable[[], Any]) -> None:
    """Wait for something that another thread does."""
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it did not happen")


async def hold(scheduler: Any, engine: Engine, tokens: int = 1) -> tuple[threading.Event, asyncio.Task[Any]]:
    """Keep the model busy until the returned event is set."""
    gate = threading.Event()
    engine.started.clear()
    task = asyncio.create_task(scheduler.submit(Plan(tokens, "held", gate=gate)))
    await until(engine.started.is_set)
    return gate, task


def block(engine: Engine) -> threading.Event:
    """Keep the engine in its first step until the returned event is set: nothing else can start."""
    step, blocked = engine.step, threading.Event()

    def slow(runs: list[Run]) -> None:
        step(runs)
        blocked.wait(5)

    engine.step = slow  # pyright: ignore[reportAttributeAccessIssue]
    return blocked


async def test_it_answers_with_the_time_spent_in_the_queue(scheduler: Any, engine: Engine) -> None:
    blocked = block(engine)
    first = asyncio.create_task(scheduler.submit(Plan(name="a")))
    await until(engine.started.is_set)
    second = asyncio.create_task(scheduler.submit(Plan(name="b")))
    await asyncio.sleep(0.1)
    blocked.set()
    assert (await first)[1] < 0.1
    answer, queued = await second
    assert answer == "answer b"
    assert 0.1 <= queued < 5


async def test_whatever_is_there_shares_the_next_step_in_order_of_arrival(
    scheduler: Any, engine: Engine
) -> None:
    gate, first = await hold(scheduler, engine)
    rest = [asyncio.create_task(scheduler.submit(Plan(name=name))) for name in "abc"]
    await asyncio.gather(*rest)  # nobody waits for the one before
    assert engine.ran == ["a", "b", "c"]
    gate.set()
    await first
    together = {tuple(names) for names in engine.steps} - {("held",)}
    assert together and all(names == ("held", *"abc")[: len(names)] for names in together)
    assert len(engine.threads) == 1
    assert threading.get_ident() not in engine.threads


async def test_too_many_requests_are_refused_at_once(scheduler: Any, engine: Engine) -> None:
    gate, first = await hold(scheduler, engine)
    rest = [asyncio.create_task(scheduler.submit(Plan(name=name))) for name in "abc"]
    await asyncio.sleep(0)
    assert scheduler.pending == (4, 4)
    with pytest.raises(OverloadedError, match="4 requests are pending already") as caught:
        await scheduler.submit(Plan(name="d"))
    assert caught.value.retry_after == 1.0
    gate.set()
    await asyncio.gather(first, *rest)
    await until(lambda: scheduler.pending == (0, 0))
    await scheduler.submit(Plan(name="d"))


async def test_too_many_tokens_are_refused_at_once(scheduler: Any, engine: Engine) -> None:
    gate, first = await hold(scheduler, engine, tokens=60)
    second = asyncio.create_task(scheduler.submit(Plan(40)))
    await asyncio.sleep(0)
    with pytest.raises(OverloadedError, match="100 tokens are pending; 1 more exceed the limit of 100"):
        await scheduler.submit(Plan(1))
    gate.set()
    await asyncio.gather(first, second)


async def test_a_plan_over_the_token_limit_is_admitted_alone(scheduler: Any, engine: Engine) -> None:
    assert (await scheduler.submit(Plan(1000, "big")))[0] == "answer big"
    gate, first = await hold(scheduler, engine)
    with pytest.raises(OverloadedError):
        await scheduler.submit(Plan(1000, "big"))
    gate.set()
    await first


async def test_the_wait_it_asks_for_grows_with_the_queue(scheduler: Any, engine: Engine) -> None:
    slow = threading.Timer(0.3, lambda: None)
    gate = threading.Event()
    slow.function = gate.set
    slow.start()
    await scheduler.submit(Plan(tokens=10, gate=gate))  # about 0.03 s a token
    gate, first = await hold(scheduler, engine, tokens=99)
    with pytest.raises(OverloadedError) as caught:
        await scheduler.submit(Plan(tokens=50))
    assert caught.value.retry_after is not None
    assert 2.5 <= caught.value.retry_after <= 20
    gate.set()
    await first


async def test_a_wait_that_would_be_too_long_is_refused(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jev.pace.BURST_S", 0.05)
    scheduler: Any = Scheduler(engine, 1000, 10**6, max_wait_s=1.0)  # pyright: ignore[reportArgumentType]
    gate = threading.Event()
    threading.Timer(0.3, gate.set).start()
    await scheduler.submit(Plan(tokens=10, gate=gate))  # about 0.03 s a token
    gate, first = await hold(scheduler, engine, tokens=20)
    held = [asyncio.create_task(scheduler.submit(Plan(20, gate=gate))) for _ in range(7)]
    await until(lambda: scheduler.pending == (8, 160))  # these are welcome: about 5 s
    await asyncio.sleep(0.1)  # what comes now is no burst
    with pytest.raises(
        OverloadedError, match=r"8 requests are pending, about \d+\.\d s; the limit is 1 s"
    ) as caught:
        await scheduler.submit(Plan(20))
    assert caught.value.retry_after is not None and caught.value.retry_after > 2
    monkeypatch.setattr("jev.pace.BURST_S", 60.0)  # what comes now is one, but its caller will not wait
    with pytest.raises(OverloadedError, match=r"the limit is [12](\.\d+)? s"):
        await scheduler.submit(Plan(20), deadline=time.monotonic() + 2)
    gate.set()
    await asyncio.gather(first, *held)
    await scheduler.submit(Plan(20))
    scheduler.close(timeout=5)


async def test_long_requests_do_not_turn_short_ones_away(engine: Engine) -> None:
    scheduler: Any = Scheduler(engine, 1000, 10**6, max_wait_s=1.0, step_rows=10)  # pyright: ignore[reportArgumentType]
    gate = threading.Event()
    threading.Timer(0.3, gate.set).start()
    await scheduler.submit(Plan(tokens=10, gate=gate))  # about 0.03 s a token
    gate, first = await hold(scheduler, engine, tokens=10_000)
    held = [asyncio.create_task(scheduler.submit(Plan(1, gate=gate))) for _ in range(7)]
    await until(lambda: scheduler.pending == (8, 10_007))
    short = asyncio.create_task(scheduler.submit(Plan(1, gate=gate)))
    await until(lambda: scheduler.pending == (9, 10_008))
    with pytest.raises(OverloadedError, match="9 requests are pending"):
        await scheduler.submit(Plan(tokens=10_000))
    gate.set()
    await asyncio.gather(first, short, *held)
    scheduler.close(timeout=5)


def test_the_pace_of_single_requests_does_not_make_a_burst_look_slow() -> None:
    pace = Pace()
    assert pace.wait(6400, 64) == 0
    for _ in range(100):
        pace.learn(0.3, 100, 1)
    assert pace.wait(100, 1) == pytest.approx(0.3)
    assert pace.wait(6400, 64) == pytest.approx(9.6)  # packed, by what is known of packing
    for _ in range(100):
        pace.learn(0.3, 300, 64)
    assert pace.wait(6400, 64) == pytest.approx(6.4)
    assert pace.wait(100, 1) == pytest.approx(0.3)


def test_the_pace_is_that_of_the_last_seconds() -> None:
    pace = Pace()
    for _ in range(100):
        pace.learn(0.1, 300, 20)
    for _ in range(10):
        pace.learn(1.0, 1000, 20)  # states that are not in the cache, say
    assert 0.09 < pace.wait(100, 20) < 0.1


def test_steps_that_finish_little_weigh_no_more_than_they_take() -> None:
    pace = Pace()
    for tokens in (100, 700) * 50:
        pace.learn(0.1, tokens, 20)
    assert pace.wait(400, 20) == pytest.approx(0.1, rel=0.03)


def test_only_a_burst_may_wait_long() -> None:
    patience = Patience(6.0, welcome=8)
    assert patience.limit(7, now=100.0) == float("inf")
    assert patience.limit(60, now=100.0 + BURST_S / 2) == 6.0 * BURST_PATIENCE
    assert patience.limit(60, now=100.1 + BURST_S) == 6.0
    assert patience.limit(8, now=200.0) == 6.0, "a queue that has stood for long"
    assert patience.limit(0, now=201.0) == float("inf")
    assert patience.limit(8, now=201.1) == 6.0 * BURST_PATIENCE


async def test_cancelling_the_caller_takes_queued_work_out(scheduler: Any, engine: Engine) -> None:
    blocked = block(engine)
    first = asyncio.create_task(scheduler.submit(Plan(name="held")))
    await until(engine.started.is_set)
    queued = asyncio.create_task(scheduler.submit(Plan(7, "gone")))
    await until(lambda: scheduler.pending == (2, 8))
    queued.cancel()
    with pytest.raises(asyncio.CancelledError):
        await queued
    assert scheduler.pending == (1, 1)
    blocked.set()
    await first
    assert engine.steps == [["held"]]


async def test_cancelling_the_caller_stops_running_work(scheduler: Any, engine: Engine) -> None:
    _, first = await hold(scheduler, engine)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    await until(lambda: scheduler.pending == (0, 0))
    assert engine.ran == []
    assert (await scheduler.submit(Plan(name="next")))[0] == "answer next"


async def test_a_deadline_while_queued(scheduler: Any, engine: Engine) -> None:
    blocked = block(engine)
    first = asyncio.create_task(scheduler.submit(Plan(name="held")))
    await until(engine.started.is_set)
    with pytest.raises(OverloadedError, match="deadline passed while the request was queued"):
        await scheduler.submit(Plan(name="late"), deadline=time.monotonic() + 0.05)
    assert scheduler.pending == (1, 1)
    blocked.set()
    await first
    assert engine.ran == ["held"]


async def test_a_deadline_while_running(scheduler: Any, engine: Engine) -> None:
    gate = threading.Event()
    with pytest.raises(OverloadedError, match="deadline passed while the request was running"):
        await scheduler.submit(Plan(name="slow", gate=gate), deadline=time.monotonic() + 0.1)
    await until(lambda: scheduler.pending == (0, 0))
    assert engine.ran == []
    assert (await scheduler.submit(Plan(name="next")))[0] == "answer next"


async def test_a_deadline_that_has_passed_runs_nothing(scheduler: Any, engine: Engine) -> None:
    with pytest.raises(OverloadedError, match="before the request was queued"):
        await scheduler.submit(Plan(), deadline=time.monotonic() - 1)
    assert scheduler.pending == (0, 0)
    assert engine.ran == []


async def test_a_failure_is_the_failure_of_one_request(
    scheduler: Any, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    error = ValueError("what the user wrote")
    error.__cause__ = KeyError("also the user's")
    with caplog.at_level(logging.ERROR), pytest.raises(ServerError) as caught:
        await scheduler.submit(Plan(raises=error))
    assert caught.value.message == "The request failed"
    assert "ValueError" in caplog.text
    assert "KeyError" in caplog.text
    assert "test_scheduler.py" in caplog.text
    assert "user" not in caplog.text
    assert (await scheduler.submit(Plan(name="next")))[0] == "answer next"


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), MemoryError()])
async def test_no_exception_ends_the_model_thread(scheduler: Any, error: BaseException) -> None:
    with pytest.raises(ServerError):
        await scheduler.submit(Plan(raises=error))
    assert (await scheduler.submit(Plan(name="next")))[0] == "answer next"


async def test_an_exception_of_the_step_itself_fails_all_that_it_held(scheduler: Any, engine: Engine) -> None:
    gate, first = await hold(scheduler, engine)
    with pytest.raises(ServerError):
        await scheduler.submit(Plan(raises=SystemExit(1)))
    with pytest.raises(ServerError):
        await first
    assert (await scheduler.submit(Plan(name="next")))[0] == "answer next"
    gate.set()


async def test_errors_meant_for_the_caller_pass_through(scheduler: Any) -> None:
    with pytest.raises(InvalidRequestError, match="does not fit"):
        await scheduler.submit(Plan(raises=InvalidRequestError("does not fit")))


async def test_closing_cancels_what_is_admitted(scheduler: Any, engine: Engine) -> None:
    _, running = await hold(scheduler, engine)
    second = asyncio.create_task(scheduler.submit(Plan(name="b", gate=threading.Event())))
    await until(lambda: scheduler.pending == (2, 2))
    await asyncio.to_thread(scheduler.close)
    for task in (running, second):
        with pytest.raises(ModelUnavailableError, match="shutting down"):
            await task
    assert engine.ran == []
    with pytest.raises(ModelUnavailableError, match="shutting down"):
        await scheduler.submit(Plan())


async def test_draining_finishes_what_is_admitted_and_refuses_the_rest(
    scheduler: Any, engine: Engine
) -> None:
    gate, running = await hold(scheduler, engine)
    second = asyncio.create_task(scheduler.submit(Plan(name="second", gate=gate)))
    await until(lambda: scheduler.pending == (2, 2))
    closing = asyncio.create_task(asyncio.to_thread(scheduler.close, drain=True))
    await asyncio.sleep(0.05)
    with pytest.raises(ModelUnavailableError):
        await scheduler.submit(Plan())
    gate.set()
    await asyncio.gather(running, second, closing)
    assert engine.ran == ["held", "second"]


async def test_closing_twice_is_fine(scheduler: Any) -> None:
    scheduler.close(timeout=5)
    scheduler.close(drain=True, timeout=5)


def test_one_scheduler_serves_several_event_loops(scheduler: Any) -> None:
    async def ask(name: str) -> str:
        return (await scheduler.submit(Plan(name=name)))[0]

    assert [asyncio.run(ask(name)) for name in "ab"] == ["answer a", "answer b"]


def test_a_loop_that_closed_meanwhile_does_no_harm(scheduler: Any, engine: Engine) -> None:
    gate = threading.Event()
    loop = asyncio.new_event_loop()
    task = loop.create_task(scheduler.submit(Plan(name="orphan", gate=gate)))
    while not engine.started.is_set():
        loop.run_until_complete(asyncio.sleep(0.005))
    loop.close()
    gate.set()

    async def ask() -> str:
        return (await scheduler.submit(Plan(name="next")))[0]

    assert asyncio.run(ask()) == "answer next"
    assert engine.ran == ["orphan", "next"]
    task._log_destroy_pending = False  # pyright: ignore[reportAttributeAccessIssue]


async def test_nothing_is_lost_or_run_twice_under_random_load() -> None:
    import random

    rng = random.Random(7)
    engine = Engine()
    scheduler: Any = Scheduler(engine, max_requests=1000, max_tokens=10**6)  # pyright: ignore[reportArgumentType]

    async def one(number: int) -> str | None:
        task = asyncio.create_task(scheduler.submit(Plan(rng.randint(1, 9), str(number))))
        if rng.random() < 0.4:
            await asyncio.sleep(rng.random() * 0.01)
            task.cancel()
        try:
            return (await task)[0]
        except asyncio.CancelledError:
            return None

    answers = await asyncio.gather(*(one(number) for number in range(500)))
    assert all(answer in (None, f"answer {number}") for number, answer in enumerate(answers))
    # Three in five are never cancelled, and one that is may still win the race.
    assert sum(answer is not None for answer in answers) >= 200
    assert len(engine.ran) == len(set(engine.ran))
    await until(lambda: scheduler.pending == (0, 0))
    scheduler.close(timeout=5)


async def test_what_a_gone_caller_took_is_not_learned_as_the_next_ones_time(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long request that is given up does not make an idle server refuse a burst of small ones."""
    scheduler: Any = Scheduler(engine, 64, 10**6, 0.5, 512)  # pyright: ignore[reportArgumentType]
    monkeypatch.setattr("jev.reads.WELCOME", 0)
    try:
        gone = asyncio.create_task(scheduler.submit(Plan(4000, "gone", gate=threading.Event())))
        await asyncio.sleep(1.0)  # two hundred steps of it
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        await scheduler.submit(Plan(60, "small"))
        many = [scheduler.submit(Plan(60, f"burst {n}")) for n in range(20)]
        assert len(await asyncio.gather(*many)) == 20
    finally:
        scheduler.close(timeout=5)


async def test_a_resting_model_lets_go_of_what_nobody_wants(scheduler: Any, engine: Engine) -> None:
    """Places are free again during a `keep` pause, and not only once it is over."""
    tasks = [asyncio.create_task(scheduler.submit(Plan(1, f"{n}", gate=threading.Event()))) for n in range(4)]
    await until(lambda: scheduler.pending[0] == 4 and engine.started.is_set())
    await scheduler.pause("keep")
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await until(lambda: scheduler.pending == (0, 0))
    waiting = asyncio.create_task(scheduler.submit(Plan(1, "new")))
    await until(lambda: scheduler.pending[0] == 1)
    scheduler.resume()
    assert (await waiting)[0] == "answer new"
