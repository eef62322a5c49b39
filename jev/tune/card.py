"""The model card: the report of a run as one dictionary, and as a page for people."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jev.schemas import alternatives
from jev.tune.gather import Laid
from jev.tune.recipe import Recipe
from jev.tune.record import Record

MOST_QUESTIONS = 50
"""Most questions that a report tells one by one: those with the most rows."""


def counts(learned: Iterable[Laid], held_out: Iterable[Laid]) -> list[dict[str, Any]]:
    """How many rows each question has, by id and type, and what was answered how often."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for where, rows in (("learned", learned), ("held_out", held_out)):
        for laid in rows:
            for name, one in laid.example.questions.items():
                kind = one.question.type
                entry = found.setdefault(
                    (name, kind), {"question": name, "type": kind, "learned": 0, "held_out": 0, "answers": {}}
                )
                entry[where] += 1
                gold = laid.row.gold.get(name)
                answer = "(soft)" if gold is None else alternatives(one.question)[gold]
                entry["answers"][answer] = entry["answers"].get(answer, 0) + 1
    most = sorted(found.values(), key=lambda one: -one["learned"] - one["held_out"])
    return most[:MOST_QUESTIONS]


def report(
    *,
    recipe: Recipe,
    base: Mapping[str, Any],
    data: Mapping[str, Any],
    record: Record,
    before: Mapping[str, Any] | None,
    after: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """What `tune.json` holds.

    Args:
        recipe: hyper-parameters; written with what they stand for.
        base: name and digest of the base checkpoint.
        data: counts.
        record: what training did.
        before: figures of the base model on the held-out part.
        after: figures of the result on it.
    """
    return {
        "jev": version("jev-server"),
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "kind": "full" if recipe.full else "lora",
        "base": dict(base),
        "data": dict(data),
        "recipe": recipe.effective(),
        "training": {
            "steps": record.step,
            "ended_by": record.end,
            "best_step": record.step if record.best is None else record.best.step,
            "seconds": round(record.seconds, 3),
            "rows": sum(one.rows for one in record.steps),
            "curve": [[one.step, one.loss, one.accuracy, one.lr] for one in record.steps],
            "looks": [[one.step, one.loss, one.accuracy] for one in record.looks],
        },
        "before": before,
        "after": after,
    }


def text(found: Mapping[str, Any], out: Path) -> str:
    """The card as Markdown.

    Args:
        found: see `report`.
        out: the folder that it describes.
    """
    training, data = found["training"], found["data"]
    full = found["kind"] == "full"
    what = "A checkpoint" if full else f"A LoRA adapter of rank {found['recipe']['rank']}"
    serve = f"jev serve --model {out.name}" if full else f"jev serve --adapter {_name(out)}={out.name}"
    lines = [
        f"# {out.resolve().name}",
        "",
        f"{what}, tuned from `{found['base']['name']}` (weights `{found['base']['weights'][:12]}`) on "
        f"labelled decisions with jev {found['jev']}, {found['created'][:10]}. `tune.json` has all of this "
        "for programs.",
        "",
        f"    {serve}",
        "",
        "It is tuned for the questions below, and measured on them only. Other questions may be answered "
        "worse than by the base model. Calibrations of the base model do not hold for it.",
        "",
        "## Before and after",
        "",
        *_figures(found),
        "",
        "## Data",
        "",
        f"`{data['file']}`: {data['learned_rows']} rows learned, {data['held_out_rows']} held out"
        + (f" (`{data['held_out_file']}`)" if data["held_out_file"] else " by state")
        + f", {len(data['bad'])} left out as bad."
        + (f" Teacher: `{data['teacher']}`." if data["teacher"] else ""),
        "",
        "| question | type | learned | held out | answers |",
        "|---|---|---|---|---|",
        *(_question(one) for one in data["questions"]),
        "",
        "## Training",
        "",
        f"{training['steps']} steps in {training['seconds'] / 60:.1f} minutes, ended by "
        f"{training['ended_by']}; the weights are those after step {training['best_step']}"
        + (", where the held-out loss was least." if training["looks"] else "."),
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {_value(value)} |" for name, value in found["recipe"].items() if value is not None),
        "",
    ]
    return "\n".join(lines)


def _figures(found: Mapping[str, Any]) -> list[str]:
    before, after = found["before"], found["after"]
    if not before or not after:
        if found["data"]["held_out_rows"]:
            return ["No row that was held out has a reviewed answer, so nothing was measured."]
        return ["Nothing was held out, so nothing was measured."]
    rows = [("all", before, after)]
    then = {(one["question"], one["type"]): one for one in after["questions"]}
    if len(before["questions"]) > 1:
        for one in before["questions"]:
            if (other := then.get((one["question"], one["type"]))) is not None:
                rows.append((f"`{_cell(one['question'])}`", one, other))
    lines = [
        "On the held-out part, by the metrics of `jev quality`; the best step was chosen by the loss on it, "
        "which flatters the figures after a little.",
        "",
        "| question | answers | accuracy | | NLL | | ECE | |",
        "|---|---|---|---|---|---|---|---|",
        "| | | before | after | before | after | before | after |",
    ]
    for name, one, other in rows:
        cells = [f"{side[key]:.3f}" for key in ("accuracy", "nll", "ece") for side in (one, other)]
        lines.append(f"| {name} | {one['n']} | {' | '.join(cells)} |")
    return lines


def _question(one: Mapping[str, Any]) -> str:
    answers: Sequence[tuple[str, int]] = sorted(one["answers"].items(), key=lambda pair: -pair[1])
    shown = ", ".join(f"{_cell(name)} {number}" for name, number in answers[:12])
    more = f", and {len(answers) - 12} more" if len(answers) > 12 else ""
    cells = (f"`{_cell(one['question'])}`", one["type"], one["learned"], one["held_out"], f"{shown}{more}")
    return f"| {' | '.join(map(str, cells))} |"


def _value(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "all"
    return _cell(str(value))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _name(out: Path) -> str:
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in out.resolve().name)
    return kept[:64] or "tuned"
