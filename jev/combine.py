"""What was read of a plan -> which groups to read again, and the answers. No tensors, no model.

Every backend that reads canvases itself (the engine, the unified and the transformers reference, vLLM)
shares these rules, so that they can differ in logits only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from jev.decide import Reads, entropy, softmax, to_alternatives, to_answer
from jev.plan import Group, Plan, Unit, alternatives
from jev.schemas import Answer


class Logits(Protocol):
    """One canvas's reading: for each slot the logits of its labels (`jev.model.read.Reading` is one)."""

    @property
    def logits(self) -> Sequence[Sequence[float]]:
        """By slot, in the order of the slot's labels."""
        ...


Readings = Mapping[int, Sequence[Logits]]
"""All readings of each unit, by `id(unit)`, in read order."""


def first_work(plan: Plan) -> list[tuple[Unit, int]]:
    """The (unit, read number) pairs that every plan begins with."""
    return [(unit, number) for unit in plan.units for number in range(plan.first_reads)]


def more_work(plan: Plan, readings: Readings) -> list[tuple[Unit, int]]:
    """The pairs to read after the first ones: up to `auto_max` reads where a question is uncertain.

    A group is read again if any of its questions has a mean entropy over `auto_threshold`.
    """
    request = plan.request
    if request.samples != "auto" or request.auto_max == 1:
        return []
    return [
        (unit, number)
        for group in plan.groups
        if any(
            entropy(reads_of(question, group, readings).probabilities) > request.auto_threshold
            for question in group.questions
        )
        for unit in group.units
        for number in range(1, request.auto_max)
    ]


def reads_of(question: str, group: Group, readings: Readings) -> Reads:
    """All of a question's distributions over its alternatives, unit by unit and read by read."""
    rows = []
    for unit in group.units:
        index = next(i for i, slot in enumerate(unit.slots) if slot.question == question)
        rows += [
            to_alternatives(softmax(reading.logits[index]), unit.slots[index].order)
            for reading in readings[id(unit)]
        ]
    return Reads(tuple(rows))


def all_reads(plan: Plan, readings: Readings) -> dict[str, Reads]:
    """`reads_of` for every question that was read."""
    return {
        question: reads_of(question, group, readings) for group in plan.groups for question in group.questions
    }


def answers_of(plan: Plan, reads: Mapping[str, Reads]) -> dict[str, Answer]:
    """The answers in request order; a question with a single alternative needs no read."""
    return {
        name: to_answer(
            question,
            [1.0] if alternatives(question) == 1 else plan.calibrated(name, reads[name].probabilities),
        )
        for name, question in plan.request.questions.items()
    }
