"""Before and after: the held-out rows answered as a server would, and the quality harness's own figures."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jev.engine import Engine
from jev.quality import figures
from jev.quality.answers import items_of, scored
from jev.quality.replies import Failure, Reply, reply_of
from jev.schemas import SystemOneRequest
from jev.tune.gather import Laid

SHOWN = ("n", "accuracy", "macro_f1", "nll", "brier", "ece", "ece_floor", "confidence", "mae", "qwk")
"""Figures that a report keeps."""

TOGETHER = 32
"""Requests that are answered together, always the same ones: equal weights then give equal figures."""


def measure(
    engine: Engine,
    laid: Sequence[Laid],
    options: Mapping[str, Any],
    *,
    adapter: str | None = None,
    done: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any] | None:
    """Ask an engine every row that has a reviewed answer.

    Args:
        engine: who answers; its calibrations are not used.
        laid: the rows, with their attachments read.
        options: request fields, such as `instructions`.
        adapter: name of the engine's adapter that answers; None = the model without one.
        done: told how many of how many rows are answered.

    Returns:
        Figures over all answers and, under `questions`, by question; None if no row has a reviewed answer.
    """
    laid = [one for one in laid if one.row.gold]
    replies: list[Reply | Failure] = []
    for start in range(0, len(laid), TOGETHER):
        replies += _answers(engine, laid[start : start + TOGETHER], options, adapter)
        done(len(replies), len(laid))
    answers = scored(items_of([one.row for one in laid]), replies)
    if not len(answers):
        return None
    found = _kept(figures.figures(answers, figures.EXACT_FLOOR))
    found["failed"] = sum(isinstance(reply, Failure) for reply in replies)
    found["questions"] = [
        {"question": one["question"], "type": one["type"], **_kept(one)}
        for one in figures.by_question(answers, figures.EXACT_FLOOR)
    ]
    return found


def _answers(
    engine: Engine, laid: Sequence[Laid], options: Mapping[str, Any], adapter: str | None
) -> list[Reply | Failure]:
    started = time.perf_counter()
    plans = []
    for one in laid:
        asked = {name: one.row.questions[name] for name in one.row.gold}
        body = {**options, "state": one.row.row.state, "questions": asked}
        request = SystemOneRequest.model_validate(body)
        plans.append(engine.prepare(request, one.example.material, adapter=adapter))
    outcomes = engine.run_many(plans, fresh=True)
    seconds = (time.perf_counter() - started) / len(laid)
    return [
        Failure(str(outcome))
        if isinstance(outcome, Exception)
        else reply_of(plan.request.questions, outcome, seconds)
        for plan, outcome in zip(plans, outcomes, strict=True)
    ]


def _kept(found: Mapping[str, Any]) -> dict[str, Any]:
    return {name: found[name] for name in SHOWN}
