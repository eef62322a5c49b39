"""Rows, examples and jobs that the tests of tuning share."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jev.schemas import Choice, Noul, Question
from jev.settings import Settings
from jev.tune.examples import Example, Labelled
from jev.tune.job import Job
from jev.tune.recipe import Recipe

COLOURS = ("red", "blue", "green")
QUESTIONS: dict[str, Question] = {
    "colour": Choice("Which colour is it?", list(COLOURS)),
    "red": Noul("Is it red?"),
}


def row(number: int, **more: Any) -> dict[str, Any]:
    """A row whose state says its answers."""
    colour = COLOURS[number % 3]
    return {
        "state": f"{number} {colour}",
        "answers": {"colour": colour, "red": colour == "red"},
        **more,
    }


def write(path: Path, rows: Iterable[object]) -> Path:
    path.write_text("".join(f"{one if isinstance(one, str) else json.dumps(one)}\n" for one in rows))
    return path


def examples(count: int) -> list[Example]:
    found = []
    for number in range(count):
        colour = number % 3
        red = float(colour == 0)
        targets = {"colour": tuple(float(i == colour) for i in range(3)), "red": (red, 1.0 - red)}
        questions = {name: Labelled(QUESTIONS[name], target) for name, target in targets.items()}
        found.append(Example(f"{number} {COLOURS[colour]}", questions))
    return found


def job(folder: Path, base: Path, *, rows: int = 24, data: Path | None = None, **more: Any) -> Job:
    """A short run; fields of the recipe and of the job as they are named there."""
    data = data or write(folder / "rows.jsonl", map(row, range(rows)))
    recipe = {name: more.pop(name) for name in list(more) if name in Recipe.model_fields}
    given: dict[str, Any] = {"steps": 4, "batch": 4, "rank": 4, **recipe}
    return Job(
        **{
            "data": data,
            "out": folder / "out",
            "recipe": Recipe.of(**given),
            "settings": Settings.load(model=base, ocr="off"),
            "questions": QUESTIONS,
            **more,
        }
    )
