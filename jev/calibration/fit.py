"""Temperatures from labelled answers: the least negative log-likelihood, checked by cross-validation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize, minimize_scalar
from scipy.special import log_softmax

from jev.calibration.file import Figures
from jev.quality import metrics

Floats = NDArray[np.float64]
Method = Literal["none", "temperature", "temperature+bias"]

LEAST, MOST = 0.2, 20.0
"""Bounds of a temperature. Rows that are all right would drive it to 0."""

FLOOR = 1e-30
"""Least probability that counts, so that one zero does not decide everything. A model whose logits are capped
at 30 says nothing below e^-60; what is above the floor is fitted as it is served."""

L2 = 1.0
"""Weight of the squared biases against the summed likelihood: a normal prior of one nat."""


@dataclass(frozen=True)
class Answers:
    """All labelled answers to one question.

    Attributes:
        probabilities: [n, k] uncalibrated distributions over the question's alternatives.
        gold: [n] index of the reviewed alternative.
        weights: [n] how much each counts.
        states: [n] what the answer is about; equal states never are in two folds.
    """

    probabilities: Floats
    gold: NDArray[np.int64]
    weights: Floats
    states: NDArray[np.str_]

    def __len__(self) -> int:
        return len(self.gold)

    @property
    def logs(self) -> Floats:
        """[n, k] logarithms of the probabilities."""
        return np.log(np.maximum(self.probabilities, FLOOR))

    def part(self, mask: NDArray[np.bool_]) -> Answers:
        """The answers where `mask` [n] holds."""
        return Answers(self.probabilities[mask], self.gold[mask], self.weights[mask], self.states[mask])


@dataclass(frozen=True)
class Parameters:
    """What turns log-probabilities into calibrated ones."""

    temperature: float = 1.0
    bias: tuple[float, ...] | None = None

    def apply(self, logs: Floats) -> Floats:
        """Calibrated log-probabilities [n, k] of log-probabilities [n, k]."""
        scaled = logs / self.temperature
        return log_softmax(scaled if self.bias is None else scaled + np.asarray(self.bias), axis=1)


@dataclass(frozen=True)
class Fit:
    """What came out for one question.

    Attributes:
        method: the one with the least out-of-fold loss.
        parameters: fitted by that method to all rows.
        before: figures of the uncalibrated answers.
        after: figures of the out-of-fold answers of that method.
        gain: mean drop of the loss in nats, out of fold.
        gain_error: its standard error over rows.
    """

    method: Method
    parameters: Parameters
    before: Figures
    after: Figures
    gain: float
    gain_error: float

    @property
    def at_bound(self) -> bool:
        """Whether the temperature ran into a bound: the rows do not determine it."""
        t = self.parameters.temperature
        return t != 1 and (t <= LEAST * 1.001 or t >= MOST / 1.001)


def fit_temperature(pool: Sequence[Answers]) -> Parameters:
    """The temperature of least weighted mean NLL over answers to one or more questions."""
    parts = [(one.logs, one.gold, one.weights) for one in pool]

    def loss(log_t: float) -> float:
        t = np.exp(log_t)
        return sum(float(w @ _nll(log_softmax(logs / t, axis=1), gold)) for logs, gold, w in parts)

    # The loss is convex in 1/T, so it has one minimum in log T too.
    found = minimize_scalar(
        loss, bounds=(np.log(LEAST), np.log(MOST)), method="bounded", options={"xatol": 1e-7}
    )
    return Parameters(float(np.exp(found.x)))


def fit_bias(answers: Answers) -> Parameters:
    """The temperature and the biases by label of least NLL with `L2` on the biases, which sum to 0."""
    logs, gold, weights = answers.logs, answers.gold, answers.weights
    total, k = weights.sum(), logs.shape[1]
    target = np.eye(k)[gold]

    def loss(x: Floats) -> tuple[float, Floats]:
        # In 1/T and b the loss is convex; x = (1/T, b).
        shares = log_softmax(logs * x[0] + x[1:], axis=1)
        slope = weights[:, None] * (np.exp(shares) - target)
        value = float(weights @ _nll(shares, gold)) + L2 / 2 * float(x[1:] @ x[1:])
        return value / total, np.concatenate([[(slope * logs).sum()], slope.sum(0) + L2 * x[1:]]) / total

    start = np.concatenate([[1 / fit_temperature([answers]).temperature], np.zeros(k)])
    bounds = [(1 / MOST, 1 / LEAST), *[(-100.0, 100.0)] * k]
    options = {"maxiter": 1000, "ftol": 1e-14, "gtol": 1e-9}
    found = minimize(loss, start, jac=True, bounds=bounds, method="L-BFGS-B", options=options).x
    bias = found[1:] - found[1:].mean()
    return Parameters(float(1 / found[0]), tuple(map(float, bias)))


def cross_validate(pool: Sequence[Answers], *, bias: bool = False, folds: int = 10) -> list[Fit]:
    """Fit one set of parameters to all of `pool` and judge it on answers that the fit has not seen.

    Each fold leaves out whole states, over all questions of the pool. Of "none", "temperature" and,
    with `bias` (one question only), "temperature+bias", the one of least out-of-fold NLL is kept,
    the simpler one among equals. Deterministic: folds depend on the states alone.

    Returns one `Fit` a question, in order; they share method and parameters.

    Raises:
        ValueError: there are not two different states.
    """
    candidates: list[tuple[Method, list[Floats]]] = [("none", [one.logs for one in pool])]
    methods: list[Method] = ["temperature", "temperature+bias"] if bias else ["temperature"]
    masks = _folds(pool, folds)
    for method in methods:
        unseen = [np.empty_like(one.logs) for one in pool]
        for held in masks:
            fitted = _fit([one.part(~mask) for one, mask in zip(pool, held, strict=True)], method)
            for one, mask, out in zip(pool, held, unseen, strict=True):
                out[mask] = fitted.apply(one.logs[mask])
        candidates.append((method, unseen))
    losses = [
        sum(float(one.weights @ _nll(out, one.gold)) for one, out in zip(pool, outs, strict=True))
        for _, outs in candidates
    ]
    method, outs = candidates[int(np.argmin(losses))]
    parameters = _fit(pool, method)
    fits = []
    for one, out in zip(pool, outs, strict=True):
        drop = _nll(one.logs, one.gold) - _nll(out, one.gold)
        gain = float(np.average(drop, weights=one.weights))
        share = one.weights / one.weights.sum()
        error = float(np.sqrt(np.sum((share * (drop - gain)) ** 2)))
        fits.append(Fit(method, parameters, figures(one.logs, one), figures(out, one), gain, error))
    return fits


def figures(logs: Floats, answers: Answers) -> Figures:
    """How good log-probabilities [n, k] are, as `jev quality` measures it."""
    p = np.exp(logs)
    p = p / p.sum(axis=1, keepdims=True)
    winner = p.argmax(axis=1)
    rows = np.arange(len(answers))
    correct = winner == answers.gold
    squared = ((p - np.eye(p.shape[1])[answers.gold]) ** 2).sum(axis=1) / 2
    weights = answers.weights
    return Figures(
        nll=metrics.nll(p[rows, answers.gold], weights, FLOOR),
        ece=metrics.ece(p[rows, winner], correct, weights),
        brier=metrics.brier(squared, weights),
        accuracy=float(np.average(correct, weights=weights)),
    )


def _fit(pool: Sequence[Answers], method: Method) -> Parameters:
    if method == "none":
        return Parameters()
    return fit_temperature(pool) if method == "temperature" else fit_bias(pool[0])


def _nll(logs: Floats, gold: NDArray[np.int64]) -> Floats:
    """[n] negative log-likelihood of the reviewed alternatives."""
    return -logs[np.arange(len(gold)), gold]


def _folds(pool: Sequence[Answers], folds: int) -> list[list[NDArray[np.bool_]]]:
    """For each fold and question the answers [n] that are held out."""
    from sklearn.model_selection import GroupKFold  # noqa: PLC0415 - seconds to import

    states = np.concatenate([one.states for one in pool])
    distinct = len(np.unique(states))
    if distinct < 2:
        raise ValueError("all rows have the same state, so no fit can be checked on another one")
    ends = np.cumsum([len(one) for one in pool])[:-1]
    masks = []
    for _, held in GroupKFold(min(folds, distinct)).split(states, groups=states):
        mask = np.zeros(len(states), dtype=bool)
        mask[held] = True
        masks.append(np.split(mask, ends))
    return masks
