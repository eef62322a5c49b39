"""`jev pull`: the files of a model from a model hub, checked."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text

from jev import configs
from jev.cli.console import Screen, one_line, size, spinner
from jev.cli.errors import FailureError, UsageError, one_line_errors
from jev.cli.options import JSON, config_file, flag
from jev.settings import Settings

if TYPE_CHECKING:
    from jev.pull.run import Pulled

HELP = """
Fetch the files of a model from a model hub, as the `pull` part of a settings file says.

\b
jev pull diffusiongemma-26b-a4b-q4
jev pull configs/diffusiongemma-26b-a4b-bf16.toml
jev pull diffusiongemma-26b-a4b-q4 --offline

Every file is checked against its pinned SHA-256, or else against what the hub states, also those that \
are here already. They go to the hub's usual cache (HF_HOME), under their names only once they are right; \
run it again to go on after a stop. HF_TOKEN is the token of an account, HF_ENDPOINT another hub.
"""

_INTERRUPTED = 130


def command(
    config: Annotated[
        str,
        typer.Argument(metavar="TOML|NAME", help="Settings file, or the name of one that ships with jev."),
    ],
    offline: Annotated[
        bool, flag("--offline", "Ask no hub: check what is here, and say what is missing.")
    ] = False,
    as_json: JSON = False,
) -> None:
    """Run `jev pull`; see `HELP`."""
    with one_line_errors():
        settings = Settings.load(config_file(config))
        if not settings.pull:
            raise UsageError(f"{config} pulls nothing; those that do: {', '.join(_pulling())}")
        try:
            pulled = _pull(settings, offline)
        except KeyboardInterrupt:
            typer.echo("stopped; run it again to go on from here", err=True)
            raise typer.Exit(_INTERRUPTED) from None
        _show(settings, pulled, as_json)


def _pulling() -> list[str]:
    """The names of the shipped configurations with something to pull."""
    paths = {name: configs.path(name) for name in configs.names()}
    return [name for name, path in paths.items() if path and Settings.load(path).pull]


def _pull(settings: Settings, offline: bool) -> list[Pulled]:
    try:
        from huggingface_hub import constants  # noqa: PLC0415 - it may not be installed

        from jev.pull.errors import HubError  # noqa: PLC0415
        from jev.pull.run import pull  # noqa: PLC0415
    except ImportError as error:
        raise FailureError(f"{error}: pip install 'jev-server[server]'") from None
    try:
        with _progress() as report:
            return pull(
                list(settings.pull.values()), offline=offline or constants.is_offline_mode(), report=report
            )
    except HubError as error:
        raise FailureError(str(error)) from error


def _show(settings: Settings, pulled: list[Pulled], as_json: bool) -> None:
    if as_json:
        body = {
            **{use: str(getattr(settings, use)) for use in settings.pull},
            "files": [dataclasses.asdict(one) for one in pulled],
        }
        typer.echo(json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode())
        return
    screen = Screen.standard()
    table = screen.grid(4)
    for one in pulled:
        pinned = Text("pinned", "green") if one.pinned else Text("as the hub states", "yellow")
        table.add_row(
            Text(one_line(one.name), "bold"), size(one.size), "fetched" if one.fetched else "was here", pinned
        )
    screen.show(table)
    if unpinned := [one for one in pulled if not one.pinned]:
        screen.show(Text("\nTo pin what is not:", "dim"))
        for one in unpinned:
            line = f'{json.dumps(one.name)} = {{ size = {one.size}, sha256 = "{one.sha256}" }}'
            screen.show(Text(line), wrap=False)
        screen.show("")
    for use in settings.pull:
        screen.show(Text(f"{use}: {getattr(settings, use)}"), wrap=False)


class _Bars:
    """A progress bar for each file on a terminal."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task: TaskID | None = None

    def begin(self, name: str, what: str, done: int, total: int | None) -> None:
        """Put a bar below the others, or a new one in place of this file's last."""
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._task = self._progress.add_task(f"{what} {one_line(name)}", total=total, completed=done)

    def advance(self, count: int) -> None:
        """Move the bar."""
        assert self._task is not None
        self._progress.advance(self._task, count)

    def retry(self, name: str, why: str, seconds: float) -> None:
        """Say it above the bar."""
        self._progress.console.print(f"{one_line(name)}: {one_line(why)}; again in {seconds:.0f} s")


class _Lines:
    """A line on stderr for each file, where there is no terminal."""

    def begin(self, name: str, what: str, done: int, total: int | None) -> None:
        """Name the file, and what of it is there."""
        if what == "fetching":
            there = f", {size(done)} are here" if done else ""
            of = "" if total is None else f" ({size(total)}{there})"
            typer.echo(f"{what} {one_line(name)}{of}", err=True)

    def advance(self, count: int) -> None:
        """Say nothing."""

    def retry(self, name: str, why: str, seconds: float) -> None:
        """Say it."""
        typer.echo(f"{one_line(name)}: {one_line(why)}; again in {seconds:.0f} s", err=True)


@contextmanager
def _progress() -> Iterator[_Bars | _Lines]:
    if not sys.stderr.isatty():
        yield _Lines()
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=spinner()) as progress:
        yield _Bars(progress)
