"""Proves that an answer depends on the state and its own question alone: not on other questions, their
number, order or ids.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jev.schemas import Answer, Choice, Noul, Question, Score, SystemOneRequest, SystemOneResponse

if TYPE_CHECKING:
    from jev.engine import Engine

# On probabilities: rounding of differently shaped matmuls. A leak moves them by 0.001 and more.
TOLERANCE = 1e-5
STATE = "My card was charged twice and I want my money back. Nobody answers the phone!"

POOL: list[Question] = [
    Noul("Is the customer angry?"),
    Noul("Does the customer want money back?", true="asks for a refund", false="anything else"),
    Noul(true="somebody answered the phone"),
    Choice("Which team should take this?", {"billing": "money", "travel": None, "music": None}),
    Choice(["happy", "sad"]),
    Choice("How many times was the card charged?", ["once", "twice", "three times", "four times", "never"]),
    Choice(["only"]),
    Score("How bad is it?", ["cosmetic", "annoying", "blocking"]),
    Score([str(n) for n in range(10)]),
]
CHOSEN = st.lists(st.integers(0, len(POOL) - 1), min_size=1, max_size=4)
CONTROLS = st.fixed_dictionaries(
    {
        "samples": st.sampled_from([1, 2, 3]),
        "permutations": st.sampled_from([1, 2, 5]),
        "seed": st.integers(0, 99),
    }
)


def ask(engine: Engine, questions: dict[str, Question], **fields: Any) -> SystemOneResponse:
    return engine.decide(SystemOneRequest(**{"state": STATE, "questions": questions, **fields}))


def numbers(answer: Answer) -> list[float]:
    if answer.type == "noul":
        return [answer.noul]
    return [*answer.probabilities.values(), answer.confidence]


def same(one: Answer, other: Answer) -> bool:
    return one.type == other.type and numbers(one) == pytest.approx(numbers(other), abs=TOLERANCE, rel=0)


def check(engine: Engine, chosen: list[int], controls: dict[str, Any], rng: random.Random) -> None:
    together = ask(engine, {f"q{place}": POOL[index] for place, index in enumerate(chosen)}, **controls)
    place = rng.randrange(len(chosen))
    alone = ask(engine, {"another id": POOL[chosen[place]]}, **controls)
    assert same(together.answers[f"q{place}"], alone.answers["another id"])

    # Some of them and one more, in another order, under other ids.
    kept = rng.sample(range(len(chosen)), rng.randint(1, len(chosen)))
    mixed: dict[str, Question] = {f"{'x' * rng.randint(0, 9)}{place}": POOL[chosen[place]] for place in kept}
    places = dict(zip(mixed, kept, strict=True))
    mixed = {"extra": POOL[rng.randrange(len(POOL))], **mixed}
    other = ask(engine, mixed, **controls)
    for name, place in places.items():
        assert same(together.answers[f"q{place}"], other.answers[name])


@settings(max_examples=8)
@given(CHOSEN, CONTROLS, st.randoms(use_true_random=False))
def test_embedded_model(
    engine: Engine, chosen: list[int], controls: dict[str, Any], rng: random.Random
) -> None:
    check(engine, chosen, controls, rng)


@pytest.fixture(scope="module", params=[16, 2048])
def small(request: pytest.FixtureRequest, smooth: Path) -> Engine:
    """A model whose window is shorter than any prompt, with small and with large steps."""
    from jev.engine import Engine as Loaded

    return Loaded.load(smooth, step_rows=request.param)


@settings(max_examples=12)
@given(CHOSEN, CONTROLS, st.randoms(use_true_random=False))
def test_small_model(small: Engine, chosen: list[int], controls: dict[str, Any], rng: random.Random) -> None:
    check(small, chosen, controls, rng)


def test_a_hundred_questions_and_one(engine: Engine) -> None:
    questions: dict[str, Question] = {f"filler {n}": Noul(f"Is it {n}?") for n in range(40)}
    questions["asked"] = POOL[3]
    controls: dict[str, Any] = {"samples": 1}
    together = ask(engine, questions, **controls)
    assert same(together.answers["asked"], ask(engine, {"asked": POOL[3]}, **controls).answers["asked"])


def test_equal_questions_have_equal_answers(engine: Engine) -> None:
    answers = ask(engine, {"one": POOL[3], "other": POOL[0], "again": POOL[3]}, samples=2).answers
    assert same(answers["one"], answers["again"])
    assert list(answers) == ["one", "other", "again"]


def test_ids_are_no_hints(engine: Engine) -> None:
    for name in ("yes", "no", "the customer is very angry", "<|turn>", "A", "noul"):
        answers = ask(engine, {name: POOL[0]}, samples=1).answers
        assert same(answers[name], ask(engine, {"q": POOL[0]}, samples=1).answers["q"])


@pytest.mark.parametrize("threshold", [0.0, 10.0])
def test_adaptive_reads_far_from_the_threshold(engine: Engine, threshold: float) -> None:
    fields: dict[str, Any] = {"samples": "auto", "auto_max": 3, "auto_threshold": threshold}
    together = ask(engine, {f"q{n}": POOL[n] for n in (0, 3, 7)}, **fields)
    for n in (0, 3, 7):
        assert same(together.answers[f"q{n}"], ask(engine, {"q": POOL[n]}, **fields).answers["q"])


def test_an_uncertain_neighbour_extends_nobody_else(engine: Engine) -> None:
    report = ask(engine, {f"q{n}": POOL[n] for n in (0, 3, 8)}, samples=1, diagnostics=True).x_diagnostics
    assert report is not None
    entropies = sorted((one["entropy"], name) for name, one in report["questions"].items())
    (low, sure), (_, _), (high, unsure) = entropies
    assert high - low > 0.1
    fields: dict[str, Any] = {"samples": "auto", "auto_threshold": (low + high) / 2, "diagnostics": True}
    questions = {name: POOL[int(name[1:])] for name in (unsure, sure)}
    together = ask(engine, questions, **fields)
    assert together.x_diagnostics is not None
    assert together.x_diagnostics["questions"][unsure]["reads"] == 4
    assert together.x_diagnostics["questions"][sure]["reads"] == 1
    for name in (sure, unsure):
        assert same(together.answers[name], ask(engine, {"q": questions[name]}, **fields).answers["q"])


def test_joint_layout_is_not_isolated(engine: Engine) -> None:
    """So the tests above could have failed."""
    fields: dict[str, Any] = {"layout": "joint", "samples": 1}
    together = ask(engine, {"a": POOL[0], "b": POOL[3]}, **fields).answers["a"]
    assert not same(together, ask(engine, {"a": POOL[0]}, **fields).answers["a"])
