"""Several requests in one forward give each what it gets alone, and none of them waits for a long one."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import jev.stepper
from jev.engine import Engine
from jev.errors import ServerError
from jev.packing import LONG_SHARE, pack
from jev.plan import Plan
from jev.run import Run
from jev.scheduler import Scheduler
from jev.schemas import Choice, Noul, Question, Score, SystemOneRequest, SystemOneResponse

TOLERANCE = 1e-5  # on probabilities

POOL: dict[str, Question] = {
    "angry": Noul("Is the customer angry?"),
    "team": Choice("Which team?", ["billing", "travel", "music"]),
    "bad": Score("How bad is it?", ["cosmetic", "annoying", "blocking"]),
    "many": Choice("Which?", [f"o{n}" for n in range(40)]),
    "only": Choice("Which?", ["one"]),
}


@pytest.fixture(scope="module")
def small(tiny: Path) -> Engine:
    return Engine.load(tiny)


def variant(base: Engine, **options: Any) -> Engine:
    return Engine(base.model, base.context.tokenizer, name=base.name, **options)


def ask(
    state: Any = "The card was charged twice.", names: Any = ("angry",), **fields: Any
) -> SystemOneRequest:
    return SystemOneRequest(
        **{"state": state, "questions": {name: POOL[name] for name in names}, "samples": 1, **fields}
    )


def numbers(response: SystemOneResponse) -> list[float]:
    found: list[float] = []
    for answer in response.answers.values():
        found += [answer.noul] if answer.type == "noul" else answer.probabilities.values()
    return found


def same(one: SystemOneResponse | Exception, other: SystemOneResponse) -> None:
    assert isinstance(one, SystemOneResponse)
    assert list(one.answers) == list(other.answers)
    assert one.usage == other.usage
    assert max(abs(a - b) for a, b in zip(numbers(one), numbers(other), strict=True)) <= TOLERANCE


common = {
    "state": st.sampled_from(["", "Short.", "My card was charged twice.", {"a": [1, 2]}, "word " * 60]),
    "samples": st.integers(1, 3),
    "seed": st.integers(0, 3),
    "diagnostics": st.booleans(),
}
requests = st.one_of(
    st.builds(
        ask,
        names=st.lists(st.sampled_from(sorted(POOL)), min_size=1, max_size=3, unique=True),
        permutations=st.integers(1, 2),
        **common,
    ),
    st.builds(
        ask,
        names=st.lists(st.sampled_from(["angry", "bad", "team"]), min_size=1, max_size=3, unique=True),
        layout=st.just("joint"),
        **common,
    ),
)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(requests, min_size=1, max_size=6), st.sampled_from([24, 100, 512]))
def test_batched_equals_alone(small: Engine, asked: list[SystemOneRequest], step_rows: int) -> None:
    alone = [variant(small).run(small.prepare(one)) for one in asked]
    engine = variant(small, step_rows=step_rows)
    for _ in range(2):  # without and with cached prefixes
        for response, expected in zip(
            engine.run_many([engine.prepare(one) for one in asked]), alone, strict=True
        ):
            same(response, expected)


def test_batched_equals_alone_on_the_embedded_model(engine: Engine) -> None:
    asked = [
        ask(f"Ticket {n}: {'the invoice is wrong, ' * (n % 4)}please help.", ("angry", "team"))
        for n in range(9)
    ]
    together = engine.run_many([engine.prepare(one) for one in asked], fresh=True)
    for response, one in zip(together, asked, strict=True):
        same(response, engine.run(engine.prepare(one)))


def test_fresh_runs_give_the_same_bytes_whatever_ran_before(small: Engine) -> None:
    asked = [ask(f"State {n // 2}", ("angry", "team"), samples="auto") for n in range(8)]

    def once(engine: Engine) -> list[bytes]:
        found = engine.run_many([engine.prepare(one) for one in asked], fresh=True)
        return [response.model_dump_json().encode() for response in found]  # pyright: ignore[reportAttributeAccessIssue]

    warm = variant(small)
    for one in asked[::3]:
        warm.decide(one)
    before = warm.stats()["prefix_bytes"]
    assert once(variant(small)) == once(warm) == once(warm)
    assert warm.stats()["prefix_bytes"] == before


def test_a_new_prefix_is_encoded_once_for_all_who_want_it(small: Engine) -> None:
    engine = variant(small)
    plans = [engine.prepare(ask("One state for all.", (name,))) for name in ("angry", "team", "bad")]
    engine.run_many(plans)
    assert engine.stats()["rows_prefill"] == len(plans[0].units[0].prefix)
    assert engine.stats()["steps"] == 2
    assert (engine.stats()["prefix_misses"], engine.stats()["prefix_hits"]) == (1, 2)


def test_whoever_goes_leaves_the_shared_prefix_to_the_others(small: Engine) -> None:
    engine = variant(small, step_rows=64)
    first, second = (engine.prepare(ask("word " * 100, (name,))) for name in ("angry", "team"))
    leaving, staying = engine.start(first), engine.start(second)
    engine.step([leaving, staying])
    del leaving
    while not staying.done:
        engine.step([staying])
    same(engine.finish(staying), variant(small).run(second))
    assert engine.stats()["rows_prefill"] == len(first.units[0].prefix)


def test_one_that_fails_fails_alone(small: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = variant(small)
    bad = engine.prepare(ask("The one that fails."))
    inner = jev.stepper.step

    def failing(model: Any, prefills: Any, reads: Any) -> Any:
        if any(tuple(one.tokens) == bad.units[0].prefix for one in prefills):
            raise MemoryError("no room")
        return inner(model, prefills, reads)

    monkeypatch.setattr(jev.stepper, "step", failing)
    good = [engine.prepare(ask(f"Good {n}.")) for n in range(3)]
    first, broken, *rest = engine.run_many([good[0], bad, *good[1:]])
    assert isinstance(broken, MemoryError)
    monkeypatch.undo()
    for response, plan in zip([first, *rest], good, strict=True):
        same(response, variant(small).run(plan))


def test_a_reading_that_is_no_number_is_the_fault_of_one_alone(
    small: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where what is read decides whether to read on: others neither fail nor are read twice."""
    engine = variant(small)
    fields = {"samples": "auto", "auto_threshold": 0.0, "diagnostics": True}
    bad = engine.prepare(ask("The one that is no number.", **fields))
    inner = jev.stepper.step

    def poisoned(model: Any, prefills: Any, reads: Any) -> Any:
        longer, readings = inner(model, prefills, reads)
        for (branch, _), found in zip(reads, readings, strict=True):
            if branch.prefix.length == len(bad.units[0].prefix):
                nan = [[float("nan")] * len(row) for row in found[0].logits]
                found[:] = [dataclasses.replace(one, logits=nan) for one in found]
        return longer, readings

    asked = [ask("First.", samples=1), ask("Third, which has some more words in it.", **fields)]
    first, third = map(engine.prepare, asked)
    lengths = {len(plan.units[0].prefix) for plan in (first, bad, third)}
    assert len(lengths) == 3
    monkeypatch.setattr(jev.stepper, "step", poisoned)
    found = engine.run_many([first, bad, third])
    assert isinstance(found[1], ArithmeticError | ValueError | ServerError)
    assert not isinstance(found[1], TypeError)
    monkeypatch.undo()
    for one, plan in ((found[0], first), (found[2], third)):
        same(one, variant(small).run(plan))
        assert isinstance(one, SystemOneResponse)
        alone = variant(small).run(plan)
        assert one.usage == alone.usage


