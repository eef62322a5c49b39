"""`jev doctor`: what works on this machine, and why not."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from jev.cli.checks import Check, Status
from jev.cli.console import Screen, one_line, spinner
from jev.cli.errors import UsageError
from jev.cli.machine_checks import machine_checks
from jev.cli.model_checks import model_checks
from jev.cli.options import JSON, MODEL_PANEL, Config, Device, DType, Threads, load_settings
from jev.cli.plan_table import plan_here, plan_json, show_plan
from jev.cli.reader_checks import reader_checks
from jev.machine import DISTRIBUTION
from jev.settings import Settings, SettingsError

if TYPE_CHECKING:
    from jev.planner import Plan

HELP = """
Find out what works on this machine and why not.

\b
jev doctor
jev doctor --model path/to/checkpoint --dtype bfloat16

Says what of the model fits where, loads it and makes a decision with it. Exit code: 0 when that works, \
1 when it does not.
"""

_STYLES: dict[Status, str] = {"ok": "green", "warn": "yellow", "fail": "bold red", "none": "bright_black"}
_MARKS: dict[Status, str] = {"ok": "✓", "warn": "!", "fail": "✗", "none": "-"}
_PLAIN_MARKS: dict[Status, str] = {"ok": "ok", "warn": "warn", "fail": "FAIL", "none": "-"}


def command(
    model: Annotated[
        str | None,
        typer.Option(
            metavar="PATH|TOML",
            help="Checkpoint to try, or a settings file; by default the embedded model.",
            rich_help_panel=MODEL_PANEL,
        ),
    ] = None,
    config: Config = None,
    device: Device = None,
    dtype: DType = None,
    threads: Threads = None,
    as_json: JSON = False,
) -> None:
    """Run `jev doctor`; see `HELP`."""
    try:
        settings, found = load_settings(model, config, device=device, dtype=dtype, threads=threads), []
    except (SettingsError, UsageError) as error:
        # Bad settings are a finding: the machine is looked at with the defaults.
        settings, found = Settings.model_construct(), [Check("settings", "fail", str(error))]
    with spinner().status("looking") as status:
        plan = None if found else plan_here(settings)  # before a model takes memory
        for check in _checks(settings, found):
            found.append(check)
            status.update(check.name)
    works = all(check.status != "fail" for check in found)
    if as_json:
        body = {
            "ok": works,
            "version": version(DISTRIBUTION),
            "checks": [dataclasses.asdict(check) for check in found],
            **({} if plan is None else {"plan": plan_json(plan)}),
        }
        typer.echo(json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode())
    else:
        _show(found, works, plan)
    if not works:
        raise typer.Exit(1)


def _checks(settings: Settings, found: list[Check]) -> Iterator[Check]:
    yield from machine_checks(settings)
    yield from reader_checks(settings)
    if not found or all(check.status != "fail" for check in found):
        yield from model_checks(settings)


def _show(found: list[Check], works: bool, plan: Plan | None) -> None:
    screen = Screen.standard()
    marks = _PLAIN_MARKS if screen.plain else _MARKS
    table = screen.grid(3)
    for check in found:
        style = _STYLES[check.status]
        table.add_row(
            Text(marks[check.status], style), Text(check.name, "bold"), Text(one_line(check.detail))
        )
        if check.fix:
            table.add_row("", "", Text(f"-> {one_line(check.fix)}", style))
    screen.show(table)
    if plan is not None:
        screen.show("")
        show_plan(screen, plan)
    works_line = "jev works on this machine" if works else "jev does not work on this machine"
    screen.show(Text(f"\n{works_line}", "bold green" if works else "bold red"))
