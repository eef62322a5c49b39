"""Labelled rows for tuning: all bad ones found before anything is trained, the rest split by state."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jev.quality.data import BadRow, DataError, LabelledRow, each_row
from jev.schemas import Choice, Question, alternatives, render_text

MOST_OTHERS = 3
"""Most rows that the reason of a conflict names."""


@dataclass(frozen=True)
class Bad:
    """What is not learned from, and why.

    Attributes:
        file: it stands in.
        row: its line, from 1.
        reason: in words.
    """

    file: str
    row: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file}: row {self.row}: {self.reason}"


@dataclass(frozen=True)
class Rows:
    """A file of rows.

    Attributes:
        file: where they are from.
        good: rows to learn from or to measure with, without what is bad in them.
        bad: the others, and questions that were taken out of good rows.
        weightless: rows whose weight is 0, which are in neither.
    """

    file: str
    good: list[LabelledRow] = field(repr=False)
    bad: list[Bad] = field(repr=False)
    weightless: int = 0


def read(
    path: Path,
    questions: Mapping[str, Question] | None = None,
    *,
    unanswered: bool = False,
    limit: int | None = None,
) -> Rows:
    """Read a `.jsonl` or `.jsonl.gz` file of rows, as batch and quality use them.

    A row is bad as a whole, except where rows contradict each other: then the question in dispute is taken
    out of each of them, and the rest of the row stays.

    Args:
        path: the file; attachments are relative to its folder.
        questions: for rows without questions of their own.
        unanswered: take rows without any answer too, because a teacher will give one.
        limit: read the first rows only.

    Raises:
        DataError: the file cannot be read, or has no rows at all.
    """
    found: list[LabelledRow] = []
    bad: list[Bad] = []
    weightless = count = 0
    for one in each_row(path, questions):
        count += 1
        reason = one.reason if isinstance(one, BadRow) else _fault(one, unanswered)
        if reason is not None:
            bad.append(Bad(str(path), one.number, reason))
        elif isinstance(one, LabelledRow):
            if one.weight > 0:
                found.append(one)
            else:
                weightless += 1
        if limit is not None and count >= limit:
            break
    if not count:
        raise DataError(f"{path} has no rows")
    good, disputed = _undisputed(found, str(path), unanswered)
    return Rows(str(path), good, sorted([*bad, *disputed], key=lambda one: one.row), weightless)


def soft_target(question: Question, soft: Mapping[str, float]) -> tuple[float, ...]:
    """Soft labels by name -> probabilities in the order of the alternatives; what is not named has none.

    Raises:
        ValueError: a name is none of the alternatives, or there is no weight in them.
    """
    names = alternatives(question)
    for name in soft:
        if name not in names:
            raise ValueError(f"{name!r} is none of the alternatives")
    try:
        total = float(sum(soft.values()))
    except OverflowError:
        total = math.inf
    if not 0 < total < math.inf:
        raise ValueError(f"the weights sum to {total:g}")
    return tuple(float(soft.get(name, 0.0)) / total for name in names)


def target(
    question: Question,
    gold: int | None,
    soft: Sequence[float] | None,
    soft_weight: float,
) -> tuple[float, ...] | None:
    """What an answer should be, as probabilities in the order of the alternatives.

    Args:
        question: the question.
        gold: index of the reviewed answer.
        soft: a distribution from soft labels or a teacher.
        soft_weight: share of `soft` where there is a reviewed answer too.

    Returns:
        None if there is neither.
    """
    if gold is None:
        return None if soft is None else tuple(soft)
    sure = tuple(float(index == gold) for index in range(len(alternatives(question))))
    if soft is None:
        return sure
    return tuple((1 - soft_weight) * a + soft_weight * b for a, b in zip(sure, soft, strict=True))


def split(
    rows: Sequence[LabelledRow], share: float, seed: int
) -> tuple[list[LabelledRow], list[LabelledRow]]:
    """Hold out a share of the states, all rows of each of them; returns what is left and what is held out.

    Which states these are depends on the seed and the states alone, not on their order. Of two or more
    states at least one lands on either side, if anything is held out at all.
    """
    keys = [row.state_key for row in rows]
    states = sorted(set(keys), key=lambda key: hashlib.sha256(f"{seed}/{key}".encode()).digest())
    count = 0 if share <= 0 or len(states) < 2 else min(max(1, round(share * len(states))), len(states) - 1)
    held = set(states[:count])
    pairs = list(zip(rows, keys, strict=True))
    return [row for row, key in pairs if key not in held], [row for row, key in pairs if key in held]


def without_states_of(
    rows: Sequence[LabelledRow], others: Iterable[LabelledRow]
) -> tuple[list[LabelledRow], int]:
    """The rows whose state is in none of the others, and how many were left out."""
    taken = {row.state_key for row in others}
    kept = [row for row in rows if row.state_key not in taken]
    return kept, len(rows) - len(kept)


def _fault(row: LabelledRow, unanswered: bool) -> str | None:
    """Why nothing can be learned from a row that can be asked; None if it can."""
    if not row.row.attachments and not render_text(row.row.state).strip():
        return "the state is empty"
    soft = row.row.soft or {}
    for name, labels in soft.items():
        if name not in row.questions:
            return f"soft.{name}: there is no such question"
        try:
            soft_target(row.questions[name], labels)
        except ValueError as error:
            return f"soft.{name}: {error}"
    if not row.gold and not soft and not unanswered:
        return "it has neither reviewed answers (answers) nor soft labels (soft)"
    for path in row.row.attachments:
        try:
            with (row.folder / path).open("rb"):
                pass
        except OSError as error:
            return f"attachments: {row.folder / path}: cannot be read ({error.strerror})"
    return None


def _undisputed(
    rows: Sequence[LabelledRow], file: str, unanswered: bool
) -> tuple[list[LabelledRow], list[Bad]]:
    """Take out questions that rows with the same state answer differently."""
    said: dict[tuple[str, Any], dict[str, list[int]]] = {}
    asked: list[dict[str, tuple[tuple[str, Any], str]]] = []
    for row in rows:
        state = row.state_key
        mine: dict[str, tuple[tuple[str, Any], str]] = {}
        for name, gold in row.gold.items():
            key = (state, _content(row.questions[name]))
            answer = alternatives(row.questions[name])[gold]
            said.setdefault(key, {}).setdefault(answer, []).append(row.number)
            mine[name] = (key, answer)
        asked.append(mine)
    good: list[LabelledRow] = []
    bad: list[Bad] = []
    for row, mine in zip(rows, asked, strict=True):
        dropped = {name for name, (key, _) in mine.items() if len(said[key]) > 1}
        for name in sorted(dropped):
            key, answer = mine[name]
            bad.append(Bad(file, row.number, _dispute(name, answer, said[key])))
        kept = _without(row, dropped) if dropped else row
        if kept is not None and (kept.gold or kept.row.soft or unanswered):
            good.append(kept)
    return good, bad


def _dispute(name: str, answer: str, said: Mapping[str, Sequence[int]]) -> str:
    others = [(row, other) for other, rows in said.items() if other != answer for row in rows]
    named = ", ".join(f"{other!r} in row {row}" for row, other in sorted(others)[:MOST_OTHERS])
    more = f" and {len(others) - MOST_OTHERS} more rows" if len(others) > MOST_OTHERS else ""
    return f"answers.{name}: the same state and question has {answer!r} here, {named}{more}"


def _without(row: LabelledRow, names: set[str]) -> LabelledRow | None:
    """The row without some of its questions; None if none is left."""
    questions = {name: one for name, one in row.questions.items() if name not in names}
    if not questions:
        return None
    soft = {name: one for name, one in (row.row.soft or {}).items() if name not in names}
    gold = {name: one for name, one in row.gold.items() if name not in names}
    return LabelledRow(
        row.number, row.row.model_copy(update={"soft": soft or None}), questions, gold, row.folder
    )


def _content(question: Question) -> str:
    """What makes two questions the same; the order of a choice's options does not."""
    plain = question.model_dump(mode="json")
    if isinstance(question, Choice):
        plain["criteria"] = sorted(plain["criteria"].items())
    return repr(plain)
