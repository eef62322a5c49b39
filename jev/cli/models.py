"""`jev models`: the models of a server, or the checkpoints on this machine."""

from __future__ import annotations

import dataclasses
import json
from os.path import realpath
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from jev.cli.console import Screen, number, one_line, size
from jev.cli.errors import UsageError, one_line_errors
from jev.cli.model_facts import ModelFacts, facts_of
from jev.cli.options import JSON, MODEL_PANEL, ApiKey, Config, Url, load_settings, model_folder, server_url
from jev.client import Jev
from jev.model import embedded
from jev.schemas import ModelInfo, ModelList

HELP = """
List models: what ships with the package and what the settings name, or what a server offers.

\b
jev models
jev models --model path/to/checkpoint
jev models --url http://127.0.0.1:8000
"""


def command(
    context: typer.Context,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="PATH|TOML", help="Another checkpoint, or a settings file.", rich_help_panel=MODEL_PANEL
        ),
    ] = None,
    config: Config = None,
    url: Url = None,
    api_key: ApiKey = None,
    as_json: JSON = False,
) -> None:
    """Run `jev models`; see `HELP`."""
    with one_line_errors():
        server = server_url(context, url, here=bool(model or config))
        if server is not None:
            _show_served(_ask_server(server, api_key), as_json)
            return
        settings = load_settings(model, config)
        # Not `Path.resolve`, which raises for links that lead to each other.
        folders = {realpath(folder): folder for folder in (model_folder(settings), embedded.path())}
        _show_facts([_named(facts_of(folder), folder, settings.name) for folder in folders.values()], as_json)


def _named(facts: ModelFacts, folder: Path, name: str | None) -> ModelFacts:
    """Give the embedded model no name but its own."""
    return dataclasses.replace(facts, name=name) if name and folder != embedded.path() else facts


def _ask_server(url: str, api_key: str | None) -> list[ModelInfo]:
    try:
        client = Jev(url, api_key)
    except ValueError as error:
        raise UsageError(str(error)) from None
    with client:
        return client.models()


def _show_served(offered: list[ModelInfo], as_json: bool) -> None:
    if as_json:
        typer.echo(ModelList(models=offered).model_dump_json().encode())
        return
    screen = Screen.standard()
    table = screen.grid(3)
    for info in offered:
        table.add_row(
            Text(one_line(info.name), "bold"), info.release_date, Text(one_line(info.description), "dim")
        )
    screen.show(table)


def _show_facts(found: list[ModelFacts], as_json: bool) -> None:
    if as_json:
        body = {"models": [dataclasses.asdict(facts) for facts in found]}
        typer.echo(json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode())
        return
    screen = Screen.standard()
    for facts in found:
        screen.show(Text(one_line(facts.name), "bold"))
        screen.show(_table(screen, facts))


def _table(screen: Screen, facts: ModelFacts) -> Table:
    table = screen.grid(2)
    for title, value in (
        ("description", facts.description or "none"),
        ("released", facts.release_date or "unknown"),
        ("embedded", "yes: ships with the package" if facts.embedded else "no"),
        ("parameters", number(facts.parameters)),
        ("layers", str(facts.layers)),
        ("context", f"{facts.context} tokens"),
        ("labels", ", ".join(f"{kind} {count}" for kind, count in facts.labels.items())),
        ("weights", size(facts.file_bytes)),
        ("path", facts.path),
    ):
        table.add_row(Text(f"  {title}", "dim"), one_line(value))
    return table
