"""The command line: `jev ask`, `serve` and the other commands, one module each.

Importing this loads neither torch nor a web framework; each command loads what it needs.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from jev.cli import (
    adapter,
    ask,
    batch,
    calibrate,
    doctor,
    generate,
    models,
    pull,
    quality,
    review,
    serve,
    thresholds,
    tune,
)

__all__ = ["app"]

app = typer.Typer(
    name="jev",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("ask", help=ask.HELP)(ask.command)
app.command("generate", help=generate.HELP)(generate.command)
app.command("serve", help=serve.HELP)(serve.command)
app.command("models", help=models.HELP)(models.command)
app.command("pull", help=pull.HELP)(pull.command)
app.command("doctor", help=doctor.HELP)(doctor.command)
app.command("calibrate", help=calibrate.HELP)(calibrate.command)
app.command("thresholds", help=thresholds.HELP)(thresholds.command)
app.command("tune", help=tune.HELP)(tune.command)
app.add_typer(quality.app)
app.add_typer(adapter.app)
app.add_typer(batch.app, name="batch", help="Decide the rows of a file, with a ledger that survives kills.")
app.command("review", help=review.HELP)(review.command)


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"jev {version('jev-server')}")
        raise typer.Exit


@app.callback()
def root(
    show: Annotated[
        bool,
        typer.Option(
            "--version",
            metavar="",
            callback=_show_version,
            is_eager=True,
            help="Show the version and exit.",
        ),
    ] = False,
) -> None:
    """Typed decisions: give a state and questions, get a probability for every answer."""
