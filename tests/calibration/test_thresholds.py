"""A gate keeps its promise on rows that it was not chosen on, and there is none where the rows show none."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom, binomtest

from jev.calibration.file import Entry
from jev.calibration.gather import Answered
from jev.calibration.thresholds import GATES, find_gate, judged
from jev.schemas import Choice, Noul, Score


def answers(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Confidences, and whether each answer is right: as often as its confidence says."""
    chance = np.random.default_rng(seed)
    confidence = chance.beta(3, 0.7, size=n)
    return confidence, chance.random(n) < confidence


def test_bounds_are_clopper_and_pearsons_over_the_gates_that_were_tested() -> None:
    confidence, correct = answers(2000)
    found = find_gate(confidence.tolist(), correct.tolist(), target=0.9, level=0.95)
    share = 0.05 / len(found.gates)
    assert len(found.gates) > 5
    for gate in found.gates:
        kept = confidence >= gate.gate
        n, k = int(kept.sum()), int(correct[kept].sum())
        assert (gate.kept, gate.right) == (n, k)
        assert gate.accuracy == k / n
        assert gate.coverage == n / 2000
        low = binomtest(k, n, alternative="greater").proportion_ci(1 - share).low
        high = binomtest(k, n, alternative="less").proportion_ci(1 - share).high
        assert (gate.accuracy_low, gate.accuracy_high) == pytest.approx((low, high), abs=1e-9)
        coverage = binomtest(n, 2000).proportion_ci(0.95)
        assert (gate.coverage_low, gate.coverage_high) == pytest.approx(
            (coverage.low, coverage.high), abs=1e-9
        )
    assert found.chosen == next(gate for gate in found.gates if gate.accuracy_low >= 0.9)
    assert found.chosen.gate in GATES


def test_the_promise_holds_on_new_rows() -> None:
    """Over many repeats the true accuracy above the chosen gate is under the target in at most 1 - level."""
    chance = np.random.default_rng(1)
    world = chance.beta(3, 0.7, size=200_000)
    true = {gate: world[world >= gate].mean() for gate in GATES}
    broken = chosen = 0
    for seed in range(400):
        confidence, correct = answers(600, seed)
        found = find_gate(confidence.tolist(), correct.tolist(), target=0.92, level=0.8).chosen
        if found is not None:
            chosen += 1
            broken += true[found.gate] < 0.92
    assert chosen > 300
    assert broken <= binom.ppf(0.999, 400, 0.2)


def test_there_is_no_gate_for_what_the_rows_do_not_show() -> None:
    chance = np.random.default_rng(2)
    confidence = chance.random(1000)
    found = find_gate(confidence.tolist(), (chance.random(1000) < 0.6).tolist(), target=0.9)
    assert found.chosen is None
    assert found.gates


def test_few_rows_that_are_all_right_show_little() -> None:
    found = find_gate([1.0] * 58, [True] * 58, target=0.95)
    assert (found.chosen, found.gates, found.needed) == (None, (), 59)
    assert find_gate([1.0] * 59, [True] * 59, target=0.95).chosen is not None


def test_gates_that_keep_the_same_answers_are_one() -> None:
    found = find_gate([0.91] * 500 + [0.3] * 500, [True] * 500 + [False] * 500, target=0.9)
    assert [gate.gate for gate in found.gates] == [0.3, 0.9]
    assert found.chosen is not None
    assert found.chosen.gate == 0.9
    assert found.chosen.coverage == 0.5


def one(question: Noul | Choice | Score, *rows: tuple[tuple[float, ...], int]) -> Answered:
    found = Answered("0" * 64, question)
    for p, gold in rows:
        found.add("a", p, gold, 1.0, "s")
    return found


def test_confidence_is_the_one_that_clients_see() -> None:
    assert judged(one(Noul("?"), ((0.9, 0.1), 0), ((0.2, 0.8), 0)), None) == (
        [pytest.approx(0.8), pytest.approx(0.6)],
        [True, False],
    )
    confidence, correct = judged(one(Choice("?", ["a", "b", "c"]), ((0.6, 0.3, 0.1), 1)), None)
    assert (confidence, correct) == ([pytest.approx(0.4)], [False])
    confidence, _ = judged(one(Score("?", ["a", "b", "c"]), ((0.0, 1.0, 0.0), 1)), None)
    assert confidence == [1.0]


def test_a_calibration_goes_first() -> None:
    entry = Entry(
        signature="0" * 64,
        ids=("a",),
        type="noul",
        labels=("yes", "no"),
        method="temperature+bias",
        bias=(-2.0, 2.0),
        rows=100,
        states=100,
    )
    assert judged(one(Noul("?"), ((0.9, 0.1), 1)), None)[1] == [False]
    assert judged(one(Noul("?"), ((0.9, 0.1), 1)), entry)[1] == [True]
