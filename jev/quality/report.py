"""The report as one dictionary, which is the JSON; the terminal and the HTML page show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import combinations
from typing import Any

from jev.quality import figures
from jev.quality.answers import Item, Scored, items_of, scored
from jev.quality.compare import Flip, compare
from jev.quality.data import LabelledRow
from jev.quality.replies import Failure, Judgement
from jev.quality.run import BackendRun
from jev.schemas import Score, render_text

EXCERPT = 600
"""Most characters of a state in a report."""

MOST_MISTAKES = 500
"""Most wrong answers of a backend that a report lists, the most confident first."""


def build_report(
    rows: Sequence[LabelledRow],
    runs: Sequence[BackendRun],
    *,
    source: str,
    options: Mapping[str, Any] | None = None,
    slice_by: str | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Compute every figure.

    Args:
        rows: what was asked.
        runs: what each backend said.
        source: what the report calls the rows, such as their file's path.
        options: request fields of the run.
        slice_by: a key of the rows' metadata to give figures by.
        seed: of simulations and resampling.

    Returns:
        JSON-ready: `data`, `options`, `nll_floor`, `backends` (figures, by type, by question, curves,
        costs, failures, mistakes, stability) and `comparisons` of all pairs with every flip. A figure that
        could not be computed is None. `gates` is empty; see `gates.hold`.
    """
    items = items_of(rows)
    floor = figures.ROUNDED_FLOOR if any(run.rounded for run in runs) else figures.EXACT_FLOOR
    by = None if slice_by is None else [(row.row.metadata or {}).get(slice_by) for row in rows]
    return {
        "jev": version("jev-server"),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "data": {
            "source": source,
            "rows": len(rows),
            "questions": len(items),
            "reviewed": sum(item.gold is not None for item in items),
        },
        "options": dict(options or {}),
        "seed": seed,
        "bins": figures.metrics.BINS,
        "nll_floor": floor,
        "slice_by": slice_by,
        "backends": [_backend(rows, items, run, floor, by, seed) for run in runs],
        "comparisons": [_comparison(rows, items, first, second) for first, second in combinations(runs, 2)],
        "gates": [],
    }


def excerpts(rows: Sequence[LabelledRow], numbers: set[int]) -> dict[int, dict[str, Any]]:
    """The beginning of the state and the attachments of the rows with these numbers."""
    return {
        row.number: {"state": _cut(render_text(row.row.state)), "attachments": row.row.attachments}
        for row in rows
        if row.number in numbers
    }


def _backend(
    rows: Sequence[LabelledRow],
    items: Sequence[Item],
    run: BackendRun,
    floor: float,
    slices: Sequence[object] | None,
    seed: int,
) -> dict[str, Any]:
    answers = scored(items, run.replies)
    questions = figures.by_question(answers, floor, seed=seed)
    return {
        "name": run.name,
        "model": run.model,
        "rounded": run.rounded,
        "figures": figures.figures(answers, floor, seed=seed),
        "types": figures.by_type(answers, floor, seed=seed),
        "questions": questions,
        "questions_left_out": len({item.task for item in answers.items}) - len(questions),
        "slices": None if slices is None else figures.by_slice(answers, slices, floor, seed=seed),
        "curves": figures.curves(answers),
        "costs": figures.costs(run.replies, run.seconds),
        "failures": [
            {"row": row.number, "id": row.row.id, "reason": reply.reason}
            for row, reply in zip(rows, run.replies, strict=True)
            if isinstance(reply, Failure)
        ],
        "mistakes": _mistakes(rows, answers),
        "stability": run.stability,
    }


def _mistakes(rows: Sequence[LabelledRow], answers: Scored) -> list[dict[str, Any]]:
    return [
        {**_about(rows, item), "answer": _told(item, answers.answers[index])}
        for item, index in figures.mistakes(answers, MOST_MISTAKES)
    ]


def _comparison(
    rows: Sequence[LabelledRow], items: Sequence[Item], first: BackendRun, second: BackendRun
) -> dict[str, Any]:
    summary, flips = compare(items, first.replies, second.replies)
    return {
        "first": first.name,
        "second": second.name,
        **summary,
        "flip_list": [_flip(rows, flip) for flip in flips],
    }


def _flip(rows: Sequence[LabelledRow], flip: Flip) -> dict[str, Any]:
    return {
        **_about(rows, flip.item),
        "dp": flip.distance,
        "first": _told(flip.item, flip.first),
        "second": _told(flip.item, flip.second),
    }


def _about(rows: Sequence[LabelledRow], item: Item) -> dict[str, Any]:
    instructions = item.question.instructions
    return {
        "row": item.number,
        "id": rows[item.row].row.id,
        "question": item.name,
        "type": item.kind,
        "instructions": None if instructions is None else _cut(render_text(instructions)),
        "alternatives": list(item.names),
        "levels": [_cut(render_text(level)) for level in item.question.criteria]
        if isinstance(item.question, Score)
        else None,
        "reviewed": None if item.gold is None else item.names[item.gold],
    }


def _told(item: Item, answer: Judgement) -> dict[str, Any]:
    return {"winner": item.names[answer.winner], "probabilities": list(answer.probabilities)}


def _cut(text: str) -> str:
    return text if len(text) <= EXCERPT else f"{text[:EXCERPT]}…"
