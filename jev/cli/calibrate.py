"""`jev calibrate`: fit temperatures to labelled rows and write them as a calibration."""

from __future__ import annotations

import dataclasses
import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from jev.cli import labelled
from jev.cli.console import Screen, one_line
from jev.cli.errors import one_line_errors
from jev.cli.labelled import Work
from jev.cli.options import JSON, Adapters, Samples, Seed, check_writable, flag

if TYPE_CHECKING:
    from jev.calibration.build import Skipped
    from jev.calibration.file import Calibration, Entry

FIT = "Fit"

HELP = """
Fit a temperature for every question to labelled rows, and say what it changes.

\b
jev calibrate --data labelled.jsonl --questions questions.json --out support-v3.json
jev calibrate --data labelled.jsonl --bias --pool type --out support-v3.json
jev serve --calibration support-v3=support-v3.json

The figures "after" are cross-validated: every answer is judged by a fit that has not seen its state. A \
question keeps its probabilities where that shows no gain.
"""


class Pool(StrEnum):
    """What questions with few rows share."""

    type = "type"


def command(
    data: labelled.Data,
    questions: labelled.QuestionFile = None,
    out: Annotated[
        Path | None, typer.Option(metavar="JSON", help="Write the calibration here; else only the report.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name inside the file; by default that of --out.")
    ] = None,
    backend: labelled.BackendText = "torch",
    adapter: Adapters = None,
    config: labelled.Config = None,
    cache: labelled.Cache = None,
    bias: Annotated[bool, flag("--bias", "Fit a bias for every label too.", FIT)] = False,
    pool: Annotated[
        Pool | None,
        typer.Option(
            help="Let questions with too few rows share one temperature by type.", rich_help_panel=FIT
        ),
    ] = None,
    folds: Annotated[
        int,
        typer.Option(metavar="N", min=2, max=50, help="Cross-validation folds.", rich_help_panel=FIT),
    ] = 10,
    min_rows: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=10,
            help="Least rows of a question; with --bias of each label.",
            rich_help_panel=FIT,
        ),
    ] = 50,
    layout: labelled.LayoutOption = None,
    instructions: labelled.Instructions = None,
    samples: Samples = None,
    permutations: labelled.Permutations = None,
    seed: Seed = None,
    as_json: JSON = False,
) -> None:
    """Run `jev calibrate`; see `HELP`."""
    with one_line_errors():
        from jev.calibration.build import Rules, build  # noqa: PLC0415 - scipy, which asking does without

        check_writable("--out", out, data, questions)
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
        work.check_enough(min_rows)
        found, identity = work.gather(identify=True)
        assert identity is not None
        calibration, skipped = build(
            found.questions,
            identity,
            Rules(bias=bias, pool=None if pool is None else "type", folds=folds, min_rows=min_rows),
            name=name or (out.stem if out is not None else "calibration"),
            backend=backend,
            options=work.options,
        )
        if out is not None:
            calibration.save(out)
        if as_json:
            _print_json(calibration, skipped, found.failures)
        else:
            _show(Screen.standard(), calibration, skipped, out)


def _print_json(calibration: Calibration, skipped: list[Skipped], failures: list[tuple[int, str]]) -> None:
    body = {
        "calibration": calibration.model_dump(mode="json"),
        "skipped": [dataclasses.asdict(one) for one in skipped],
        "failures": [{"row": number, "reason": reason} for number, reason in failures],
    }
    typer.echo(json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode())


def _show(screen: Screen, calibration: Calibration, skipped: list[Skipped], out: Path | None) -> None:
    table = screen.grid(9)
    heads = ("question", "type", "rows", "T", "", "NLL", "ECE", "Brier", "accuracy")
    table.add_row(*(Text(head, "dim") for head in heads))
    for entry in calibration.questions:
        for cells in _lines(entry):
            table.add_row(*cells)
    screen.show(table)
    for entry in calibration.questions:
        for note in entry.notes:
            screen.show(Text(f"{_ids(entry.ids)}: {one_line(note)}", "dim"), wrap=False)
    for one in skipped:
        screen.show(Text(f"{_ids(one.ids)}: not calibrated: {one.reason}", "yellow"), wrap=False)
    if out is None:
        last = "nothing was written; --out FILE writes the calibration"
    else:
        last = f"wrote {out}; serve it with: jev serve --calibration {calibration.name}={out}"
    screen.show(Text(last, "dim"), wrap=False)


def _lines(entry: Entry) -> list[list[str | Text]]:
    """Two lines for a question: without calibration, and with it."""
    bias = "" if entry.bias is None else " + bias"
    fitted = "-" if entry.method == "none" else f"{entry.temperature:.3f}{bias}"
    lines: list[list[str | Text]] = []
    for when, figures in (("before", entry.before), ("after", entry.after)):
        assert figures is not None
        numbers = [
            f"{figures.nll:.3f}",
            f"{figures.ece:.3f}",
            f"{figures.brier:.3f}",
            f"{figures.accuracy:.1%}",
        ]
        lines.append(["", "", "", "", when, *numbers])
    lines[0][:4] = [Text(_ids(entry.ids), "bold"), entry.type, str(entry.rows), fitted]
    return lines


def _ids(ids: tuple[str, ...]) -> str:
    shown = [one_line(name)[:40] for name in ids[:3]]
    return ", ".join(shown) + (" ..." if len(ids) > 3 else "")
