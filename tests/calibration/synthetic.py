"""Labelled answers whose right calibration is known."""

from __future__ import annotations

import numpy as np
from scipy.special import softmax

from jev.calibration.fit import Answers


def answers(
    n: int,
    k: int,
    *,
    temperature: float = 1.0,
    bias: tuple[float, ...] = (),
    seed: int = 0,
    states: int | None = None,
    spread: float = 1.5,
) -> Answers:
    """Answers of a model that would be right with this temperature and bias.

    The labels are drawn from softmax(z / T + b), and the model states softmax(z).
    """
    chance = np.random.default_rng(seed)
    logits = chance.normal(scale=spread * temperature, size=(n, k))
    truth = softmax(logits / temperature + (np.array(bias) if bias else 0.0), axis=1)
    gold = (truth.cumsum(axis=1) > chance.random((n, 1))).argmax(axis=1)
    names = np.array([f"state {index % (states or n)}" for index in range(n)])
    return Answers(softmax(logits, axis=1), gold, np.ones(n), names)
