"""Proves that the engine gives the plain forward's numbers, and the same every time."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import jev.stepper
from jev.decide import softmax, to_alternatives
from jev.engine import Cancelled, Engine
from jev.model.read import Branch, Canvas, Prefill
from jev.model.unified import read_unified
from jev.plan import Plan
from jev.schemas import (
    Answer,
    Choice,
    Noul,
    Question,
    Score,
    SystemOneRequest,
    SystemOneResponse,
    Usage,
)

TOLERANCE = 1e-5  # on probabilities
STATE = "My card was charged twice and I want my money back. Nobody answers the phone!"
ANGRY = Noul("Is the customer angry?")
TEAM = Choice("Which team should take this?", {"billing": "money", "travel": None, "music": None})
BAD = Score("How bad is it?", ["cosmetic", "annoying", "blocking"])
THREE: dict[str, Question] = {"angry": ANGRY, "team": TEAM, "bad": BAD}


def request(questions: dict[str, Question] | None = None, **fields: Any) -> SystemOneRequest:
    return SystemOneRequest(**{"state": STATE, "questions": questions or THREE, **fields})


def variant(base: Engine, **options: Any) -> Engine:
    """The same model and tokenizer with other settings and a cold cache."""
    return Engine(base.model, base.context.tokenizer, name=base.name, **options)


@pytest.fixture(scope="module")
def small(tiny: Path) -> Engine:
    return Engine.load(tiny)


def numbers(answer: Answer) -> list[float]:
    return [answer.noul, 1 - answer.noul] if answer.type == "noul" else list(answer.probabilities.values())


def difference(one: SystemOneResponse, other: SystemOneResponse) -> float:
    assert list(one.answers) == list(other.answers)
    return max(
        abs(a - b)
        for name in one.answers
        for a, b in zip(numbers(one.answers[name]), numbers(other.answers[name]), strict=True)
    )


def plain(engine: Engine, plan: Plan) -> dict[str, list[float]]:
    """Each question's distribution by one plain forward a read, without cache or packing."""
    found = {}
    for group in plan.groups:
        rows = [
            to_alternatives(softmax(reading.logits[0]), unit.slots[0].order)
            for unit in group.units
            for reading in (
                read_unified(engine.model, unit.prefix, unit.branch, unit.seeded(number))
                for number in range(plan.first_reads)
            )
        ]
        found[group.questions[0]] = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
    return found


def agree(engine: Engine, asked: SystemOneRequest) -> None:
    plan = engine.prepare(asked)
    expected, response = plain(engine, plan), engine.run(plan)
    assert list(response.answers) == list(asked.questions)
    for name, answer in response.answers.items():
        assert numbers(answer) == pytest.approx(expected.get(name, [1.0]), abs=TOLERANCE)


# Numbers


@pytest.mark.parametrize(
    "fields",
    [
        {"samples": 1},
        {"samples": 2, "permutations": 2, "seed": -7},
        {"samples": 1, "instructions": "Be fair.", "state": {"näme": ["Zoë", 1]}},
    ],
)
def test_answers_of_the_embedded_model(engine: Engine, fields: dict[str, Any]) -> None:
    agree(engine, request(**fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"samples": 3, "permutations": 3},
        {"samples": 2, "state": ""},
        {"samples": 1, "state": "word " * 110},  # more than one step of prefill
        {"samples": 1, "questions": {"a": Noul("really? " * 90)}},
        {"samples": 1, "questions": {"a": Choice([f"o{n}" for n in range(40)]), "b": Choice(["only"])}},
    ],
)
@pytest.mark.parametrize("step_rows", [1, 16, 100, 2048])
def test_answers_whatever_fits_in_a_step(small: Engine, fields: dict[str, Any], step_rows: int) -> None:
    agree(variant(small, step_rows=step_rows), request(**fields))


