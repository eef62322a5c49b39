"""Labelled rows and a backend -> for each question, by signature, what was answered and what is right."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from jev.backends import Backend
from jev.calibration.file import CalibrationError
from jev.calibration.fit import Answers
from jev.calibration.identity import Identity
from jev.calibration.signature import signatures
from jev.quality.cache import ReplyCache
from jev.quality.collect import Collector
from jev.quality.data import LabelledRow
from jev.quality.replies import Failure
from jev.schemas import Noul, Question, SystemOneRequest, render_text


@dataclass
class Answered:
    """One question, as its signature tells it from others, with all its labelled answers.

    Attributes:
        signature: see `jev.calibration.signature`.
        question: the question.
        ids: the ids it has in the data.
    """

    signature: str
    question: Question
    ids: list[str] = field(default_factory=list)
    _rows: list[tuple[tuple[float, ...], int, float, str]] = field(default_factory=list)

    def add(self, name: str, probabilities: tuple[float, ...], gold: int, weight: float, state: str) -> None:
        """Add one labelled answer."""
        if name not in self.ids:
            self.ids.append(name)
        self._rows.append((probabilities, gold, weight, state))

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def answers(self) -> Answers:
        """The answers as arrays, in the order of the rows."""
        probabilities, gold, weights, states = zip(*self._rows, strict=True)
        return Answers(
            np.array(probabilities, dtype=np.float64),
            np.array(gold, dtype=np.int64),
            np.array(weights, dtype=np.float64),
            np.array(states),
        )


@dataclass(frozen=True)
class Gathered:
    """What came of the rows.

    Attributes:
        questions: those with labelled answers, in the order they were first met.
        failures: line and reason of every row that was not answered.
    """

    questions: list[Answered]
    failures: list[tuple[int, str]]


def useful(rows: Sequence[LabelledRow]) -> list[LabelledRow]:
    """The rows that have a reviewed answer and count for something.

    Raises:
        CalibrationError: there are none.
    """
    found = [row for row in rows if row.gold and row.weight > 0]
    if not found:
        raise CalibrationError("no row has a reviewed answer (answers)")
    return found


async def gather(
    rows: Sequence[LabelledRow],
    backend: Backend,
    options: Mapping[str, Any],
    *,
    cache: ReplyCache | None = None,
    done: Callable[[], None] | None = None,
) -> Gathered:
    """Ask the labelled questions of every row, without calibration.

    Args:
        rows: as `useful` gives them.
        backend: who is asked.
        options: request fields, such as `layout` and `instructions`.
        cache: where replies are kept.
        done: called after each row.

    Raises:
        DataError: a request cannot be made.
        ConnectionError: the backend cannot be reached.
        APIError: the backend refuses the key or the model.
    """
    known: list[tuple[str, dict[str, str]]] = [("", {})] * len(rows)

    def make(index: int) -> SystemOneRequest:
        request = request_of(rows[index], options)
        known[index] = (_state_key(request), signatures(request))
        return request

    makers = [lambda index=index: make(index) for index in range(len(rows))]
    outcomes = await Collector(backend, cache).ask(makers, done)
    found: dict[str, Answered] = {}
    failures = []
    for row, outcome, (state, signs) in zip(rows, outcomes, known, strict=True):
        if isinstance(outcome, Failure):
            failures.append((row.number, outcome.reason))
            continue
        for name, gold in row.gold.items():
            if name not in signs:  # a single alternative
                continue
            one = found.setdefault(signs[name], Answered(signs[name], row.questions[name]))
            one.add(name, outcome.answers[name].probabilities, gold, row.weight, state)
    return Gathered(list(found.values()), failures)


def request_of(row: LabelledRow, options: Mapping[str, Any]) -> SystemOneRequest:
    """The request for a row: its labelled questions, or all where they share a canvas."""
    if options.get("layout") == "joint":
        return row.request(None, options)
    return row.request({name: row.questions[name] for name in row.gold}, options)


async def identity_of(backend: Backend) -> Identity:
    """Who answers, as the diagnostics of one answer say it. It is asked of no row, for a row may be refused.

    Raises:
        CalibrationError: they do not say it.
        ConnectionError: the backend cannot be reached.
        APIError: it answers nothing.
    """
    asked = SystemOneRequest(state="-", questions={"-": Noul(instructions="-")}, diagnostics=True)
    response = await backend.decide(asked)
    about = (response.x_diagnostics or {}).get("model")
    if isinstance(about, dict):
        digests = cast("dict[str, object]", about)
        weights, prompt = digests.get("weights"), digests.get("prompt")
        if isinstance(weights, str) and isinstance(prompt, str) and weights and prompt:
            precision = digests.get("precision")
            return Identity(response.model, weights, prompt, precision if isinstance(precision, str) else "")
    raise CalibrationError(
        f"backend {backend.name!r} does not say which weights and prompts answer, so nothing could tell "
        "later whether a calibration belongs to it; use torch, or a jev server"
    )


def _state_key(request: SystemOneRequest) -> str:
    digest = hashlib.sha256(render_text(request.state).encode())
    for file in request.files:
        digest.update(b"\0" + file.model_dump_json().encode())
    return digest.hexdigest()
