"""Label logits -> probabilities -> typed answers. Plain float64 arithmetic, no tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from jev.schemas import Answer, Choice, ChoiceAnswer, Noul, NoulAnswer, Question, ScoreAnswer


def softmax(logits: Sequence[float]) -> list[float]:
    """Probabilities at temperature 1 over the given logits only.

    Raises:
        ArithmeticError: for a logit that is not finite.
    """
    if not all(map(math.isfinite, logits)):
        raise ArithmeticError("the model gave a logit that is not finite")
    top = max(logits)
    weights = [math.exp(logit - top) for logit in logits]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def entropy(probabilities: Sequence[float]) -> float:
    """Entropy in nats."""
    return -math.fsum(p * math.log(p) for p in probabilities if p > 0) + 0.0


def mean(rows: Sequence[Sequence[float]]) -> list[float]:
    """Element-wise arithmetic mean of distributions over the same alternatives."""
    return [math.fsum(column) / len(rows) for column in zip(*rows, strict=True)]


def argmax(values: Sequence[float]) -> int:
    """Index of the largest value, the lowest index among equals."""
    return max(range(len(values)), key=lambda index: (values[index], -index))


def choice_confidence(probabilities: Sequence[float]) -> float:
    """(m - 1/n) / (1 - 1/n) for the largest probability m of n; 1 for a single option."""
    n = len(probabilities)
    if n == 1:
        return 1.0
    return min(1.0, max(0.0, (max(probabilities) - 1 / n) / (1 - 1 / n)))


def score_confidence(probabilities: Sequence[float]) -> float:
    """One minus the mean distance from the mode, relative to a uniform spread; at least 0.

    max(0, 1 - sum(p_i |i - k|) / D) with mode k and D = mean |i - (n-1)/2|; 1 for a single level.
    """
    n = len(probabilities)
    if n == 1:
        return 1.0
    mode = argmax(probabilities)
    spread = math.fsum(abs(i - (n - 1) / 2) for i in range(n)) / n
    distance = math.fsum(p * abs(i - mode) for i, p in enumerate(probabilities))
    return max(0.0, 1 - distance / spread)


def to_answer(question: Question, probabilities: Sequence[float]) -> Answer:
    """The wire answer for probabilities over the question's alternatives, in request order."""
    match question:
        case Noul():
            return NoulAnswer(noul=probabilities[0])
        case Choice():
            names = list(question.criteria)
            return ChoiceAnswer(
                choice=names[argmax(probabilities)],
                probabilities=dict(zip(names, probabilities, strict=True)),
                confidence=choice_confidence(probabilities),
            )
        case _:
            return ScoreAnswer(
                score=math.fsum(i * p for i, p in enumerate(probabilities)),
                legend={str(i): level for i, level in enumerate(question.criteria)},
                probabilities={str(i): p for i, p in enumerate(probabilities)},
                confidence=score_confidence(probabilities),
            )


@dataclass(frozen=True)
class Reads:
    """All reads of one question: distributions over its alternatives, in request order."""

    rows: tuple[tuple[float, ...], ...]

    @property
    def probabilities(self) -> list[float]:
        """The mean distribution: what is answered."""
        return mean(self.rows)

    @property
    def standard_error(self) -> float | None:
        """Sample deviation of the winner's probability over sqrt(reads); None for one read."""
        n = len(self.rows)
        if n < 2:
            return None
        winner = argmax(self.probabilities)
        values = [row[winner] for row in self.rows]
        centre = math.fsum(values) / n
        return math.sqrt(math.fsum((v - centre) ** 2 for v in values) / (n - 1) / n)

    @property
    def agreement(self) -> float | None:
        """Share of reads whose own arg-max is the mean's; None for one read."""
        if len(self.rows) < 2:
            return None
        winner = argmax(self.probabilities)
        return sum(argmax(row) == winner for row in self.rows) / len(self.rows)


def to_alternatives(label_probabilities: Sequence[float], order: Sequence[int]) -> tuple[float, ...]:
    """Undo a permutation: probability i belongs to alternative order[i]."""
    values = [0.0] * len(order)
    for probability, index in zip(label_probabilities, order, strict=True):
        values[index] = probability
    return tuple(values)
