"""The smallest confidence from which on answers may be trusted to be as accurate as asked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv

from jev.calibration.apply import calibrated
from jev.calibration.file import Entry
from jev.calibration.gather import Answered
from jev.decide import argmax, to_answer
from jev.typed import confidence_of

GATES = (
    *(0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8),
    *(0.85, 0.9, 0.925, 0.95, 0.97, 0.98, 0.99, 0.995, 0.999),
)
"""What may become a gate: fixed in advance, as gates made from the labels would flatter themselves."""


@dataclass(frozen=True)
class Gate:
    """What is known of the answers with at least this confidence.

    Attributes:
        gate: the least confidence.
        kept: how many answers have it.
        right: how many of these are right.
        coverage: share of all answers that is kept, with its Clopper-Pearson interval.
        accuracy: share of the kept that is right.
        accuracy_low: lower bound of the accuracy, valid for all gates of the question at once.
        accuracy_high: upper bound, likewise.
    """

    gate: float
    kept: int
    right: int
    coverage: float
    coverage_low: float
    coverage_high: float
    accuracy: float
    accuracy_low: float
    accuracy_high: float


@dataclass(frozen=True)
class Thresholds:
    """The gates of one question.

    Attributes:
        rows: how many answers there are.
        chosen: the smallest gate that holds the target; None = none does.
        gates: all that were tested, from low to high.
        needed: answers above a gate that it takes to show the target if all of them are right.
    """

    rows: int
    chosen: Gate | None
    gates: tuple[Gate, ...]
    needed: int


def judged(one: Answered, entry: Entry | None) -> tuple[list[float], list[bool]]:
    """Confidence of each labelled answer as clients see it, and whether it is right.

    Args:
        one: a question with its answers.
        entry: its calibration; None = as they are.
    """
    answers = one.answers
    confidence, correct = [], []
    for raw, gold in zip(answers.probabilities.tolist(), answers.gold.tolist(), strict=True):
        p = raw if entry is None else calibrated(raw, entry)
        confidence.append(confidence_of({"": to_answer(one.question, p)})[""])
        correct.append(argmax(p) == gold)
    return confidence, correct


def find_gate(
    confidence: Sequence[float], correct: Sequence[bool], *, target: float, level: float = 0.95
) -> Thresholds:
    """Find the smallest gate whose accuracy is at least `target`, with probability `level`.

    Every gate of `GATES` that keeps a set of answers of its own, and enough of them to show the target
    at all, is tested by its one-sided Clopper-Pearson bound at level 1 - (1 - level) / m (Bonferroni
    over these m gates, which confidences alone decide). So the promise holds for whichever is chosen.

    Args:
        confidence: [n] of the answers, in [0, 1].
        correct: [n] whether they are right.
        target: wanted accuracy, between 0 and 1.
        level: of confidence, between 0 and 1.
    """
    stated, right = np.asarray(confidence, dtype=np.float64), np.asarray(correct, dtype=bool)
    alone = math.ceil(math.log(1 - level) / math.log(target))
    masks: dict[int, tuple[float, NDArray[np.bool_]]] = {}
    for gate in GATES:
        mask = stated >= gate
        if mask.sum() >= alone:
            masks[int(mask.sum())] = (gate, mask)  # the highest gate of those that keep the same
    share = (1 - level) / max(1, len(masks))
    gates = sorted(
        (
            _gate(gate, int(right[mask].sum()), int(mask.sum()), len(stated), share, level)
            for gate, mask in masks.values()
        ),
        key=lambda one: one.gate,
    )
    chosen = next((gate for gate in gates if gate.accuracy_low >= target), None)
    needed = math.ceil(math.log(share) / math.log(target))
    return Thresholds(len(stated), chosen, tuple(gates), needed)


def _gate(gate: float, right: int, kept: int, rows: int, share: float, level: float) -> Gate:
    tail = (1 - level) / 2
    return Gate(
        gate=gate,
        kept=kept,
        right=right,
        coverage=kept / rows,
        coverage_low=_low(kept, rows, tail),
        coverage_high=1 - _low(rows - kept, rows, tail),
        accuracy=right / kept,
        accuracy_low=_low(right, kept, share),
        accuracy_high=1 - _low(kept - right, kept, share),
    )


def _low(successes: int, n: int, share: float) -> float:
    """Clopper and Pearson's lower bound of a rate, too high in at most `share` of cases."""
    return float(betaincinv(successes, n - successes + 1, share)) if successes else 0.0
