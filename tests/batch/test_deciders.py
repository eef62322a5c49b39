"""An engine decides groups the same way every time, and rows of one state read it once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from jev.batch.deciders import Decided, EngineDecider
from jev.engine import Engine
from jev.errors import APIError, ServerError
from jev.schemas import Choice, Noul, SystemOneRequest, SystemOneResponse
from jev.settings import Settings


@pytest.fixture(scope="module")
def engine(tiny: Path) -> Engine:
    return Engine.load(tiny)


def decide(engine: Engine, *groups: Sequence[SystemOneRequest]) -> list[list[Decided]]:
    async def run() -> list[list[Decided]]:
        decider = EngineDecider(engine, Settings())
        try:
            return list(await asyncio.gather(*map(decider.decide, groups)))
        finally:
            await decider.aclose()

    return asyncio.run(run())


def request(state: str, question: str = "Is it?") -> SystemOneRequest:
    return SystemOneRequest(
        state=state, questions={"q": Noul(question), "team": Choice("Which?", ["a", "b", "c"])}
    )


def test_the_same_group_gives_the_very_same_numbers(engine: Engine) -> None:
    groups = [[request(f"state {number} {'x ' * number}") for number in range(n, n + 9)] for n in (0, 5)]
    first, second = decide(engine, *groups)
    # Whatever was decided before, at the same time, or is in the cache.
    for one in groups[1][:4]:
        engine.decide(one)
    assert decide(engine, groups[1]) == [second]
    assert decide(engine, groups[1], groups[0]) == [second, first]


def test_rows_of_one_state_read_it_once(engine: Engine) -> None:
    state = "a long state " * 40
    rows = [request(state, f"Is it number {number}?") for number in range(12)]
    before = engine.stats()["rows_prefill"]
    decide(engine, rows[:1])
    once = engine.stats()["rows_prefill"] - before
    decide(engine, rows)
    assert engine.stats()["rows_prefill"] - before == 2 * once


def test_what_cannot_be_asked_spoils_no_other_row(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    good, long = request("a state"), request("word " * 10_000)
    (alone,) = decide(engine, [good])
    (together,) = decide(engine, [long, good, long])
    assert [type(one) for one in together] == [type(together[0]), SystemOneResponse, type(together[0])]
    assert isinstance(together[0], APIError)
    assert together[1] == alone[0]

    def broken(*_: object) -> None:
        raise ArithmeticError("the model gave a logit that is not finite")

    monkeypatch.setattr("jev.stepper.Stepper._forward", broken)
    (failed,) = decide(engine, [good, long])
    assert isinstance(failed[0], ServerError)
    assert "ArithmeticError" in failed[0].message