# Who goes first


def started(engine: Engine, *asked: SystemOneRequest) -> list[Run]:
    return [engine.start(engine.prepare(one)) for one in asked]


def finish(engine: Engine, runs: list[Run]) -> dict[Run, int]:
    """Step until all are done; the step in which each was."""
    ended: dict[Run, int] = {}
    for number in range(1, 1000):
        left = [run for run in runs if not run.done]
        if not left:
            return ended
        engine.step(left)
        ended.update({run: number for run in left if run.done})
    raise AssertionError("it does not end")


def test_a_short_request_is_two_steps_behind_any_long_one(small: Engine) -> None:
    engine = variant(small, step_rows=256)
    long, short = started(engine, ask("word " * 500, samples=2), ask("Short."))
    assert long.left > 4 * 256
    engine.step([long])
    ended = finish(engine, [long, short])
    assert ended[short] == 2
    assert ended[long] > 4


def test_a_long_request_moves_on_beside_any_number_of_short_ones(small: Engine) -> None:
    engine = variant(small, step_rows=256)
    (long,) = started(engine, ask("word " * 500))
    total = long.left
    steps = 0
    while not long.done:
        shorts = started(engine, *(ask(f"Short {steps}/{n}.") for n in range(8)))
        before = long.left
        engine.step([long, *shorts])
        steps += 1
        assert long.done or before - long.left >= 64 or before <= 64
    assert steps <= total / 64 + 2


