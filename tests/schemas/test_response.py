"""Proves that responses keep numbers to the last bit and that answers are told apart by their type."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from jev.schemas import ChoiceAnswer, NoulAnswer, ScoreAnswer, SystemOneResponse, Usage

PROBABILITY = st.floats(0, 1)


@given(PROBABILITY, st.lists(PROBABILITY, min_size=1, max_size=10))
def test_numbers_survive_the_wire_bit_by_bit(p: float, scale: list[float]) -> None:
    levels = {str(index): value for index, value in enumerate(scale)}
    response = SystemOneResponse(
        model="m",
        answers={
            "a": NoulAnswer(noul=p),
            "b": ChoiceAnswer(choice="x", probabilities={"x": p}, confidence=p),
            "c": ScoreAnswer(score=p, legend={"0": {"any": [1]}}, probabilities=levels, confidence=p),
        },
        usage=Usage(input_tokens=3, output_tokens=2),
    )
    assert SystemOneResponse.model_validate_json(response.model_dump_json()) == response
    # JSON of the standard library keeps doubles too, so any client sees these numbers.
    assert json.loads(response.model_dump_json())["answers"]["a"]["noul"] == p


@pytest.mark.parametrize(("p", "yes"), [(0.0, False), (0.49999999999999994, False), (0.5, True), (1.0, True)])
def test_yes(p: float, yes: bool) -> None:
    assert NoulAnswer(noul=p).yes is yes


@pytest.mark.parametrize(
    ("probabilities", "level"),
    [([1.0], 0), ([0.2, 0.8], 1), ([0.5, 0.5], 0), ([0.1, 0.45, 0.45], 1), ([0.0] * 9 + [1.0], 9)],
)
def test_level_is_the_lowest_of_the_most_likely(probabilities: list[float], level: int) -> None:
    keyed = {str(index): value for index, value in enumerate(probabilities)}
    backwards = dict(reversed(list(keyed.items())))
    for one in (keyed, backwards):
        assert ScoreAnswer(score=0, legend={}, probabilities=one, confidence=0).level == level


def test_answers_are_told_apart_by_type() -> None:
    body = {"model": "m", "usage": {"input_tokens": 1, "output_tokens": 1}}
    parsed = SystemOneResponse.model_validate({**body, "answers": {"a": {"type": "noul", "noul": 0.5}}})
    assert parsed.answers == {"a": NoulAnswer(noul=0.5)}
    with pytest.raises(ValidationError):
        SystemOneResponse.model_validate({**body, "answers": {"a": {"type": "box", "noul": 0.5}}})


def test_answers_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        NoulAnswer(noul=0.5).noul = 0.6
