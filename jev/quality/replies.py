"""What a backend said, as distributions: normalised, checked, with what it took."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from jev.schemas import (
    Answer,
    Choice,
    ChoiceAnswer,
    Question,
    SystemOneResponse,
    alternatives,
    distribution,
)

SUM_TOLERANCE = 0.01
"""How far from 1 a distribution may sum, besides half a unit of two decimals for each alternative."""


@dataclass(frozen=True)
class Judgement:
    """One answer.

    Attributes:
        probabilities: over the question's alternatives, in their order; they sum to 1.
        winner: index of the answer given.
    """

    probabilities: tuple[float, ...]
    winner: int

    @property
    def confidence(self) -> float:
        """The winner's probability."""
        return self.probabilities[self.winner]


@dataclass(frozen=True)
class Reply:
    """The answers to one request.

    Attributes:
        answers: by question id.
        seconds: from asking to the answer, time in the backend's queue included.
        input_tokens: as the backend counted them.
        output_tokens: the same.
        rounded: whether every probability has at most two decimals.
        cached: whether it was read from a cache.
    """

    answers: Mapping[str, Judgement]
    seconds: float
    input_tokens: int
    output_tokens: int
    rounded: bool
    cached: bool = False


@dataclass(frozen=True)
class Failure:
    """A request that was not answered, and why."""

    reason: str


def reply_of(questions: Mapping[str, Question], response: SystemOneResponse, seconds: float) -> Reply:
    """Turn a response into distributions.

    Raises:
        ValueError: an answer is missing or is no distribution over its question's alternatives.
    """
    answers: dict[str, Judgement] = {}
    rounded = True
    for name, question in questions.items():
        answer = response.answers.get(name)
        if answer is None:
            raise ValueError(f"no answer to {name!r}")
        try:
            given = distribution(question, answer)
            answers[name] = _judgement(question, answer, given)
        except ValueError as error:
            raise ValueError(f"the answer to {name!r}: {error}") from None
        # A probability of one alternative alone says nothing about rounding.
        if len(given) > 1 and any(abs(p * 100 - round(p * 100)) > 1e-9 for p in given):
            rounded = False
    usage = response.usage
    return Reply(answers, seconds, usage.input_tokens, usage.output_tokens, rounded)


def _judgement(question: Question, answer: Answer, given: tuple[float, ...]) -> Judgement:
    if not all(math.isfinite(p) and p >= 0 for p in given):
        raise ValueError("a probability is negative or not a number")
    total = math.fsum(given)
    if abs(total - 1) > SUM_TOLERANCE + 0.005 * len(given) or total <= 0:
        raise ValueError(f"the probabilities sum to {total:.4g}")
    # Dividing by a sum that is 1 but for rounding would move exact numbers in their last digit.
    exact = abs(total - 1) < 1e-12
    probabilities = given if exact else tuple(p / total for p in given)
    if isinstance(question, Choice) and isinstance(answer, ChoiceAnswer):
        # Rounding may make several options equal; the backend knows which was ahead.
        names = alternatives(question)
        if answer.choice not in names:
            raise ValueError(f"the choice {answer.choice!r} is none of the options")
        return Judgement(probabilities, names.index(answer.choice))
    winner = max(range(len(probabilities)), key=lambda index: (probabilities[index], -index))
    return Judgement(probabilities, winner)
