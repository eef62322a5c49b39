"""Rows -> examples: attachments read, soft labels and a teacher's mixed in, what does not fit found."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from jev.backends.material import MaterialReader
from jev.errors import InvalidRequestError, JevError
from jev.material import NOTHING, Material
from jev.prompt import PromptContext
from jev.quality.data import DataError, LabelledRow
from jev.schemas import alternatives
from jev.settings import Settings
from jev.tune.augment import NONE
from jev.tune.data import Bad, soft_target, target
from jev.tune.examples import Example, Labelled, prepare
from jev.tune.recipe import Recipe
from jev.tune.teacher import Lesson


@dataclass(frozen=True)
class Size:
    """What an example takes in a forward.

    Attributes:
        rows: tokens of its prompt, branches and canvases.
        scores: pairs of a row and a key, an upper bound: what attention holds for each head and layer.
    """

    rows: int
    scores: int


@dataclass(frozen=True)
class Laid:
    """A row that can be learned from."""

    row: LabelledRow
    example: Example
    size: Size


async def materials(
    rows: Sequence[LabelledRow],
    settings: Settings,
    *,
    has_vision: bool,
    done: Callable[[], None] = lambda: None,
) -> list[Material | str]:
    """Read the attachments of all rows; a string says why those of a row cannot be.

    Args:
        rows: with or without attachments.
        settings: how attachments are read.
        has_vision: whether the model can be shown pictures.
        done: called after each row.
    """
    reader = MaterialReader(settings, has_vision=has_vision)
    at_once = asyncio.Semaphore(2 * settings.extract_workers)

    async def one(row: LabelledRow) -> Material | str:
        if not row.row.attachments:
            done()
            return NOTHING
        async with at_once:
            try:
                return await reader.of(row.request()) or NOTHING
            except InvalidRequestError as error:
                return "; ".join(issue.msg for issue in error.issues) or error.message
            except (DataError, JevError) as error:
                return str(error)
            finally:
                done()

    try:
        return list(await asyncio.gather(*map(one, rows)))
    finally:
        await reader.aclose()


def lay_out(
    rows: Sequence[LabelledRow],
    read: Sequence[Material | str],
    taught: Sequence[Lesson],
    context: PromptContext,
    recipe: Recipe,
    file: str,
) -> tuple[list[Laid], list[Bad]]:
    """Make examples of rows.

    Args:
        rows: the rows.
        read: the attachments of each.
        taught: what a teacher says of each.
        context: what prompts are built with.
        recipe: how soft labels are mixed in, and the request-wide instructions.
        file: what the rows' file is called.

    Returns:
        The examples, and the rows that cannot be one: attachments that cannot be read, a prompt that does
        not fit, no answer; also those that a teacher did not answer, which may be among the examples. Rows
        that ask nothing, because all their questions have one alternative, are in neither.
    """
    laid: list[Laid] = []
    bad: list[Bad] = []
    for row, material, lesson in zip(rows, read, taught, strict=True):
        if isinstance(material, str):
            bad.append(Bad(file, row.number, f"attachments: {material}"))
            continue
        labelled = _labelled(row, lesson, recipe.soft_weight)
        if not labelled:
            why = f"the teacher did not answer: {lesson.failure}" if lesson.failure else "it has no answer"
            if all(len(alternatives(one)) == 1 for one in row.questions.values()):
                why = "each of its questions has a single alternative, so there is nothing to learn"
            bad.append(Bad(file, row.number, why))
            continue
        if lesson.failure is not None:
            why = f"the teacher did not answer ({lesson.failure}): only its own answers count"
            bad.append(Bad(file, row.number, why))
        example = Example(row.row.state, labelled, recipe.instructions, material)
        try:
            size = _size(example, context, recipe.draws)
        except InvalidRequestError as error:
            bad.append(Bad(file, row.number, "; ".join(issue.msg for issue in error.issues)))
            continue
        if size is not None:
            laid.append(Laid(row, example, size))
    return laid, bad


def _labelled(row: LabelledRow, lesson: Lesson, soft_weight: float) -> dict[str, Labelled]:
    found: dict[str, Labelled] = {}
    own: Mapping[str, Mapping[str, Any]] = row.row.soft or {}
    for name, question in row.questions.items():
        soft = soft_target(question, own[name]) if name in own else lesson.soft.get(name)
        wanted = target(question, row.gold.get(name), soft, soft_weight)
        if wanted is not None and len(wanted) > 1:
            found[name] = Labelled(question, wanted, row.weight)
    return found


def _size(example: Example, context: PromptContext, draws: int) -> Size | None:
    """What it takes as it is, undescribed by no augmentation."""
    prepared = prepare(example, context, Random(0), how=NONE, draws=draws)  # noqa: S311 - no secret
    if prepared is None:
        return None
    prompt = prepared.prompt
    prefix = len(prompt.prefix)
    scores = prefix * prefix
    for branch, canvases in prompt.branches:
        behind = len(branch) + sum(len(canvas.ids) for canvas in canvases)
        scores += behind * (prefix + behind)
    return Size(prompt.rows, scores)
