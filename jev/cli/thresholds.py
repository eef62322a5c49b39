"""`jev thresholds`: the confidence from which on answers are as accurate as they must be."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from jev.cli import labelled
from jev.cli.console import Screen, one_line
from jev.cli.errors import UsageError, one_line_errors
from jev.cli.labelled import Work
from jev.cli.options import JSON, Adapters, Samples, Seed

if TYPE_CHECKING:
    from jev.calibration.file import Calibration
    from jev.calibration.gather import Answered
    from jev.calibration.thresholds import Thresholds

MIN_ROWS = 50

HELP = """
Find, for every question, the least confidence from which on answers are as accurate as asked.

\b
jev thresholds --data labelled.jsonl --questions questions.json --target-accuracy 0.97
jev thresholds --data labelled.jsonl --calibration support-v3.json --target-accuracy 0.97

The gate's accuracy is at least the target with the given confidence, although it was chosen on the same \
rows (docs/calibration.md says how). Use other rows than those of `jev calibrate`.
"""


@dataclass(frozen=True)
class _Question:
    ids: tuple[str, ...]
    type: str
    rows: int
    found: Thresholds | None  # None = too few rows


def command(
    data: labelled.Data,
    target: Annotated[
        float, typer.Option("--target-accuracy", metavar="SHARE", help="Wanted accuracy, such as 0.97.")
    ],
    questions: labelled.QuestionFile = None,
    calibration: Annotated[
        Path | None, typer.Option(metavar="JSON", help="Calibrate the answers with this file first.")
    ] = None,
    confidence: Annotated[
        float, typer.Option(metavar="SHARE", help="How sure the gate must be of its accuracy.")
    ] = 0.95,
    backend: labelled.BackendText = "torch",
    adapter: Adapters = None,
    config: labelled.Config = None,
    cache: labelled.Cache = None,
    layout: labelled.LayoutOption = None,
    instructions: labelled.Instructions = None,
    samples: Samples = None,
    permutations: labelled.Permutations = None,
    seed: Seed = None,
    as_json: JSON = False,
) -> None:
    """Run `jev thresholds`; see `HELP`."""
    with one_line_errors():
        for option, value in (("--target-accuracy", target), ("--confidence", confidence)):
            if not 0 < value < 1:
                raise UsageError(f"{option} {value:g}: it must lie between 0 and 1")
        from jev.calibration.file import Calibration  # noqa: PLC0415 - only these commands need it

        chosen = None if calibration is None else Calibration.load(calibration)
        work = Work.of(
            data,
            questions,
            backend,
            config,
            cache,
            adapter,
            layout=layout,
            instructions=instructions,
            samples=samples,
            permutations=permutations,
            seed=seed,
        )
        work.check_enough(MIN_ROWS)
        found, identity = work.gather(identify=chosen is not None)
        if chosen is not None and identity is not None:
            from jev.calibration.apply import mismatch, other_precision  # noqa: PLC0415 - only with one

            reason = mismatch(chosen, identity)
            if reason is not None:
                raise UsageError(f"{calibration} {reason}")
            if (other := other_precision(chosen, identity)) is not None:
                typer.echo(f"warning: {calibration} {other}", err=True)
        results = [_judge(one, chosen, target, confidence) for one in found.questions]
        if all(one.found is None for one in results):
            counts = ", ".join(f"{_ids(one.ids)}: {one.rows}" for one in results[:5])
            raise UsageError(f"too few labelled rows ({counts}); a question needs {MIN_ROWS}")
        if as_json:
            _print_json(results, target, confidence, found.failures)
        else:
            _show(Screen.standard(), results, target, confidence)


def _judge(one: Answered, calibration: Calibration | None, target: float, level: float) -> _Question:
    from jev.calibration.thresholds import find_gate, judged  # noqa: PLC0415 - scipy

    ids, kind = tuple(one.ids), one.question.type
    if len(one) < MIN_ROWS:
        return _Question(ids, kind, len(one), None)
    entries = {} if calibration is None else {entry.signature: entry for entry in calibration.questions}
    if calibration is not None and one.signature not in entries:
        typer.echo(f"warning: {_ids(ids)}: the calibration does not cover it", err=True)
    entry = entries.get(one.signature)
    if calibration is not None and entry is not None:
        from jev.calibration.apply import check_labels  # noqa: PLC0415 - only with a calibration

        check_labels(entry, one.question, calibration.name)
    confidence, correct = judged(one, entry)
    return _Question(ids, kind, len(one), find_gate(confidence, correct, target=target, level=level))


def _print_json(
    results: list[_Question], target: float, level: float, failures: list[tuple[int, str]]
) -> None:
    body = {
        "target_accuracy": target,
        "confidence": level,
        "questions": [_plain(one) for one in results],
        "failures": [{"row": number, "reason": reason} for number, reason in failures],
    }
    typer.echo(json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode())


def _plain(one: _Question) -> dict[str, object]:
    about: dict[str, object] = {"ids": list(one.ids), "type": one.type, "rows": one.rows}
    if one.found is None:
        return {**about, "refused": f"a question needs {MIN_ROWS} labelled rows"}
    found = dataclasses.asdict(one.found)
    return {
        **about,
        "gate": found["chosen"],
        "tested": found["gates"],
        "needed_if_all_right": found["needed"],
    }


def _show(screen: Screen, results: list[_Question], target: float, level: float) -> None:
    table = screen.grid(6)
    heads = ("question", "type", "rows", "gate", "coverage", "accuracy")
    table.add_row(*(Text(head, "dim") for head in heads))
    for one in results:
        gate = None if one.found is None else one.found.chosen
        cells = ["none", "-", "-"]
        if gate is not None:
            cells = [
                f"{gate.gate:g}",
                f"{gate.coverage:.1%} ({gate.coverage_low:.1%} to {gate.coverage_high:.1%})",
                f"{gate.accuracy:.1%} ({gate.accuracy_low:.1%} to {gate.accuracy_high:.1%})",
            ]
        table.add_row(Text(_ids(one.ids), "bold"), one.type, str(one.rows), *cells)
    screen.show(table)
    for one in results:
        if one.found is None:
            screen.show(
                Text(f"{_ids(one.ids)}: refused: a question needs {MIN_ROWS} labelled rows", "yellow")
            )
        elif one.found.chosen is None:
            screen.show(Text(f"{_ids(one.ids)}: {_why(one.found, target, level)}", "yellow"), wrap=False)


def _why(found: Thresholds, target: float, level: float) -> str:
    """What there is instead of a gate."""
    text = f"no gate shows {target:.1%} accuracy at {level:.0%} confidence"
    if not found.gates:
        return f"{text}: it takes at least {found.needed} answers above a gate, all right"
    best = max(found.gates, key=lambda gate: gate.accuracy_low)
    return (
        f"{text}: best is gate {best.gate:g} with {best.right} of {best.kept} right, which shows "
        f"{best.accuracy_low:.1%}; if all were right, {found.needed} answers would do"
    )


def _ids(ids: tuple[str, ...]) -> str:
    shown = [one_line(name)[:40] for name in ids[:3]]
    return ", ".join(shown) + (" ..." if len(ids) > 3 else "")
