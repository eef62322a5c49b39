"""A fit finds the temperature and the biases that made the labels; its figures are those of unseen states."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import softmax
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss
from sklearn.model_selection import GroupKFold
from synthetic import answers

from jev.calibration.fit import L2, LEAST, Answers, cross_validate, fit_bias, fit_temperature


@pytest.mark.parametrize(("k", "temperature"), [(2, 0.5), (2, 3.0), (5, 0.7), (5, 1.0), (30, 2.0)])
def test_a_known_temperature_is_found(k: int, temperature: float) -> None:
    found = fit_temperature([answers(6000, k, temperature=temperature, seed=k)])
    assert found.temperature == pytest.approx(temperature, rel=0.08)
    assert found.bias is None


def test_it_is_the_one_of_least_loss() -> None:
    """No temperature on a fine grid has a lower loss, by scikit-learn's own loss."""
    data = answers(300, 4, temperature=1.7, seed=3)
    found = fit_temperature([data]).temperature

    def loss(t: float) -> float:
        return log_loss(data.gold, softmax(data.logs / t, axis=1), labels=range(4))

    assert loss(found) <= min(map(loss, np.geomspace(0.2, 20, 80))) + 1e-12


def test_known_biases_are_found() -> None:
    data = answers(8000, 3, temperature=2.0, bias=(1.0, -0.5, -0.5), seed=5)
    found = fit_bias(data)
    assert found.temperature == pytest.approx(2.0, rel=0.08)
    assert found.bias == pytest.approx((1.0, -0.5, -0.5), abs=0.1)
    assert sum(found.bias or ()) == pytest.approx(0, abs=1e-9)


def test_biases_are_at_the_optimum_of_the_documented_loss() -> None:
    data = answers(200, 3, temperature=1.5, bias=(0.5, 0.0, -0.5), seed=6)
    found = fit_bias(data)
    assert found.bias is not None

    def loss(t: float, bias: np.ndarray) -> float:
        p = softmax(data.logs / t + bias, axis=1)
        return 200 * log_loss(data.gold, p, labels=range(3)) + L2 / 2 * float(bias @ bias)

    best = loss(found.temperature, np.array(found.bias))
    chance = np.random.default_rng(0)
    for _ in range(200):
        nudge = chance.normal(scale=0.02, size=4)
        assert loss(found.temperature * np.exp(nudge[0]), np.array(found.bias) + nudge[1:]) >= best - 1e-9


def test_weights_count_as_repeated_rows() -> None:
    data = answers(120, 3, temperature=2.0, seed=7)
    weights = np.random.default_rng(7).integers(1, 4, size=120)
    repeated = Answers(
        *(np.repeat(column, weights, axis=0) for column in (data.probabilities, data.gold)),
        weights=np.ones(weights.sum()),
        states=np.repeat(data.states, weights),
    )
    weighted = dataclasses.replace(data, weights=weights.astype(float))
    assert fit_temperature([weighted]).temperature == pytest.approx(fit_temperature([repeated]).temperature)


def test_figures_are_those_of_unseen_states_by_scikit_learn() -> None:
    """A cross-validation written out by hand gives the same numbers."""
    data = answers(240, 3, temperature=3.0, seed=8, states=80)
    fit = cross_validate([data], folds=5)[0]
    assert fit.method == "temperature"
    unseen = np.empty_like(data.probabilities)
    for train, test in GroupKFold(5).split(data.states, groups=data.states):

        def loss(t: float, train: np.ndarray = train) -> float:
            return log_loss(data.gold[train], softmax(data.logs[train] / t, axis=1), labels=range(3))

        t = minimize_scalar(loss, bounds=(0.2, 20), method="bounded", options={"xatol": 1e-9}).x
        unseen[test] = softmax(data.logs[test] / t, axis=1)
        assert not set(data.states[train]) & set(data.states[test])
    for given, p in ((fit.before, data.probabilities), (fit.after, unseen)):
        assert given.nll == pytest.approx(log_loss(data.gold, p, labels=range(3)), abs=1e-6)
        brier = brier_score_loss(data.gold, p, labels=[0, 1, 2], scale_by_half=True)
        assert given.brier == pytest.approx(brier, abs=1e-6)
        assert given.accuracy == accuracy_score(data.gold, p.argmax(axis=1))
    assert fit.after.ece < fit.before.ece
    assert fit.after.accuracy == fit.before.accuracy
    assert fit.gain == pytest.approx(fit.before.nll - fit.after.nll)