def test_a_long_state_is_prefilled_in_steps(small: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[int] = []
    inner = jev.stepper.step

    def watched(model: Any, prefills: Sequence[Prefill], reads: Any) -> Any:
        longer, readings = inner(model, prefills, reads)
        steps.extend(kv.length for kv in longer)
        return longer, readings

    monkeypatch.setattr(jev.stepper, "step", watched)
    plan = small.prepare(request(samples=1, state="word " * 300))
    variant(small, step_rows=512).run(plan)
    length = len(plan.units[0].prefix)
    assert length > 1100
    assert steps == [*range(128, length, 128), length]


def test_steps_hold_no_more_rows_than_allowed(small: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    inner, seen = jev.stepper.step, []

    def watched(
        model: Any, prefills: Sequence[Prefill], reads: Sequence[tuple[Branch, Sequence[Canvas]]]
    ) -> Any:
        assert sum(len(one.tokens) for one in prefills) <= step_rows
        rows = [0 if branch.kv is not None else len(branch.tokens) for branch, _ in reads]
        canvases = [len(canvas.ids) for _, group in reads for canvas in group]
        if reads:
            seen.append((sum(rows) + sum(canvases), len(canvases)))
        return inner(model, prefills, reads)

    monkeypatch.setattr(jev.stepper, "step", watched)
    plan = small.prepare(request(samples=8, permutations=3))
    branches = sum(len(unit.branch) for unit in plan.units)
    for step_rows in (1, 64, 300, 5000):
        seen.clear()
        before = small.stats()
        one = variant(small, step_rows=step_rows)
        one.run(plan)
        assert all(rows <= step_rows or canvases == 1 for rows, canvases in seen)
        assert sum(canvases for _, canvases in seen) == 8 * len(plan.units)
        # A branch too long for a step goes the way of a prefix.
        encoded = sum(len(unit.branch) for unit in plan.units if len(unit.branch) <= step_rows)
        assert sum(rows for rows, _ in seen) == encoded + 8 * 6 * len(plan.units)
        stats = one.stats()
        assert stats["rows_read"] == encoded + 8 * 6 * len(plan.units)
        assert stats["rows_prefill"] == len(plan.units[0].prefix) + branches - encoded
        assert stats["reads"] == 8 * len(plan.units)
        assert small.stats() == before
    assert len(seen) == 1


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_other_dtypes_answer_alike(tiny: Path, small: Engine, dtype: str) -> None:
    other = Engine.load(tiny, dtype=dtype).decide(request(samples=1, permutations=3))
    assert difference(other, small.decide(request(samples=1, permutations=3))) < 0.2


# The same every time


def dumped(response: SystemOneResponse) -> bytes:
    return response.model_dump_json().encode()


def test_same_request_same_bytes(engine: Engine) -> None:
    asked = request(samples=2, permutations=2)
    assert dumped(engine.decide(asked)) == dumped(engine.decide(asked))


@pytest.mark.parametrize("fields", [{"samples": 2}, {"samples": "auto"}])
def test_state_of_the_prefix_cache_changes_no_bit(small: Engine, fields: dict[str, Any]) -> None:
    asked, others = request(**fields), [request(state=f"Another state {n}.") for n in range(3)]
    cold = dumped(variant(small).decide(asked))
    assert dumped(variant(small, cache_bytes=0).decide(asked)) == cold
    warm = variant(small)
    assert [dumped(warm.decide(asked)) for _ in range(3)] == [cold] * 3
    assert warm.stats()["prefix_hits"] > 0
    full = variant(small, cache_bytes=int(warm.stats()["prefix_bytes"]))
    for one in (asked, *others, asked, *others):
        full.decide(one)
    assert dumped(full.decide(asked)) == cold
    assert full.stats()["prefix_bytes"] <= warm.stats()["prefix_bytes"]


def test_state_of_the_prefix_cache_with_several_prefixes(small: Engine) -> None:
    """New prefixes share a forward, so which of them are cached moves the last bits and no more."""
    asked = request(layout="joint", chunk_rows=16, samples=2)
    cold = variant(small).decide(asked)
    assert dumped(variant(small, cache_bytes=0).decide(asked)) == dumped(cold)
    warm = variant(small)
    assert [dumped(warm.decide(asked)) for _ in range(3)] == [dumped(cold)] * 3
    half = variant(small, cache_bytes=int(warm.stats()["prefix_bytes"]) // 2)
    for _ in range(3):
        assert difference(half.decide(asked), cold) <= 1e-6


def test_cold_and_warm_on_the_embedded_model(engine: Engine) -> None:
    asked = request(samples=1, state="A state that nobody else asks about.")
    before = engine.stats()
    cold, warm = engine.decide(asked), engine.decide(asked)
    after = engine.stats()
    assert dumped(cold) == dumped(warm)
    assert after["prefix_misses"] == before["prefix_misses"] + 1
    assert after["prefix_hits"] == before["prefix_hits"] + 1


def test_fresh_engine_same_bytes(small: Engine, tiny: Path) -> None:
    asked = request(samples=2)
    assert dumped(Engine.load(tiny).decide(asked)) == dumped(small.decide(asked))


def test_seed_and_samples_matter(small: Engine) -> None:
    """So that equal bytes above mean something."""
    base = small.decide(request(samples=1))
    assert difference(base, small.decide(request(samples=1, seed=43))) > 1e-3
    assert difference(base, small.decide(request(samples=4))) > 1e-3
    assert difference(base, small.decide(request(samples=1, state="Another state."))) > 1e-3


def test_averages_are_those_of_the_single_reads(small: Engine) -> None:
    report = small.decide(request(samples=5, permutations=3, diagnostics="full")).x_diagnostics
    response = small.decide(request(samples=5, permutations=3))
    assert report is not None
    for name, answer in response.answers.items():
        rows = report["questions"][name]["read_probabilities"]
        assert len(rows) == (15 if name == "team" else 5)
        average = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
        assert numbers(answer) == pytest.approx(average, abs=1e-12)


def test_callers_in_several_threads_take_turns(small: Engine) -> None:
    asked = [request(samples=1, state=f"State {n}.") for n in range(4)] * 3
    expected = [small.decide(one) for one in asked]
    shared = variant(small)
    with ThreadPoolExecutor(4) as pool:
        for response, alone in zip(pool.map(shared.decide, asked), expected, strict=True):
            # Another thread may share a matmul's work differently among its helpers.
            assert difference(response, alone) <= 1e-6


# Adaptive reads


def reads(engine: Engine, **fields: Any) -> dict[str, int]:
    report = engine.decide(request(diagnostics=True, **fields)).x_diagnostics
    assert report is not None
    return {name: one["reads"] for name, one in report["questions"].items()}


def test_only_uncertain_questions_are_read_again(small: Engine) -> None:
    report = small.decide(request(samples=1, diagnostics=True)).x_diagnostics
    assert report is not None
    entropies = {name: one["entropy"] for name, one in report["questions"].items()}
    low, middle, high = sorted(entropies, key=entropies.__getitem__)
    assert entropies[high] - entropies[low] > 1e-3
    one, four = dict.fromkeys(THREE, 1), dict.fromkeys(THREE, 4)
    assert reads(small, auto_threshold=10.0) == one
    assert reads(small, auto_threshold=0) == four
    threshold = (entropies[middle] + entropies[high]) / 2
    assert reads(small, auto_threshold=threshold) == {**one, high: 4}
    threshold = (entropies[low] + entropies[middle]) / 2
    assert reads(small, auto_threshold=threshold, auto_max=7) == {low: 1, middle: 7, high: 7}
    assert reads(small, auto_threshold=0, auto_max=1) == one
    assert reads(small, samples=3, auto_threshold=0) == dict.fromkeys(THREE, 3)


def test_threshold_is_exceeded_and_not_met(small: Engine) -> None:
    report = small.decide(request({"angry": ANGRY}, samples=1, diagnostics=True)).x_diagnostics
    assert report is not None
    exactly = report["questions"]["angry"]["entropy"]
    assert reads(small, questions={"angry": ANGRY}, auto_threshold=exactly) == {"angry": 1}


def test_extended_reads_equal_fixed_ones(small: Engine) -> None:
    extended = small.decide(request(samples="auto", auto_max=5, auto_threshold=0))
    assert difference(extended, small.decide(request(samples=5))) <= TOLERANCE


# What needs no read


def test_single_alternatives_are_certain(small: Engine) -> None:
    questions: dict[str, Question] = {"a": Choice(["only"]), "b": Score([{"level": 1}])}
    before = small.stats()
    response = small.decide(request(questions))
    assert response.model_dump()["answers"] == {
        "a": {"type": "choice", "choice": "only", "probabilities": {"only": 1.0}, "confidence": 1.0},
        "b": {
            "type": "score",
            "score": 0.0,
            "legend": {"0": {"level": 1}},
            "probabilities": {"0": 1.0},
            "confidence": 1.0,
        },
    }
    assert small.stats() == before
    beside = small.decide(request({"x": ANGRY, **questions}, samples=1))
    assert list(beside.answers) == ["x", "a", "b"]
    assert beside.answers["x"] == small.decide(request({"x": ANGRY}, samples=1)).answers["x"]


def test_usage_is_the_plans(small: Engine) -> None:
    plan = small.prepare(request(samples=3, permutations=2))
    expected = Usage(input_tokens=plan.input_tokens, output_tokens=plan.output_tokens)
    assert small.run(plan).usage == expected
    assert small.decide(request(samples=1, permutations=2)).usage == expected


# Cancelling


@pytest.mark.parametrize(
    "fields", [{"samples": 6}, {"samples": "auto", "auto_threshold": 0}, {"layout": "joint"}]
)
def test_cancelled_between_any_two_steps(small: Engine, fields: dict[str, Any]) -> None:
    asked = request({"a": Noul("?"), "b": Choice("?", ["x", "y"])}, state="s", **fields)
    expected = dumped(variant(small, step_rows=40).decide(asked))
    one = variant(small, step_rows=40)
    calls = 0
    for stop in range(1, 1000):
        calls = 0

        def cancelled() -> bool:
            nonlocal calls
            calls += 1
            return calls >= stop  # noqa: B023 - called within this turn of the loop

        try:
            response = one.run(one.prepare(asked), cancelled=cancelled)
        except Cancelled:
            assert calls == stop  # at once, not a step later
            assert dumped(one.decide(asked)) == expected
            one.stepper.cache = variant(small).stepper.cache
        else:
            assert dumped(response) == expected
            break
    assert calls > 4  # there were steps to stop between


def test_cancelled_before_it_starts(small: Engine) -> None:
    one = variant(small)
    with pytest.raises(Cancelled):
        one.run(one.prepare(request()), cancelled=lambda: True)
    assert one.stats()["reads"] == one.stats()["prefix_bytes"] == 0


def test_a_half_done_prefix_is_not_kept(small: Engine) -> None:
    one, asked = variant(small, step_rows=512), request(samples=1, state="word " * 300)
    answers = iter([False, False, False, True])
    with pytest.raises(Cancelled):
        one.run(one.prepare(asked), cancelled=lambda: next(answers))
    assert one.stats()["prefix_bytes"] == 0
    assert dumped(one.decide(asked)) == dumped(variant(small).decide(asked))
