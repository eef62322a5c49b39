"""Labelled answers -> a calibration: which questions get what, and why the others get nothing."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from jev.calibration.file import Calibration, CalibrationError, Entry
from jev.calibration.fit import Fit, cross_validate
from jev.calibration.gather import Answered
from jev.calibration.identity import Identity
from jev.schemas import alternatives

MIN_ROWS = 50
"""Rows of a question below which a fit says more about chance than about the model."""

PROVISIONAL = 200
"""Rows below which a fit is called provisional."""


@dataclass(frozen=True)
class Rules:
    """How to fit.

    Attributes:
        bias: fit biases by label too.
        pool: "type" = a question with too few rows gets the temperature of all questions of its type.
        folds: of the cross-validation.
        min_rows: least rows of a question, or of a pool; with `bias` of each label too.
    """

    bias: bool = False
    pool: Literal["type"] | None = None
    folds: int = 10
    min_rows: int = MIN_ROWS


@dataclass(frozen=True)
class Skipped:
    """A question that is not calibrated, and why."""

    ids: tuple[str, ...]
    type: str
    rows: int
    reason: str


def build(
    questions: Sequence[Answered],
    identity: Identity,
    rules: Rules,
    *,
    name: str,
    backend: str = "",
    options: Mapping[str, Any] | None = None,
) -> tuple[Calibration, list[Skipped]]:
    """Fit every question that has rows enough.

    Raises:
        CalibrationError: none has.
    """
    entries: list[Entry] = []
    skipped: list[Skipped] = []
    pools = _Pools(questions, rules)
    for one in questions:
        result = _fitted(one, pools, rules)
        if isinstance(result, Entry):
            entries.append(result)
        else:
            skipped.append(Skipped(tuple(one.ids), one.question.type, len(one), result))
    if not entries:
        reasons = "; ".join(f"{' / '.join(one.ids)}: {one.reason}" for one in skipped[:5])
        more = f"; and {len(skipped) - 5} more" if len(skipped) > 5 else ""
        raise CalibrationError(f"no question can be calibrated: {reasons}{more}")
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    calibration = Calibration(
        name=name,
        created=now,
        model=identity.model,
        weights=identity.weights,
        prompt=identity.prompt,
        precision=identity.precision,
        backend=backend,
        options=dict(options or {}),
        questions=tuple(entries),
    )
    return calibration, skipped


class _Pools:
    """One temperature for all questions of a type, fitted when it is first wanted."""

    def __init__(self, questions: Sequence[Answered], rules: Rules) -> None:
        self._questions = questions
        self._rules = rules
        self._fits: dict[str, dict[str, Fit]] = {}

    def rows(self, kind: str) -> int:
        """Labelled rows of all questions of a type."""
        return sum(len(one) for one in self._questions if one.question.type == kind)

    def fit(self, one: Answered) -> Fit:
        """The pool's fit, with the figures of one question's own rows."""
        kind = one.question.type
        if kind not in self._fits:
            pool = [other for other in self._questions if other.question.type == kind]
            fits = cross_validate([other.answers for other in pool], folds=self._rules.folds)
            signs = [other.signature for other in pool]
            self._fits[kind] = dict(zip(signs, fits, strict=True))
        return self._fits[kind][one.signature]


def _fitted(one: Answered, pools: _Pools, rules: Rules) -> Entry | str:
    """The entry of a question, or why there is none."""
    rows, kind, answers = len(one), one.question.type, one.answers
    names = alternatives(one.question)
    pooled = rows < rules.min_rows
    notes: list[str] = []
    try:
        if not pooled:
            bias = rules.bias
            counts = np.bincount(answers.gold, minlength=len(names))
            least = int(counts.argmin())
            if bias and counts[least] < rules.min_rows:
                bias = False
                notes.append(
                    f"no bias: label {names[least]!r} has {counts[least]} rows, {rules.min_rows} are needed"
                )
            fit = cross_validate([answers], bias=bias, folds=rules.folds)[0]
        elif rules.pool is None:
            return f"{rows} labelled rows, {rules.min_rows} are needed"
        elif (total := pools.rows(kind)) < rules.min_rows:
            return f"{total} labelled rows of all {kind} questions, {rules.min_rows} are needed"
        else:
            fit = pools.fit(one)
            notes.append(f"the temperature is that of all {total} rows of {kind} questions")
    except ValueError as error:
        return str(error)
    states = len(np.unique(answers.states))
    return Entry(
        signature=one.signature,
        ids=tuple(one.ids),
        type=kind,
        labels=names,
        method=fit.method,
        temperature=fit.parameters.temperature,
        bias=fit.parameters.bias,
        pooled=pooled,
        rows=rows,
        states=states,
        before=fit.before,
        after=fit.after,
        notes=(*notes, *_notes(fit, rows, states)),
    )


def _notes(fit: Fit, rows: int, states: int) -> list[str]:
    notes = []
    if fit.method == "none":
        notes.append("cross-validation found nothing that helps; the probabilities stay as they are")
    elif fit.gain <= fit.gain_error:
        notes.append("on this question's own rows the gain is within its standard error")
    if fit.at_bound:
        notes.append("the temperature is at its bound: these rows do not determine it")
    if rows < PROVISIONAL:
        notes.append(f"provisional: fewer than {PROVISIONAL} rows")
    if states < rows:
        notes.append(f"{states} different states")
    return notes
