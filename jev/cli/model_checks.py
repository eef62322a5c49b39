"""Checks of the model: its folder, whether it fits, its labels, and a decision."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jev.cli.checks import Check
from jev.cli.console import number, size
from jev.cli.model_facts import ModelFacts, facts_of
from jev.cli.options import load_model, model_folder
from jev.errors import JevError
from jev.machine import resident_bytes
from jev.model.errors import CheckpointError
from jev.schemas import MAX_OPTIONS, Answer, NoulAnswer, SystemOneRequest
from jev.settings import Settings

if TYPE_CHECKING:
    from jev.engine import Engine

_REQUEST = {
    "state": "My card was charged twice. Please refund the second payment.",
    "questions": {"refund": {"type": "noul", "instructions": "Does the customer ask for money back?"}},
    "samples": 1,
}


def model_checks(settings: Settings) -> Iterator[Check]:
    """Load the model that the settings name and ask it something; stops at the first failure."""
    try:
        facts = facts_of(model_folder(settings))
        yield _size(facts, settings)
        before, started = resident_bytes(), time.perf_counter()
        engine = load_model(settings)
        took, grown = time.perf_counter() - started, resident_bytes() - before
        yield Check(
            "model", "ok", f"{engine.name} loaded in {took:.1f} s, {size(max(0, grown))} more memory used"
        )
        yield _labels(facts)
        yield _decision(engine)
    except (JevError, CheckpointError) as error:
        yield Check("model", "fail", str(error))
    except ImportError as error:
        yield Check("model", "fail", f"cannot be loaded: {error}", "pip install 'jev-server[server]'")
    except (ArithmeticError, RuntimeError, MemoryError) as error:
        yield Check("decision", "fail", str(error) or type(error).__name__)


def _size(facts: ModelFacts, settings: Settings) -> Check:
    """Compare what the model needs with what there is, rather than be killed while loading it."""
    from jev.planner import Machine, gigabytes, settle  # noqa: PLC0415 - it loads torch

    choice = settle(settings, Machine.here(settings.device))
    detail = (
        f"{facts.name}: {number(facts.parameters)} parameters, {facts.layers} layers, "
        f"{gigabytes(choice.weights.total)} {'as stored' if choice.stored else f'as {choice.dtype}'}"
    )
    if choice.verdict != "tight":
        return Check("checkpoint", "ok", detail)
    free = gigabytes(choice.free or 0)
    detail = f"{detail}; the longest prompt and full caches need {gigabytes(choice.needed)}, {free} are free"
    return Check("checkpoint", "warn", detail, "lower max_context or cache_bytes")


def _labels(facts: ModelFacts) -> Check:
    counts = ", ".join(f"{kind} {count}" for kind, count in facts.labels.items())
    if facts.labels["choice"] < MAX_OPTIONS:
        return Check("labels", "warn", f"{counts}: a choice with more options is refused")
    return Check("labels", "ok", f"{counts}, all single tokens")


def _decision(engine: Engine) -> Check:
    request = SystemOneRequest.model_validate(_REQUEST)
    seconds: list[float] = []
    answers: list[Answer] = []
    for _ in range(2):
        started = time.perf_counter()
        answers.append(engine.decide(request).answers["refund"])
        seconds.append(time.perf_counter() - started)
    answer = answers[-1]
    assert isinstance(answer, NoulAnswer)
    if not (math.isfinite(answer.noul) and 0 <= answer.noul <= 1):
        return Check("decision", "fail", f"{answer.noul} is not a probability")
    first, second = (f"{value * 1000:.0f} ms" for value in seconds)
    return Check("decision", "ok", f"P(yes) {answer.noul:.3f} in {first}, in {second} with the prefix cached")
