"""What `jev calibrate` and `jev thresholds` share: labelled rows, a backend, and asking all of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from jev.cli.console import one_line, spinner
from jev.cli.errors import FailureError, UsageError
from jev.cli.options import REQUEST, Layout, config_file
from jev.settings import Settings

if TYPE_CHECKING:
    from jev.backends import Backend
    from jev.calibration.gather import Gathered
    from jev.calibration.identity import Identity
    from jev.quality.data import LabelledRow

MAX_NAMED = 3


Data: TypeAlias = Annotated[
    Path, typer.Option(metavar="JSONL", help="Labelled rows: state, answers and perhaps questions.")
]
QuestionFile: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="JSON", help="Questions for rows without their own, by id.")
]
BackendText: TypeAlias = Annotated[
    str,
    typer.Option(
        "--backend", metavar="SPEC", help="Who answers, such as torch, torch+ADAPTER or torch:bf16=DIR."
    ),
]
Config: TypeAlias = Annotated[str | None, typer.Option(metavar="TOML", help="Settings file.")]
Cache: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Keep answers here, so that a second run asks nothing.")
]
Instructions: TypeAlias = Annotated[
    str | None, typer.Option(metavar="TEXT", help="Text before all questions.", rich_help_panel=REQUEST)
]
LayoutOption: TypeAlias = Annotated[
    Layout | None, typer.Option(help="Each question alone, or all on one canvas.", rich_help_panel=REQUEST)
]
Permutations: TypeAlias = Annotated[
    int | None,
    typer.Option(
        metavar="N", min=1, max=32, help="Rotations of a choice's options.", rich_help_panel=REQUEST
    ),
]


@dataclass(frozen=True)
class Work:
    """Labelled rows and whom to ask about them.

    Attributes:
        rows: those with reviewed answers.
        backend: the spec of who answers.
        settings: of a model that runs here.
        options: request fields.
        cache: where answers are kept.
    """

    rows: list[LabelledRow]
    backend: str
    settings: Settings
    options: dict[str, Any]
    cache: Path | None

    @classmethod
    def of(
        cls,
        data: Path,
        questions: Path | None,
        backend: str,
        config: str | None,
        cache: Path | None,
        adapters: list[str] | None = None,
        **options: Any,
    ) -> Work:
        """Read everything that the command names; options that are None are not given.

        Raises:
            JevError: one sentence that names what cannot be used.
        """
        from jev.calibration.gather import request_of, useful  # noqa: PLC0415 - numpy
        from jev.quality.data import read_questions, read_rows  # noqa: PLC0415 - only these commands do

        given = {name: value for name, value in options.items() if value is not None}
        if isinstance(given.get("layout"), Layout):
            given["layout"] = given["layout"].value
        if "samples" in given:
            given["samples"] = _samples(given["samples"])
        asked = None if questions is None else read_questions(questions)
        rows = useful(read_rows(data, asked))
        request_of(rows[0], given)  # bad options are found before a model is loaded
        settings = Settings.load(config_file(config), adapters=adapters or None)
        return cls(rows, backend, settings, given, cache)

    def check_enough(self, least: int) -> None:
        """Refuse what cannot be enough for any question, before a model is loaded.

        Raises:
            UsageError: there are fewer labelled answers than one question needs.
        """
        answers = sum(len(row.gold) for row in self.rows)
        if answers < least:
            raise UsageError(f"the data have {answers} labelled answers; a question needs {least}")

    def gather(self, *, identify: bool) -> tuple[Gathered, Identity | None]:
        """Load the backend and ask it everything, with progress on a terminal.

        Args:
            identify: whether to find out which weights and prompts answer.

        Raises:
            JevError: one sentence that says why it cannot be done.
        """
        return asyncio.run(self._gather(identify))

    async def _gather(self, identify: bool) -> tuple[Gathered, Identity | None]:
        from jev.calibration.gather import gather, identity_of  # noqa: PLC0415 - numpy
        from jev.quality.cache import ReplyCache  # noqa: PLC0415 - only these commands do

        with ReplyCache(self.cache) if self.cache is not None else nullcontext() as cache:
            backend = self._open()
            try:
                identity = await identity_of(backend) if identify else None
                with _progress(len(self.rows)) as step:
                    found = await gather(self.rows, backend, self.options, cache=cache, done=step)
            finally:
                await backend.aclose()
        _tell_failures(found)
        return found, identity

    def _open(self) -> Backend:
        from jev.backends import open_backend  # noqa: PLC0415 - the SDK's part of it is not small
        from jev.errors import JevError  # noqa: PLC0415
        from jev.model.errors import CheckpointError  # noqa: PLC0415

        try:
            with spinner().status("loading the model"):
                return open_backend(self.backend, self.settings)
        except (JevError, CheckpointError):
            raise
        except ValueError as error:
            raise UsageError(str(error)) from None
        except (RuntimeError, MemoryError) as error:
            raise FailureError(f"the model cannot be loaded: {error or type(error).__name__}") from error


@contextmanager
def _progress(rows: int) -> Generator[Callable[[], None]]:
    """A bar on stderr where that is a terminal; gives what to call after each row."""
    from rich.progress import Progress  # noqa: PLC0415 - not everyone looks at a bar

    console = spinner()
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("Asking", total=rows)
        yield lambda: progress.advance(task)


def _tell_failures(found: Gathered) -> None:
    """Name rows without an answer on stderr.

    Raises:
        UsageError: no row was answered.
    """
    if not found.failures:
        return
    named = "; ".join(f"row {number}: {one_line(reason)}" for number, reason in found.failures[:MAX_NAMED])
    more = f"; and {len(found.failures) - MAX_NAMED} more" if len(found.failures) > MAX_NAMED else ""
    if not found.questions:
        raise UsageError(f"no row was answered: {named}{more}")
    typer.echo(f"warning: {len(found.failures)} rows were not answered: {named}{more}", err=True)


def _samples(text: str) -> int | str:
    if text == "auto":
        return text
    if text.isascii() and text.isdigit():
        return int(text)
    raise UsageError(f"--samples {text!r}: give a number from 1 to 32, or auto")
