"""Replies laid out as one table of answers, with the columns that the figures are computed from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from jev.quality import metrics
from jev.quality.data import LabelledRow
from jev.quality.replies import Judgement, Reply
from jev.schemas import Question, alternatives


@dataclass(frozen=True)
class Item:
    """One question of one row: what is judged.

    Attributes:
        row: index of the row among those that were read.
        number: its line in the file.
        name: the question's id.
        question: the question itself.
        names: its alternatives.
        gold: index of the reviewed answer, or None.
        weight: the row's.
    """

    row: int
    number: int
    name: str
    question: Question
    names: tuple[str, ...]
    gold: int | None
    weight: float

    @property
    def kind(self) -> str:
        """The question's type."""
        return self.question.type

    @property
    def task(self) -> tuple[str, str]:
        """What makes answers comparable label by label: id and type. Options may differ from row to row."""
        return (self.name, self.kind)

    def label(self, index: int) -> str:
        """A label that only answers of the same task share."""
        return "\0".join((self.name, self.kind, self.names[index]))


@dataclass(frozen=True)
class Scored:
    """Items that have a reviewed answer and were answered, with the answers; same length, same order."""

    items: tuple[Item, ...]
    answers: tuple[Judgement, ...]

    def __len__(self) -> int:
        return len(self.items)

    def where(self, keep: Iterable[bool]) -> Scored:
        """The part that `keep` says."""
        kept = [
            pair for pair, yes in zip(zip(self.items, self.answers, strict=True), keep, strict=True) if yes
        ]
        return Scored(tuple(item for item, _ in kept), tuple(answer for _, answer in kept))

    @cached_property
    def gold(self) -> list[int]:
        """Index of each reviewed answer."""
        return [item.gold for item in self.items if item.gold is not None]

    @cached_property
    def winner(self) -> list[int]:
        """Index of each answer."""
        return [answer.winner for answer in self.answers]

    @cached_property
    def weight(self) -> metrics.Floats:
        """[n] weights of the rows."""
        return np.array([item.weight for item in self.items], dtype=np.float64)

    @cached_property
    def confidence(self) -> metrics.Floats:
        """[n] probability of the winner, at most 1."""
        values = np.array([answer.confidence for answer in self.answers], dtype=np.float64)
        return np.minimum(values, 1.0)

    @cached_property
    def correct(self) -> metrics.Bools:
        """[n] whether each answer is the reviewed one."""
        return np.array(self.gold, dtype=np.int64) == np.array(self.winner, dtype=np.int64)

    @cached_property
    def gold_probability(self) -> metrics.Floats:
        """[n] probability of the reviewed answer."""
        pairs = zip(self.answers, self.gold, strict=True)
        return np.array([answer.probabilities[gold] for answer, gold in pairs], dtype=np.float64)

    @cached_property
    def squared_error(self) -> metrics.Floats:
        """[n] see `metrics.squared_error`."""
        pairs = zip(self.answers, self.gold, strict=True)
        return np.array(
            [metrics.squared_error(answer.probabilities, gold) for answer, gold in pairs], dtype=np.float64
        )

    @cached_property
    def cluster(self) -> NDArray[np.int64]:
        """[n] the rows that the answers belong to, numbered from 0 without gaps."""
        return np.unique([item.row for item in self.items], return_inverse=True)[1].astype(np.int64)

    @cached_property
    def expected(self) -> list[float]:
        """Mean index over each distribution: a score's value."""
        return [
            float(np.dot(np.arange(len(answer.probabilities)), answer.probabilities))
            for answer in self.answers
        ]


def items_of(rows: Sequence[LabelledRow]) -> list[Item]:
    """Every question of every row, in order."""
    return [
        Item(index, row.number, name, question, alternatives(question), row.gold.get(name), row.weight)
        for index, row in enumerate(rows)
        for name, question in row.questions.items()
    ]


def scored(items: Sequence[Item], replies: Sequence[object]) -> Scored:
    """The items with a reviewed answer whose row was answered; `replies` has an outcome for each row.

    Rows of weight 0 do not count: their labels would be in unweighted means over labels.
    """
    pairs = [
        (item, answer)
        for item in items
        if item.gold is not None and item.weight > 0 and (answer := answer_to(item, replies)) is not None
    ]
    return Scored(tuple(item for item, _ in pairs), tuple(answer for _, answer in pairs))


def answer_to(item: Item, replies: Sequence[object]) -> Judgement | None:
    """The answer to one item, if its row was answered."""
    reply = replies[item.row]
    return reply.answers[item.name] if isinstance(reply, Reply) else None
