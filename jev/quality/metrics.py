"""Figures over arrays of scored answers; what scikit-learn and scipy have is theirs.

All arrays have one entry an answer: `gold` and `winner` [n] labels, `confidence` [n] the winner's
probability, `correct` [n] bool, `weight` [n] >= 0 with a positive sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

BINS = 15
"""Equal-width bins of confidence in [0, 1] for the calibration error."""

FLOOR_REPEATS = 200
"""Simulations behind the noise floor of the calibration error."""

BOOTSTRAP_REPEATS = 1000
"""Resamples behind a confidence interval."""

_CHUNK = 50
"""Resamples held in memory at a time."""

_ZERO: Any = 0
"""What a precision or recall of nothing counts as; scikit-learn's type for it is too narrow."""

Floats: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]


def accuracy(gold: Sequence[Any], winner: Sequence[Any], weight: Floats) -> float:
    """Share of right answers."""
    from sklearn.metrics import accuracy_score  # noqa: PLC0415 - seconds to import

    return float(accuracy_score(gold, winner, sample_weight=weight))


def macro_f1(gold: Sequence[str], winner: Sequence[str], weight: Floats) -> float:
    """Mean F1 of all labels that are reviewed or answered anywhere; a label never right has 0."""
    from sklearn.metrics import f1_score  # noqa: PLC0415 - seconds to import

    return float(f1_score(gold, winner, average="macro", sample_weight=weight, zero_division=_ZERO))


def per_label(
    gold: Sequence[int], winner: Sequence[int], weight: Floats, labels: Sequence[int]
) -> list[tuple[float, float, float, float]]:
    """Precision, recall, F1 and weight of the reviewed answers for each of `labels`, in their order."""
    from sklearn.metrics import precision_recall_fscore_support  # noqa: PLC0415 - seconds to import

    columns: Any = precision_recall_fscore_support(
        gold, winner, labels=labels, sample_weight=weight, zero_division=_ZERO
    )
    return [(float(p), float(r), float(f), float(n)) for p, r, f, n in zip(*columns, strict=True)]


def confusion(gold: Sequence[int], winner: Sequence[int], weight: Floats, labels: Sequence[int]) -> Floats:
    """Weights [labels, labels] of reviewed (rows) against answered (columns)."""
    from sklearn.metrics import confusion_matrix  # noqa: PLC0415 - seconds to import

    return np.asarray(confusion_matrix(gold, winner, labels=labels, sample_weight=weight), dtype=np.float64)


def nll(gold_probability: Floats, weight: Floats, floor: float) -> float:
    """Mean of -log(p of the reviewed answer) in nats, with p at least `floor`.

    scikit-learn's `log_loss`, but each answer may have alternatives of its own.
    """
    return float(np.average(-np.log(np.clip(gold_probability, floor, 1.0)), weights=weight))


def squared_error(probabilities: Sequence[float], gold: int) -> float:
    """Half the squared distance of one distribution from certainty of the reviewed answer, in [0, 1]."""
    return sum((p - (index == gold)) ** 2 for index, p in enumerate(probabilities)) / 2


def brier(squared_errors: Floats, weight: Floats) -> float:
    """Mean `squared_error`: scikit-learn's `brier_score_loss(scale_by_half=True)`."""
    return float(np.average(squared_errors, weights=weight))


@dataclass(frozen=True)
class Bin:
    """Answers whose confidence lies in (low, high]; the first bin has its lower edge too."""

    low: float
    high: float
    count: int
    weight: float
    confidence: float | None
    accuracy: float | None


def reliability(confidence: Floats, correct: Bools, weight: Floats, bins: int = BINS) -> list[Bin]:
    """Mean confidence and accuracy by bin of confidence, as scikit-learn's `calibration_curve` bins them."""
    which = _bin_of(confidence, bins)
    counts = np.bincount(which, minlength=bins)
    weights = np.bincount(which, weights=weight, minlength=bins)
    stated = np.bincount(which, weights=weight * confidence, minlength=bins)
    right = np.bincount(which, weights=weight * correct, minlength=bins)
    edges = np.linspace(0.0, 1.0, bins + 1)
    return [
        Bin(
            low=float(edges[i]),
            high=float(edges[i + 1]),
            count=int(counts[i]),
            weight=float(weights[i]),
            confidence=float(stated[i] / weights[i]) if weights[i] > 0 else None,
            accuracy=float(right[i] / weights[i]) if weights[i] > 0 else None,
        )
        for i in range(bins)
    ]


def ece(confidence: Floats, correct: Bools, weight: Floats, bins: int = BINS) -> float:
    """Expected calibration error: the mean over bins, by weight, of |accuracy - mean confidence|.

    Guo et al. 2017, equation 3, for the winning answer.
    """
    which = _bin_of(confidence, bins)
    gaps = np.bincount(which, weights=weight * (correct - confidence), minlength=bins)
    return float(np.abs(gaps).sum() / weight.sum())


def ece_floor(
    confidence: Floats, weight: Floats, seed: int = 0, repeats: int = FLOOR_REPEATS, bins: int = BINS
) -> float:
    """Mean `ece` of a perfectly calibrated model with these very confidences and as many answers.

    Each repeat draws whether an answer is right with its own confidence. A measured error near this
    floor is what chance alone gives.
    """
    chance = np.random.default_rng(seed)
    draws = (
        ece(confidence, chance.random(len(confidence)) < confidence, weight, bins) for _ in range(repeats)
    )
    return float(np.mean(np.fromiter(draws, dtype=np.float64, count=repeats)))


