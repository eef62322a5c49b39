"""Labelled decisions as the model is served them: prompts, seeded canvases, and what should be read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from jev.material import NOTHING, Material
from jev.model.packed import ImageSpan
from jev.model.read import Canvas
from jev.model.tuning import Prompt
from jev.plan import PlacedImage, Plan, Unit
from jev.prompt import PromptContext, plan_isolated
from jev.schemas import Question, SystemOneRequest
from jev.tune.augment import Augmentation, augmented

Spans = Callable[[tuple[PlacedImage, ...]], Sequence[ImageSpan]]
"""Soft tokens of pictures."""


@dataclass(frozen=True)
class Labelled:
    """A question and what its answer should be.

    Attributes:
        question: the question.
        target: probabilities in the order of its alternatives; they add up to 1.
        weight: how much it counts in the loss.
    """

    question: Question
    target: tuple[float, ...]
    weight: float = 1.0


@dataclass(frozen=True)
class Example:
    """A state with labelled questions.

    Attributes:
        state: as on the wire.
        questions: by id.
        instructions: request-wide ones.
        material: attachments, read.
    """

    state: Any
    questions: Mapping[str, Labelled]
    instructions: Any = None
    material: Material = field(default=NOTHING, repr=False)


@dataclass(frozen=True)
class Read:
    """One slot that will be read.

    Attributes:
        question: its id.
        target: probabilities in the order of the slot's labels.
        weight: how much it counts.
    """

    question: str
    target: tuple[float, ...]
    weight: float


@dataclass(frozen=True)
class Prepared:
    """An example, ready for one forward: the prompt, and the reads in the order of its slots."""

    prompt: Prompt
    reads: tuple[Read, ...]


def prepare(
    example: Example,
    context: PromptContext,
    random: Random,
    *,
    how: Augmentation,
    draws: int = 1,
    spans: Spans = lambda images: (),
) -> Prepared | None:
    """Lay an example out as the server would, on a branch and canvas for every question.

    Args:
        example: what to learn.
        context: what prompts are built with.
        random: decides the augmentation and the slot noise.
        how: how questions may change.
        draws: canvases of each question, with noise of their own; each counts 1 / draws.
        spans: runs the vision tower on pictures.

    Returns:
        None for an example that asks nothing: each of its questions has a single alternative.

    Raises:
        InvalidRequestError: when state and question do not fit into the context.
    """
    questions: dict[str, Question] = {}
    targets: dict[str, tuple[float, ...]] = {}
    for name, labelled in example.questions.items():
        questions[name], targets[name] = augmented(labelled.question, labelled.target, how, random)
    request = SystemOneRequest(
        state=example.state,
        questions=questions,
        instructions=example.instructions,
        seed=random.randrange(2**31),
        samples=1,
    )
    plan = plan_isolated(request, context, example.material)
    return _prepared(plan, example, targets, draws, spans) if plan.units else None


def _prepared(
    plan: Plan, example: Example, targets: Mapping[str, tuple[float, ...]], draws: int, spans: Spans
) -> Prepared:
    branches: list[tuple[Sequence[int], list[Canvas]]] = []
    images: list[Sequence[ImageSpan]] = []
    reads: list[Read] = []
    for unit in plan.units:
        branches.append((unit.branch, [unit.seeded(draw) for draw in range(draws)]))
        images.append(spans(unit.branch_images))
        reads += _reads(unit, example, targets, draws)
    first = plan.units[0]
    return Prepared(Prompt(first.prefix, branches, spans(first.prefix_images), images), tuple(reads))


def _reads(unit: Unit, example: Example, targets: Mapping[str, tuple[float, ...]], draws: int) -> list[Read]:
    (slot,) = unit.slots  # one question a branch
    target = targets[slot.question]
    weight = example.questions[slot.question].weight / draws
    return [Read(slot.question, tuple(target[index] for index in slot.order), weight)] * draws
