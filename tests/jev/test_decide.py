"""Proves the arithmetic from label logits to answers: formulas, examples, sums and edges."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jev.decide import (
    Reads,
    argmax,
    choice_confidence,
    entropy,
    mean,
    score_confidence,
    softmax,
    to_alternatives,
    to_answer,
)
from jev.schemas import Choice, ChoiceAnswer, Noul, NoulAnswer, Score, ScoreAnswer

LOGITS = st.lists(st.floats(-30, 30), min_size=1, max_size=255)


def distribution(count: int, seed: int, sharpness: float = 3.0) -> list[float]:
    rng = random.Random(seed)
    return softmax([rng.gauss(0, sharpness) for _ in range(count)])


DISTRIBUTIONS = st.builds(
    distribution, st.integers(1, 40), st.integers(0, 10**6), st.sampled_from([0.0, 0.1, 3.0, 20.0])
)


# Softmax


@given(LOGITS)
def test_softmax_is_a_distribution_in_the_order_of_the_logits(logits: list[float]) -> None:
    p = softmax(logits)
    assert abs(math.fsum(p) - 1) <= 1e-12
    assert all(0 <= value <= 1 for value in p)
    assert p[argmax(logits)] == max(p)
    expected = np.exp(np.array(logits) - max(logits))
    np.testing.assert_allclose(p, expected / expected.sum(), rtol=1e-12, atol=0)


@given(LOGITS, st.integers(-20, 20))
def test_softmax_knows_differences_only(logits: list[float], shift: int) -> None:
    moved = softmax([logit + shift for logit in logits])
    assert moved == pytest.approx(softmax(logits), abs=1e-12)


def test_softmax_of_extremes() -> None:
    assert softmax([1e308, 0.0]) == [1.0, 0.0]
    assert softmax([-1e308, -1e308]) == [0.5, 0.5]
    assert softmax([30.0, -30.0])[1] == pytest.approx(math.exp(-60), rel=1e-12)
    assert softmax([0.0]) == [1.0]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_logits_that_are_not_finite(bad: float, place: int) -> None:
    logits = [0.5, -0.5, 1.0]
    logits[place] = bad
    with pytest.raises(ArithmeticError, match="not finite"):
        softmax(logits)


# Entropy and means


@given(DISTRIBUTIONS)
def test_entropy(p: list[float]) -> None:
    expected = -sum(value * math.log(value) for value in p if value)
    assert entropy(p) == pytest.approx(expected, abs=1e-12)
    assert 0 <= entropy(p) <= math.log(len(p)) + 1e-12


def test_entropy_of_known_distributions() -> None:
    assert entropy([0.5, 0.5]) == pytest.approx(math.log(2), abs=1e-15)
    assert entropy([0.98, 0.02]) == pytest.approx(0.098, abs=5e-4)  # just under the default threshold
    assert entropy([1.0, 0.0]) == 0.0
    assert math.copysign(1, entropy([1.0])) == 1  # no minus zero


@given(st.integers(1, 20), st.integers(1, 32), st.integers(0, 1000))
def test_mean_is_a_distribution_and_numpy_agrees(options: int, reads: int, seed: int) -> None:
    rows = [distribution(options, seed + read) for read in range(reads)]
    average = mean(rows)
    assert abs(math.fsum(average) - 1) <= 1e-12
    np.testing.assert_allclose(average, np.mean(rows, axis=0), rtol=0, atol=1e-15)
    assert mean([rows[0]]) == rows[0]


@pytest.mark.parametrize(
    ("values", "index"), [([1.0], 0), ([0.2, 0.8], 1), ([0.5, 0.5], 0), ([0.1, 0.45, 0.45], 1)]
)
def test_argmax_takes_the_first_of_equals(values: list[float], index: int) -> None:
    assert argmax(values) == index


# Confidence


@pytest.mark.parametrize(
    ("p", "expected"),
    [
        ([0.88, 0.12, 0.0], 0.82),
        ([1.0], 1.0),
        ([1.0, 0.0], 1.0),
        ([0.5, 0.5], 0.0),
        ([0.25] * 4, 0.0),
        ([0.7, 0.2, 0.1], 0.55),
    ],
)
def test_choice_confidence(p: list[float], expected: float) -> None:
    assert choice_confidence(p) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("p", "expected"),
    [
        ([0.0, 0.95, 0.05], 0.925),
        ([0.0, 0.57, 0.43], 0.355),
        ([1.0], 1.0),
        ([1.0, 0.0], 1.0),
        ([0.5, 0.5], 0.0),
        ([0.5, 0.0, 0.5], 0.0),
        ([0.2, 0.4, 0.4], 0.1),
        ([0.1] * 10, 0.0),
    ],
)
def test_score_confidence(p: list[float], expected: float) -> None:
    assert score_confidence(p) == pytest.approx(expected, abs=1e-12)


@given(DISTRIBUTIONS)
def test_confidence_formulas(p: list[float]) -> None:
    n, mode = len(p), int(np.argmax(p))
    if n == 1:
        assert (choice_confidence(p), score_confidence(p)) == (1.0, 1.0)
        return
    assert choice_confidence(p) == pytest.approx((max(p) - 1 / n) / (1 - 1 / n), abs=1e-12)
    spread = np.mean(np.abs(np.arange(n) - (n - 1) / 2))
    distance = np.sum(np.array(p) * np.abs(np.arange(n) - mode))
    assert score_confidence(p) == pytest.approx(max(0.0, 1 - distance / spread), abs=1e-12)
    assert 0 <= choice_confidence(p) <= 1
    assert 0 <= score_confidence(p) <= 1


@pytest.mark.parametrize("count", [2, 3, 7, 10, 49, 255])
def test_confidence_of_equals_and_of_certainty(count: int) -> None:
    equal, sure = [1 / count] * count, [0.0] * (count - 1) + [1.0]
    assert choice_confidence(equal) == pytest.approx(0, abs=1e-12)
    assert choice_confidence(equal) >= 0
    assert choice_confidence(sure) == score_confidence(sure) == 1.0


# Answers


def test_noul_is_the_probability_of_yes() -> None:
    assert to_answer(Noul("?"), [0.3, 0.7]) == NoulAnswer(noul=0.3)


@given(DISTRIBUTIONS)
def test_choice_sends_what_it_decides_from(p: list[float]) -> None:
    names = [f"o{n}" for n in range(len(p))]
    answer = to_answer(Choice(names), p)
    assert isinstance(answer, ChoiceAnswer)
    assert list(answer.probabilities) == names
    assert list(answer.probabilities.values()) == p
    assert answer.choice == max(answer.probabilities, key=answer.probabilities.__getitem__)
    assert answer.confidence == choice_confidence(list(answer.probabilities.values()))


@given(DISTRIBUTIONS.filter(lambda p: len(p) <= 10))
def test_score_is_the_sum_of_what_it_sends(p: list[float]) -> None:
    levels = [{"level": n} for n in range(len(p))]
    answer = to_answer(Score(levels), p)
    assert isinstance(answer, ScoreAnswer)
    assert answer.probabilities == {str(n): value for n, value in enumerate(p)}
    assert answer.score == math.fsum(int(n) * value for n, value in answer.probabilities.items())
    assert answer.legend == {str(n): level for n, level in enumerate(levels)}
    assert answer.confidence == score_confidence(p)
    assert 0 <= answer.score <= len(p) - 1 + 1e-12


def test_documented_answers() -> None:
    choice = to_answer(Choice(["billing", "travel", "music"]), [0.7, 0.2, 0.1])
    assert isinstance(choice, ChoiceAnswer)
    assert (choice.choice, round(choice.confidence, 2)) == ("billing", 0.55)
    score = to_answer(Score(["calm", "annoyed", "furious"]), [0.2, 0.4, 0.4])
    assert isinstance(score, ScoreAnswer)
    assert (round(score.score, 12), round(score.confidence, 12)) == (1.2, 0.1)
    hosted = to_answer(Score(["a", "b", "c"]), [0.0, 0.95, 0.05])
    assert isinstance(hosted, ScoreAnswer)
    assert hosted.score == pytest.approx(1.05, abs=1e-12)


def test_single_alternatives() -> None:
    choice = to_answer(Choice(["only"]), [1.0])
    assert choice == ChoiceAnswer(choice="only", probabilities={"only": 1.0}, confidence=1.0)
    score = to_answer(Score([["only"]]), [1.0])
    assert score == ScoreAnswer(score=0.0, legend={"0": ["only"]}, probabilities={"0": 1.0}, confidence=1.0)


# Reads


@given(st.integers(2, 8), st.integers(2, 32), st.integers(0, 10**6))
def test_standard_error_and_agreement_by_numpy(options: int, reads: int, seed: int) -> None:
    rows = tuple(tuple(distribution(options, seed + read)) for read in range(reads))
    found = Reads(rows)
    average = np.mean(rows, axis=0)
    assert found.probabilities == pytest.approx(average.tolist(), abs=1e-15)
    winner = int(np.argmax(average))
    expected = np.std(np.array(rows)[:, winner], ddof=1) / math.sqrt(reads)
    assert found.standard_error == pytest.approx(float(expected), abs=1e-12)
    assert found.agreement == np.mean(np.argmax(rows, axis=1) == winner)


def test_equal_reads_have_no_error() -> None:
    found = Reads(((0.25, 0.75),) * 4)
    assert (found.standard_error, found.agreement) == (0.0, 1.0)


def test_one_read_has_neither() -> None:
    found = Reads(((0.25, 0.75),))
    assert (found.probabilities, found.standard_error, found.agreement) == ([0.25, 0.75], None, None)


def test_reads_that_disagree() -> None:
    found = Reads(((0.9, 0.1), (0.4, 0.6), (0.8, 0.2)))
    assert found.probabilities == pytest.approx([0.7, 0.3])
    assert found.agreement == pytest.approx(2 / 3)
    assert found.standard_error == pytest.approx(np.std([0.9, 0.4, 0.8], ddof=1) / math.sqrt(3))


# Permutations


@given(st.permutations(range(7)), st.integers(0, 1000))
def test_permutations_are_undone(order: list[int], seed: int) -> None:
    p = distribution(7, seed)
    listed = [p[index] for index in order]  # label i stands for alternative order[i]
    assert to_alternatives(listed, order) == tuple(p)


@given(st.integers(2, 12), st.integers(0, 1000))
def test_averaging_over_all_rotations_removes_a_preference_for_places(count: int, seed: int) -> None:
    places = distribution(count, seed)
    rotations = [[(n + shift) % count for n in range(count)] for shift in range(count)]
    rows = tuple(to_alternatives(places, order) for order in rotations)
    assert Reads(rows).probabilities == pytest.approx([1 / count] * count, abs=1e-12)


def test_order_must_cover_all_labels() -> None:
    with pytest.raises(ValueError, match="zip"):
        to_alternatives([0.5, 0.5], [0, 1, 2])