def risk_coverage(confidence: Floats, correct: Bools, weight: Floats) -> tuple[Floats, Floats]:
    """Coverage and risk when only the most confident answers are kept, from few to all.

    Returns two arrays [n]: the share of weight kept, and the error rate among what is kept. Answers of
    equal confidence count with their mean error, so that no order among them matters.
    """
    order = np.argsort(-confidence, kind="stable")
    level, kept = confidence[order], weight[order]
    wrong = kept * ~correct[order]
    _, group = np.unique(-level, return_inverse=True)
    group_weight = np.bincount(group, weights=kept)
    rate = np.divide(
        np.bincount(group, weights=wrong),
        group_weight,
        out=np.zeros(len(group_weight)),
        where=group_weight > 0,
    )
    total = np.cumsum(kept)
    risk = np.divide(np.cumsum(kept * rate[group]), total, out=np.zeros(len(total)), where=total > 0)
    return total / total[-1], risk


def aurc(confidence: Floats, correct: Bools, weight: Floats) -> float:
    """Area under the risk-coverage curve: the mean risk over all numbers of answers kept.

    Geifman et al. 2019, equation 2. Lower is better; right answers first gives the least.
    """
    coverage, risk = risk_coverage(confidence, correct, weight)
    return float(np.sum(risk * np.diff(coverage, prepend=0.0)))


def mae(gold: Sequence[int], expected: Sequence[float], weight: Floats) -> float:
    """Mean distance in levels of the expected level from the reviewed one."""
    from sklearn.metrics import mean_absolute_error  # noqa: PLC0415 - seconds to import

    return float(mean_absolute_error(gold, expected, sample_weight=weight))


def qwk(gold: Sequence[int], winner: Sequence[int], weight: Floats, levels: int) -> float | None:
    """Cohen's kappa with quadratic weights over `levels` levels; None where it is 0/0."""
    from sklearn.metrics import cohen_kappa_score  # noqa: PLC0415 - seconds to import

    seen = {value for value, w in zip([*gold, *winner], [*weight, *weight], strict=True) if w > 0}
    if levels < 2 or len(seen) < 2:  # one level everywhere: nothing to agree on beyond chance
        return None
    kappa = cohen_kappa_score(
        gold, winner, labels=list(range(levels)), weights="quadratic", sample_weight=weight
    )
    return float(kappa) if np.isfinite(kappa) else None


def mcnemar(first_only: int, second_only: int) -> float:
    """Exact two-sided p of McNemar's test, from how often only the one and only the other was right."""
    from scipy.stats import binomtest  # noqa: PLC0415 - seconds to import

    n = first_only + second_only
    return float(binomtest(min(first_only, second_only), n, 0.5).pvalue) if n else 1.0


def intervals(
    confidence: Floats,
    correct: Bools,
    weight: Floats,
    cluster: NDArray[np.int64],
    *,
    seed: int = 0,
    repeats: int = BOOTSTRAP_REPEATS,
    level: float = 0.95,
) -> dict[str, tuple[float, float]] | None:
    """Percentile bootstrap intervals of accuracy and calibration error.

    Whole rows are resampled, since the questions of one row share its state.

    Args:
        confidence: [n] of the winners.
        correct: [n].
        weight: [n].
        cluster: [n] the row that each answer belongs to, as 0, 1, ...
        seed: of the resampling.
        repeats: resamples.
        level: share of the resamples inside.

    Returns:
        `accuracy` and `ece`, each (low, high); None for fewer than two rows.
    """
    rows = int(cluster.max()) + 1
    if rows < 2:
        return None
    chance = np.random.default_rng(seed)
    which = _bin_of(confidence, BINS)
    # Sums by row once; a resample then is a product with how often it drew each row.
    right = np.bincount(cluster, weights=weight * correct, minlength=rows)
    total = np.bincount(cluster, weights=weight, minlength=rows)
    gaps = np.zeros((rows, BINS))
    np.add.at(gaps, (cluster, which), weight * (correct - confidence))
    found: list[Floats] = []
    for start in range(0, repeats, _CHUNK):
        counts = chance.multinomial(rows, np.full(rows, 1 / rows), size=min(_CHUNK, repeats - start))
        drawn = counts.astype(np.float64)  # a product of integers would not be BLAS's
        mass = drawn @ total
        kept = mass > 0
        found.append(
            np.stack([drawn @ right, np.abs(drawn @ gaps).sum(axis=1)], axis=1)[kept] / mass[kept, None]
        )
    values = np.concatenate(found)
    if not len(values):
        return None
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return {"accuracy": (float(low[0]), float(high[0])), "ece": (float(low[1]), float(high[1]))}


def _bin_of(confidence: Floats, bins: int) -> NDArray[np.int64]:
    """The bin of each confidence; one on an edge belongs below, as in scikit-learn."""
    return np.searchsorted(np.linspace(0.0, 1.0, bins + 1)[1:-1], confidence).astype(np.int64)
