"""Rows of a file as examples, with twins in another order, in batches of about equal length."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

from jev.prompt import PromptContext
from jev.schemas import Choice, Row, alternatives, index_of
from jev.tune.augment import NONE, Augmentation, augmented
from jev.tune.examples import Example, Labelled, Prepared, prepare

HOW = Augmentation(subset=0.15, undescribed=0.1)
TWIN = "~"
"""Between a question's id and the order of its twin's options."""

POOL = 400
"""Examples that are sorted by length at a time."""

MOST_LABELS = 90
"""Labels of options that are trained: A to Z, a to z, AA, AB, ..."""

FEWEST_READS, MOST_ROWS = 12, 2.5
"""A batch is not full before it has so many reads, or so many times the rows that were asked for: a step of
few long examples would be as large as one of many short ones, and noisier."""


def example(line: str) -> Example:
    """A row of the file; soft labels come before answers."""
    row = Row.model_validate(json.loads(line))
    labelled = {}
    for name, question in (row.questions or {}).items():
        names = alternatives(question)
        if row.soft and name in row.soft:
            given = row.soft[name]
            target = tuple(given.get(one, 0.0) / sum(given.values()) for one in names)
        else:
            right = index_of(question, (row.answers or {})[name])
            target = tuple(float(one == right) for one in range(len(names)))
        labelled[name] = Labelled(question, target, row.weight)
    return Example(row.state, labelled)


def twinned(one: Example, random: Random, share: float) -> Example:
    """The example, shuffled, with a twin in reverse or any other order for some of its choices."""
    questions: dict[str, Labelled] = {}
    for name, labelled in one.questions.items():
        question, target = augmented(labelled.question, labelled.target, HOW, random)
        questions[name] = Labelled(question, target, labelled.weight)
        if isinstance(question, Choice) and len(target) < 13 and random.random() < share:
            order = list(range(len(target)))[::-1]
            if random.random() < 0.4:
                random.shuffle(order)
            names = list(question.criteria.items())
            turned = question.model_copy(update={"criteria": dict(names[index] for index in order)})
            questions[f"{name}{TWIN}{order}"] = Labelled(
                turned, tuple(target[index] for index in order), labelled.weight
            )
    return Example(one.state, questions)


def relabelled(context: PromptContext, random: Random) -> PromptContext:
    """The context with other labels for the options of choices than A, B, C, ...

    A long list has labels that short ones never have. So that these are learned from short lists too, they
    begin anywhere in the row of labels, or are any of them in any order.
    """
    first = context.labels.choice[:MOST_LABELS]
    start = random.randrange(len(first))
    choice = [*first[start:], *first[:start]] if random.random() < 0.5 else random.sample(first, len(first))
    labels = replace(context.labels, choice=(*choice, *context.labels.choice[MOST_LABELS:]))
    return replace(context, labels=labels)


def batches(
    path: Path,
    context: PromptContext,
    random: Random,
    *,
    rows: int,
    twins: float,
    other_labels: float = 0.0,
    longest: int = 1000,
) -> Iterator[list[Prepared]]:
    """Batches of about `rows` rows without end; the file is read again for each epoch.

    Args:
        path: the rows.
        context: what prompts are built with.
        random: decides the order, the twins, and the augmentation.
        rows: see above.
        twins: share of choices that are asked in two orders.
        other_labels: share of rows whose choices have other labels (`relabelled`).
        longest: longer examples are left out.
    """
    while True:
        lines = path.read_text(encoding="utf-8").rstrip("\n").split("\n")
        random.shuffle(lines)
        for start in range(0, len(lines), POOL):
            pool = []
            for line in lines[start : start + POOL]:
                asked = relabelled(context, random) if random.random() < other_labels else context
                one = prepare(twinned(example(line), random, twins), asked, random, how=NONE)
                if one is not None and one.prompt.rows < longest:
                    pool.append(one)
            yield from cut(pool, random, rows)


def cut(pool: list[Prepared], random: Random, rows: int) -> list[list[Prepared]]:
    """The pool in batches of examples of like length, in random order."""
    pool = sorted(pool, key=lambda one: one.prompt.rows)
    found: list[list[Prepared]] = [[]]
    held = reads = 0
    for one in pool:
        if held >= MOST_ROWS * rows or (held >= rows and reads >= FEWEST_READS):
            found.append([])
            held = reads = 0
        found[-1].append(one)
        held += one.prompt.rows
        reads += len(one.reads)
    random.shuffle(found)
    return found


def twin_pairs(batch: Sequence[Prepared]) -> list[tuple[int, int, list[int]]]:
    """Twins: index of the first and of the second read, and of which label of the first each other one is."""
    found = []
    base = 0
    for one in batch:
        number = {read.question: base + index for index, read in enumerate(one.reads)}
        for name, index in number.items():
            first, _, order = name.partition(TWIN)
            if order:
                found.append((number[first], index, json.loads(order)))
        base += len(one.reads)
    return found
