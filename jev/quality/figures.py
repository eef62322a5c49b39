"""The figures of one backend: over everything, by question type, by question, by label."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from jev.quality import metrics
from jev.quality.answers import Item, Scored
from jev.quality.replies import Failure, Reply

EXACT_FLOOR = 1e-15
"""Least probability in the log loss of backends that do not round."""

ROUNDED_FLOOR = 1e-4
"""The same, for all backends, when one of them rounds to two decimals: it says 0 for less than 0.005."""

TYPES = ("noul", "choice", "score")
MOST_QUESTIONS = 50
"""Most questions that a report tells one by one."""

CURVE_POINTS = 200
"""Most points of a risk-coverage curve in a report."""


def figures(answers: Scored, floor: float, *, seed: int = 0) -> dict[str, Any]:
    """Accuracy, macro-F1, log loss, Brier score, calibration error with floor, AURC, MAE and QWK.

    Args:
        answers: what is measured.
        floor: least probability in the log loss.
        seed: of the simulations.

    Returns:
        `n` (answers), `weight`, and the figures; a figure that cannot be computed is None: all of
        them without any weight, MAE and QWK without scores.
    """
    weight = answers.weight
    found: dict[str, Any] = {"n": len(answers), "weight": float(weight.sum())}
    names = ("accuracy", "macro_f1", "nll", "brier", "ece", "ece_floor", "aurc", "confidence", "mae", "qwk")
    if found["weight"] <= 0:
        return {**found, **dict.fromkeys(names), "intervals": None}
    gold = [item.label(item.gold) for item in answers.items if item.gold is not None]
    winner = [item.label(answer.winner) for item, answer in zip(answers.items, answers.answers, strict=True)]
    confidence, correct = answers.confidence, answers.correct
    intervals = metrics.intervals(confidence, correct, weight, answers.cluster, seed=seed)
    return {
        **found,
        "accuracy": metrics.accuracy(gold, winner, weight),
        "macro_f1": metrics.macro_f1(gold, winner, weight),
        "nll": metrics.nll(answers.gold_probability, weight, floor),
        "brier": metrics.brier(answers.squared_error, weight),
        "ece": metrics.ece(confidence, correct, weight),
        "ece_floor": metrics.ece_floor(confidence, weight, seed),
        "aurc": metrics.aurc(confidence, correct, weight),
        "confidence": float(np.average(confidence, weights=weight)),
        **_score_figures(answers.where(item.kind == "score" for item in answers.items)),
        "intervals": intervals and {name: list(bounds) for name, bounds in intervals.items()},
    }


def _score_figures(scores: Scored) -> dict[str, float | None]:
    if not len(scores) or scores.weight.sum() <= 0:
        return {"mae": None, "qwk": None}
    levels = max(len(item.names) for item in scores.items)
    return {
        "mae": metrics.mae(scores.gold, scores.expected, scores.weight),
        "qwk": metrics.qwk(scores.gold, scores.winner, scores.weight, levels),
    }


def by_type(answers: Scored, floor: float, *, seed: int = 0) -> dict[str, dict[str, Any]]:
    """Figures of each question type that has answers."""
    parts = {kind: answers.where(item.kind == kind for item in answers.items) for kind in TYPES}
    return {kind: figures(part, floor, seed=seed) for kind, part in parts.items() if len(part)}


def by_question(answers: Scored, floor: float, *, seed: int = 0) -> list[dict[str, Any]]:
    """Figures of each question (the same id and type), with its labels and confusions.

    The `MOST_QUESTIONS` with the most answers are told; ids that only few rows have are in the figures
    of their type.
    """
    tasks: dict[tuple[str, str], list[int]] = defaultdict(list)
    for index, item in enumerate(answers.items):
        tasks[item.task].append(index)
    largest = sorted(tasks.items(), key=lambda task: -len(task[1]))[:MOST_QUESTIONS]
    found: list[dict[str, Any]] = []
    for (name, kind), indices in largest:
        part = Scored(tuple(answers.items[i] for i in indices), tuple(answers.answers[i] for i in indices))
        entry: dict[str, Any] = {"question": name, "type": kind, **figures(part, floor, seed=seed)}
        if entry["weight"] > 0:
            entry.update(_labels(part))
        found.append(entry)
    return found


def _labels(part: Scored) -> dict[str, Any]:
    """Each label's figures, over all names that any of the answers had as an alternative."""
    longest = max((item.names for item in part.items), key=len)
    names = list(dict.fromkeys([*longest, *(name for item in part.items for name in item.names)]))
    place = {name: index for index, name in enumerate(names)}
    gold = [place[item.names[index]] for item, index in zip(part.items, part.gold, strict=True)]
    winner = [place[item.names[index]] for item, index in zip(part.items, part.winner, strict=True)]
    mass, stated = np.zeros(len(names)), np.zeros(len(names))
    for item, answer in zip(part.items, part.answers, strict=True):
        for name, probability in zip(item.names, answer.probabilities, strict=True):
            mass[place[name]] += item.weight
            stated[place[name]] += item.weight * probability
    rows = metrics.per_label(gold, winner, part.weight, range(len(names)))
    return {
        "labels": [
            {
                "label": name,
                "support": support,
                "precision": precision,
                "recall": recall,
                "f1": f1,
                "mean_probability": float(stated[i] / mass[i]) if mass[i] > 0 else None,
            }
            for i, (name, (precision, recall, f1, support)) in enumerate(zip(names, rows, strict=True))
        ],
        "confusion": metrics.confusion(gold, winner, part.weight, range(len(names))).tolist(),
    }