@pytest.mark.parametrize("reads", [1, 3])
def test_a_read_that_fits_no_share_is_not_put_off_for_ever(small: Engine, reads: int) -> None:
    """The last rows of a long request cannot be split; short ones keep coming."""
    engine = variant(small, step_rows=512)
    (long,) = started(engine, ask("word " * 500, ("many",), samples=reads))
    assert 128 < long.need(long.plan.units[0], set()) < 512
    total, steps, answered = long.left, 0, 0
    short: Run | None = None
    while not long.done:
        if short is None or short.done:
            answered += short is not None
            (short,) = started(engine, ask(f"Short {steps}."))
        engine.step([long, short])
        steps += 1
        assert steps < total / 32 + (LONG_SHARE + 1) * (reads + 1)
    assert answered > steps / 4


def test_what_goes_into_a_step(small: Engine) -> None:
    engine = variant(small, step_rows=256)
    long, other, *shorts = started(
        engine, ask("word " * 500), ask("word " * 501), *(ask(f"Short {n}.") for n in range(12))
    )
    full = pack([long, other, *shorts], 256, 128)
    assert 256 - max(run.left for run in shorts) < full.rows <= 256
    assert (full.shares[long], full.shares.get(other, 0)) == (256 // LONG_SHARE, 0)
    assert list(full.shares)[:2] == shorts[:2]
    assert pack([long], 256, 128).shares == {long: 128}  # a step of 128 rows: whoever comes waits little
    assert pack([long, other], 256, 128).shares == {long: 128, other: 128}
    few = pack([long, other, shorts[0]], 256, 128)
    assert few.shares == {shorts[0]: shorts[0].encodings[0].left, long: 64}


def test_no_work_is_taken_twice(small: Engine) -> None:
    engine = variant(small, step_rows=100)
    runs = started(
        engine, *(ask(f"State {n % 3}", ("angry", "team"), samples=3, permutations=2) for n in range(7))
    )
    while left := [run for run in runs if not run.done]:
        step = pack(left, 100, 100)
        assert step.rows <= 100
        reads = [(id(run), id(unit), number) for run, unit, number in step.read]
        assert len(reads) == len(set(reads))
        assert len({id(one) for one, _ in step.encode}) == len(step.encode)
        engine.step(left)
    assert engine.stats()["reads"] == sum(3 * len(run.plan.units) for run in runs)


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_random_traffic_through_the_scheduler(small: Engine, anyio_backend: str) -> None:
    rng = random.Random(5)
    engine = variant(small, step_rows=128, cache_bytes=2**20)
    scheduler = Scheduler(engine, max_requests=100, max_tokens=10**6)
    asked = [
        ask("word " * rng.choice([0, 1, 5, 150]), rng.sample(sorted(POOL), 2), seed=rng.randrange(3))
        for _ in range(40)
    ]
    plans: list[Plan] = [engine.prepare(one) for one in asked]

    async def one(plan: Plan) -> SystemOneResponse | None:
        await asyncio.sleep(rng.random() * 0.3)
        task = asyncio.create_task(scheduler.submit(plan))
        if rng.random() < 0.2:
            await asyncio.sleep(rng.random() * 0.05)
            task.cancel()
        try:
            return (await task)[0]
        except asyncio.CancelledError:
            return None

    answers = await asyncio.gather(*map(one, plans))
    assert sum(answer is not None for answer in answers) >= 25
    for answer, plan in zip(answers, plans, strict=True):
        if answer is not None:
            same(answer, variant(small).run(plan))
    await asyncio.to_thread(scheduler.close)
    assert not any(thread.name == "jev-model" and thread.is_alive() for thread in [scheduler._thread])
    assert threading.active_count() < 50