def test_what_a_state_repeats_does_not_leak() -> None:
    """Labels that are noise, but the same for all 20 rows of a state, teach nothing about other states."""
    chance = np.random.default_rng(1)
    few = answers(10, 2, temperature=1.0, seed=9)
    many = Answers(
        np.repeat(few.probabilities, 20, axis=0),
        np.repeat(chance.integers(0, 2, 10), 20),
        np.ones(200),
        np.repeat(few.states, 20),
    )
    alone = dataclasses.replace(many, states=np.arange(200).astype(str))
    grouped, leaking = (cross_validate([one])[0] for one in (many, alone))
    assert leaking.after.nll < grouped.after.nll


def test_nothing_is_changed_where_nothing_helps() -> None:
    """Few rows of a calibrated model: a fit to them would be a fit to chance."""
    fits = [cross_validate([answers(60, 3, seed=seed)])[0] for seed in range(8)]
    kept = [fit for fit in fits if fit.method == "none"]
    assert len(kept) >= 6
    for fit in kept:
        assert fit.parameters.temperature == 1.0
        assert fit.after == fit.before


def test_biases_are_taken_only_when_they_beat_the_temperature() -> None:
    skewed = answers(900, 3, temperature=2.0, bias=(1.5, 0.0, -1.5), seed=10)
    even = answers(150, 3, temperature=2.0, seed=11)
    assert cross_validate([skewed], bias=True)[0].method == "temperature+bias"
    assert cross_validate([even], bias=True)[0].method == "temperature"


def test_a_pool_shares_one_temperature_over_questions_of_any_size() -> None:
    pool = [answers(1500, k, temperature=2.5, seed=k) for k in (2, 3, 7)]
    fits = cross_validate(pool)
    assert len({fit.parameters for fit in fits}) == 1
    assert fits[0].parameters == fit_temperature(pool)
    assert fits[0].parameters.temperature == pytest.approx(2.5, rel=0.08)
    for fit, own in zip(fits, pool, strict=True):
        assert fit.before.nll == pytest.approx(log_loss(own.gold, own.probabilities))


def test_the_order_of_rows_does_not_matter() -> None:
    data = answers(200, 3, temperature=2.0, seed=12, states=70)
    order = np.random.default_rng(3).permutation(200)
    mixed = Answers(data.probabilities[order], data.gold[order], data.weights[order], data.states[order])
    one, other = cross_validate([data])[0], cross_validate([mixed])[0]
    assert one.parameters.temperature == pytest.approx(other.parameters.temperature, rel=1e-6)
    assert one.after.nll == pytest.approx(other.after.nll, rel=1e-6)


def test_rows_that_are_all_right_stop_at_the_bound() -> None:
    data = answers(100, 2, seed=13)
    sure = dataclasses.replace(data, gold=data.probabilities.argmax(axis=1))
    fit = cross_validate([sure])[0]
    assert fit.parameters.temperature == pytest.approx(LEAST, rel=1e-3)
    assert fit.at_bound


def test_one_state_alone_cannot_be_judged() -> None:
    with pytest.raises(ValueError, match="the same state"):
        cross_validate([answers(60, 2, states=1)])


def test_a_probability_of_zero_for_the_right_label_is_survived() -> None:
    data = answers(100, 2, seed=14)
    data.probabilities[0] = (0.0, 1.0)
    data.gold[0] = 0
    assert np.isfinite(cross_validate([data])[0].after.nll)
    assert fit_temperature([data]).temperature > fit_temperature([answers(100, 2, seed=14)]).temperature