def by_slice(answers: Scored, values: Sequence[object], floor: float, *, seed: int = 0) -> dict[str, Any]:
    """Figures by a value of each row's metadata; `values` has one for each row, None = not in any slice."""
    found: dict[str, Scored] = {}
    for value in sorted({str(value) for value in values if value is not None}):
        found[value] = answers.where(
            values[item.row] is not None and str(values[item.row]) == value for item in answers.items
        )
    return {value: figures(part, floor, seed=seed) for value, part in found.items() if len(part)}


def curves(answers: Scored) -> dict[str, Any] | None:
    """The reliability diagram's bins and the risk-coverage curve; None without any weight."""
    if answers.weight.sum() <= 0:
        return None
    bins = metrics.reliability(answers.confidence, answers.correct, answers.weight)
    coverage, risk = metrics.risk_coverage(answers.confidence, answers.correct, answers.weight)
    few = np.unique(np.linspace(0, len(coverage) - 1, min(CURVE_POINTS, len(coverage))).round().astype(int))
    return {
        "reliability": [dataclasses.asdict(one) for one in bins],
        "risk_coverage": [[float(coverage[i]), float(risk[i])] for i in few],
    }


def costs(replies: Sequence[Reply | Failure], seconds: float) -> dict[str, Any]:
    """Latency in seconds and tokens of the requests that were answered.

    Args:
        replies: of every row.
        seconds: that the whole took, by the clock.
    """
    answered = [reply for reply in replies if isinstance(reply, Reply)]
    cached = sum(reply.cached for reply in answered)
    found: dict[str, Any] = {
        "requests": len(replies),
        "answered": len(answered),
        "failed": len(replies) - len(answered),
        "cached": cached,
        "input_tokens": sum(reply.input_tokens for reply in answered),
        "output_tokens": sum(reply.output_tokens for reply in answered),
        "wall_seconds": seconds,
        "latency": None,
    }
    if answered:
        times = np.array([reply.seconds for reply in answered])
        p50, p90, p99 = map(float, np.percentile(times, [50, 90, 99]))
        found["latency"] = {
            "mean": float(times.mean()),
            "p50": p50,
            "p90": p90,
            "p99": p99,
            "max": float(times.max()),
        }
    return found


def mistakes(answers: Scored, most: int) -> list[tuple[Item, int]]:
    """Wrong answers, most confident first, as items with the index of their answer in `answers`."""
    wrong = np.flatnonzero(~answers.correct)
    order = wrong[np.argsort(-answers.confidence[wrong], kind="stable")][:most]
    return [(answers.items[i], int(i)) for i in order]
