"""Gates: least or most values of figures, for a pipeline that must stop when a model got worse."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from jev.errors import JevError
from jev.quality.figures import TYPES

OWN = ("accuracy", "macro_f1", "nll", "brier", "ece", "aurc", "mae", "qwk")
"""Figures of a backend; with a question type in front, such as `choice.accuracy`, of that type only."""

COSTS = ("failed", "latency_p50", "latency_p90", "latency_p99")
"""Share of requests without an answer, and seconds."""

PAIRS = ("agreement", "mean_dp", "max_dp", "mcnemar_p")
"""Figures of two backends."""

STABILITY = ("order_flips", "seed_flips", "paraphrase_flips", "rename_flips", "isolation_flips")
"""Share of answers that a stability probe flipped."""

_PROBES = {
    "order_flips": "option order",
    "seed_flips": "seed",
    "paraphrase_flips": "paraphrase",
    "rename_flips": "id rename",
    "isolation_flips": "isolation",
}


class GateError(JevError, ValueError):
    """A gate that cannot be read, or that this run has no figure for."""


@dataclass(frozen=True)
class Gate:
    """A bound on a figure.

    Attributes:
        figure: its name, see `OWN`, `COSTS`, `PAIRS` and `STABILITY`.
        bound: the value.
        under: whether it fails below the bound, or else above it.
    """

    figure: str
    bound: float
    under: bool

    @classmethod
    def parse(cls, text: str, *, under: bool) -> Gate:
        """Read `FIGURE=VALUE`.

        Raises:
            GateError: one sentence that names the gate and what there is.
        """
        option = "--fail-under" if under else "--fail-over"
        figure, equals, value = text.partition("=")
        figure = figure.strip()
        try:
            bound = float(value)
        except ValueError:
            bound = math.nan
        if not equals or not math.isfinite(bound):
            raise GateError(f"{option} {text!r}: write FIGURE=NUMBER, such as accuracy=0.8")
        kind, dot, name = figure.partition(".")
        known = figure in (*OWN, *COSTS, *PAIRS, *STABILITY) or (dot and kind in TYPES and name in OWN)
        if not known:
            listed = ", ".join((*OWN, *COSTS, *PAIRS, *STABILITY))
            raise GateError(
                f"{option} {text!r}: there is no figure {figure!r}; there are {listed}, and "
                f"{', '.join(TYPES)} with a point before the first {len(OWN)}"
            )
        return cls(figure, bound, under)

    def fails(self, value: float | None) -> bool:
        """Whether a value is out of bounds; a figure that could not be computed always is."""
        if value is None or math.isnan(value):
            return True
        return value < self.bound if self.under else value > self.bound


@dataclass(frozen=True)
class GateResult:
    """A gate held against one backend, or one pair."""

    figure: str
    bound: float
    under: bool
    whose: str
    value: float | None
    failed: bool

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def __str__(self) -> str:
        value = "not measured" if self.value is None else f"{self.value:.4g}"
        limit = f"{'at least' if self.under else 'at most'} {self.bound:g}"
        return f"{self.figure} {value}, must be {limit} ({self.whose})"


def check_gates(gates: Sequence[Gate], *, backends: int, stability: bool) -> None:
    """Refuse gates whose figure this run will not have, before it starts.

    Raises:
        GateError: naming the gate.
    """
    for gate in gates:
        if gate.figure in PAIRS and backends < 2:
            raise GateError(f"the gate {gate.figure!r} compares backends; give --backend twice or more")
        if gate.figure in STABILITY and not stability:
            raise GateError(f"the gate {gate.figure!r} needs --stability N")


def hold(gates: Sequence[Gate], report: Mapping[str, Any]) -> list[GateResult]:
    """Hold gates against a report: figures of a backend against each one, of a pair against each pair."""
    results: list[GateResult] = []
    for gate in gates:
        if gate.figure in PAIRS:
            values = [
                (f"{pair['first']} and {pair['second']}", pair[gate.figure]) for pair in report["comparisons"]
            ]
        else:
            values = [(entry["name"], _value(gate.figure, entry)) for entry in report["backends"]]
        results.extend(
            GateResult(gate.figure, gate.bound, gate.under, whose, value, gate.fails(value))
            for whose, value in values
        )
    return results


def _value(figure: str, entry: Mapping[str, Any]) -> float | None:
    costs = entry["costs"]
    if figure == "failed":
        return costs["failed"] / costs["requests"] if costs["requests"] else None
    if figure in COSTS:
        return costs["latency"][figure.removeprefix("latency_")] if costs["latency"] else None
    if figure in STABILITY:
        return entry["stability"][_PROBES[figure]]["flip_rate"]
    kind, dot, name = figure.partition(".")
    if dot:
        return entry["types"].get(kind, {}).get(name)
    return entry["figures"][figure]
