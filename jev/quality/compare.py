"""Two backends against each other: agreement, every flip, distances, McNemar's test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jev.quality import metrics
from jev.quality.answers import Item, answer_to
from jev.quality.replies import Judgement


@dataclass(frozen=True)
class Flip:
    """An item that two backends answer differently."""

    item: Item
    first: Judgement
    second: Judgement

    @property
    def distance(self) -> float:
        """See `distance`."""
        return distance(self.first.probabilities, self.second.probabilities)


def distance(first: Sequence[float], second: Sequence[float]) -> float:
    """Largest difference of a probability over the alternatives; for a noul that of P(yes)."""
    return max(abs(a - b) for a, b in zip(first, second, strict=True))


def compare(
    items: Sequence[Item], first: Sequence[object], second: Sequence[object]
) -> tuple[dict[str, Any], list[Flip]]:
    """Compare two backends on the items that both answered, reviewed or not; weight 0 is out.

    Args:
        items: see `items_of`.
        first: the one backend's outcome for each row.
        second: the other's.

    Returns:
        `n`, `agreement` (by weight), `flips`, `mean_dp` and `max_dp` (see `distance`), the 2x2 counts of
        who was right on reviewed items, and McNemar's exact `mcnemar_p`; and the flips, largest
        distance first.
    """
    pairs = [
        (item, one, other)
        for item in items
        if item.weight > 0
        and (one := answer_to(item, first)) is not None
        and (other := answer_to(item, second)) is not None
    ]
    flips = [Flip(*pair) for pair in pairs if pair[1].winner != pair[2].winner]
    weights = np.array([item.weight for item, _, _ in pairs], dtype=np.float64)
    distances = np.array([distance(a.probabilities, b.probabilities) for _, a, b in pairs], dtype=np.float64)
    right = [(a.winner == item.gold, b.winner == item.gold) for item, a, b in pairs if item.gold is not None]
    first_only, second_only = right.count((True, False)), right.count((False, True))
    known = bool(pairs) and weights.sum() > 0
    summary: dict[str, Any] = {
        "n": len(pairs),
        "agreement": metrics.accuracy(
            [item.label(a.winner) for item, a, _ in pairs],
            [item.label(b.winner) for item, _, b in pairs],
            weights,
        )
        if known
        else None,
        "flips": len(flips),
        "mean_dp": float(np.average(distances, weights=weights)) if known else None,
        "max_dp": float(distances.max()) if pairs else None,
        "both_right": right.count((True, True)),
        "first_only_right": first_only,
        "second_only_right": second_only,
        "both_wrong": right.count((False, False)),
        "mcnemar_p": metrics.mcnemar(first_only, second_only) if right else None,
    }
    return summary, sorted(flips, key=lambda flip: -flip.distance)
