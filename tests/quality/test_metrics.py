"""Proves that every figure is scikit-learn's or scipy's to 1e-12, or its definition where they have none."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from scipy.stats import binomtest
from sklearn.calibration import calibration_curve
from sklearn.metrics import (
    accuracy_score,
    brier_score_loss,
    cohen_kappa_score,
    f1_score,
    log_loss,
    mean_absolute_error,
)

from jev.quality import figures, metrics
from jev.quality.answers import Item, Scored
from jev.quality.replies import Judgement
from jev.schemas import Choice, Noul, Score, alternatives

close = pytest.approx
TIGHT = {"rel": 0, "abs": 1e-12}


def sample(question: Choice | Noul | Score, n: int = 400, seed: int = 1, *, weighted: bool = True) -> Scored:
    """Random distributions, with reviewed answers that follow them loosely."""
    chance = np.random.default_rng(seed)
    names = alternatives(question)
    p = chance.dirichlet(np.full(len(names), 0.8), size=n)
    gold = [int(chance.choice(len(names), p=row)) if chance.random() < 0.8 else 0 for row in p]
    weight = chance.choice([0.0, 0.5, 1.0, 3.0], size=n) if weighted else np.ones(n)
    items = tuple(
        Item(i, i + 1, "q", question, names, g, float(w))
        for i, (g, w) in enumerate(zip(gold, weight, strict=True))
    )
    return Scored(items, tuple(Judgement(tuple(map(float, row)), int(row.argmax())) for row in p))


QUESTIONS = [Noul("Red?"), Choice(["ant", "bee", "cow", "dog"]), Score(["low", "middle", "high", "top"])]


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda q: q.type)
@pytest.mark.parametrize("weighted", [False, True])
def test_figures_are_those_of_scikit_learn(question: Choice | Noul | Score, weighted: bool) -> None:
    answers = sample(question, weighted=weighted)
    found = figures.figures(answers, floor=1e-15)
    p = np.array([answer.probabilities for answer in answers.answers])
    labels, w = list(range(p.shape[1])), answers.weight
    assert found["accuracy"] == close(accuracy_score(answers.gold, answers.winner, sample_weight=w), **TIGHT)
    f1 = f1_score(answers.gold, answers.winner, average="macro", sample_weight=w)
    assert found["macro_f1"] == close(f1, **TIGHT)
    assert found["nll"] == close(log_loss(answers.gold, p, labels=labels, sample_weight=w), **TIGHT)
    brier = brier_score_loss(
        answers.gold,
        p if len(labels) > 2 else 1 - p[:, 0],
        labels=labels,
        sample_weight=w,
        scale_by_half=True,
    )
    assert found["brier"] == close(brier, **TIGHT)
    if question.type == "score":
        expected = p @ np.arange(len(labels))
        assert found["mae"] == close(mean_absolute_error(answers.gold, expected, sample_weight=w), **TIGHT)
        kappa = cohen_kappa_score(answers.gold, answers.winner, weights="quadratic", sample_weight=w)
        assert found["qwk"] == close(kappa, **TIGHT)
    else:
        assert found["mae"] is None
        assert found["qwk"] is None


def test_reliability_bins_are_those_of_scikit_learn() -> None:
    answers = sample(QUESTIONS[1], weighted=False)
    # Values on the bins' edges, too.
    confidence = np.round(answers.confidence * 15) / 15
    bins = metrics.reliability(confidence, answers.correct, answers.weight)
    accuracy, stated = calibration_curve(answers.correct, confidence, n_bins=metrics.BINS)
    used = [one for one in bins if one.count]
    assert [one.accuracy for one in used] == close(accuracy.tolist(), **TIGHT)
    assert [one.confidence for one in used] == close(stated.tolist(), **TIGHT)
    by_hand = sum(one.count * abs(one.accuracy - one.confidence) for one in used) / len(answers)
    assert metrics.ece(confidence, answers.correct, answers.weight) == close(by_hand, **TIGHT)


def test_weights_count_like_copies_of_a_row() -> None:
    answers = sample(QUESTIONS[2], n=60, weighted=False)
    times = np.random.default_rng(3).integers(0, 4, size=60)
    weighted = figures.figures(
        Scored(
            tuple(
                Item(i.row, i.number, i.name, i.question, i.names, i.gold, float(t))
                for i, t in zip(answers.items, times, strict=True)
            ),
            answers.answers,
        ),
        1e-15,
    )
    copied = figures.figures(
        Scored(
            tuple(i for i, t in zip(answers.items, times, strict=True) for _ in range(t)),
            tuple(a for a, t in zip(answers.answers, times, strict=True) for _ in range(t)),
        ),
        1e-15,
    )
    # Not AURC: there a heavy row is one step, and copies are as many.
    for name in ("accuracy", "macro_f1", "nll", "brier", "ece", "mae", "qwk"):
        assert weighted[name] == close(copied[name], **TIGHT), name


def test_risk_coverage_is_the_mean_risk_over_all_orders_of_ties() -> None:
    confidence, correct = np.array([0.9, 0.5, 0.5, 0.7]), np.array([True, False, True, False])
    coverage, risk = metrics.risk_coverage(confidence, correct, np.ones(4))
    assert coverage.tolist() == [0.25, 0.5, 0.75, 1.0]
    # Of the two that are tied at 0.5 one is wrong: half an error each.
    assert risk == close([0, 1 / 2, 1.5 / 3, 2 / 4])
    assert metrics.aurc(confidence, correct, np.ones(4)) == close((0 + 1 / 2 + 1.5 / 3 + 2 / 4) / 4)
    for order in ([3, 1, 0, 2], [2, 0, 1, 3]):
        assert metrics.aurc(confidence[order], correct[order], np.ones(4)) == metrics.aurc(
            confidence, correct, np.ones(4)
        )


def test_mcnemar_is_the_exact_binomial_test() -> None:
    for first, second in product((0, 1, 5, 12), repeat=2):
        expected = binomtest(first, first + second, 0.5).pvalue if first + second else 1.0
        assert metrics.mcnemar(first, second) == close(expected, **TIGHT)


def test_the_floor_is_what_a_calibrated_model_shows() -> None:
    chance = np.random.default_rng(0)
    confidence = chance.uniform(0.4, 1.0, size=500)
    floor = metrics.ece_floor(confidence, np.ones(500), seed=7)
    measured = [metrics.ece(confidence, chance.random(500) < confidence, np.ones(500)) for _ in range(200)]
    assert floor == close(np.mean(measured), abs=4 * np.std(measured) / math.sqrt(200) * math.sqrt(2))
    assert floor == metrics.ece_floor(confidence, np.ones(500), seed=7)
    assert metrics.ece_floor(np.repeat(confidence, 100), np.ones(50_000), repeats=5) < floor / 5


def test_intervals_cover_and_shrink_and_resample_whole_rows() -> None:
    chance = np.random.default_rng(5)
    confidence = chance.uniform(0.4, 1.0, size=400)
    correct = chance.random(400) < confidence
    alone = metrics.intervals(confidence, correct, np.ones(400), np.arange(400))
    low, high = alone["accuracy"]
    deviation = math.sqrt(correct.mean() * (1 - correct.mean()) / 400)
    assert low == close(correct.mean() - 1.96 * deviation, abs=0.01)
    assert high == close(correct.mean() + 1.96 * deviation, abs=0.01)
    # Four copies of every answer in one row say no more than the answer did.
    copies = metrics.intervals(
        np.repeat(confidence, 4), np.repeat(correct, 4), np.ones(1600), np.repeat(np.arange(400), 4)
    )
    assert copies == {name: close(bounds, **TIGHT) for name, bounds in alone.items()}
    assert metrics.intervals(confidence[:3], correct[:3], np.ones(3), np.zeros(3, dtype=int)) is None


def test_nothing_to_weigh_is_none_and_not_an_error() -> None:
    empty = figures.figures(Scored((), ()), 1e-15)
    assert empty["n"] == 0
    assert empty["accuracy"] is None
    weightless = sample(Noul("Red?"), n=3)
    items = tuple(Item(i.row, i.number, i.name, i.question, i.names, i.gold, 0.0) for i in weightless.items)
    assert figures.figures(Scored(items, weightless.answers), 1e-15)["ece"] is None
    assert metrics.qwk([1, 1], [1, 1], np.ones(2), 3) is None


def test_labels_are_counted_by_name_when_options_differ_from_row_to_row() -> None:
    first, second = Choice(["ant", "bee"]), Choice(["bee", "cow", "ant"])
    items = (
        Item(0, 1, "q", first, alternatives(first), 0, 1.0),
        Item(1, 2, "q", second, alternatives(second), 2, 1.0),
    )
    answers = (Judgement((0.8, 0.2), 0), Judgement((0.7, 0.1, 0.2), 0))
    (found,) = figures.by_question(Scored(items, answers), 1e-15)
    labels = {one["label"]: one for one in found["labels"]}
    assert labels["ant"]["support"] == 2
    assert labels["ant"]["recall"] == 0.5
    assert labels["bee"]["precision"] == 0
    assert labels["ant"]["mean_probability"] == close(0.5)
    names = [one["label"] for one in found["labels"]]
    assert found["confusion"][names.index("ant")][names.index("bee")] == 1
