"""A text while it is written: finished canvases, and the one that is being refined."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.text import Text

if TYPE_CHECKING:
    from jev.engine import Engine
    from jev.model.denoise import Generation, Progress

_MARGIN = 3
"""Lines of the terminal that are left free, so that what is drawn can be drawn over."""


class Draft:
    """Draws a text's last lines: what stays as it is, and dim what is still being changed."""

    def __init__(self, live: Live, engine: Engine) -> None:
        self._live = live
        self._template = engine.context.template
        self._decode = engine.context.tokenizer.decode

    def show(self, generation: Generation, progress: Progress) -> None:
        """Draw the text as it is after a step."""
        text = Text(printable(self._decode(self._template.shown(generation.tokens))))
        if progress.canvas and not progress.final:
            pairs = zip(progress.canvas, progress.kept, strict=True)
            for kept, run in groupby(pairs, key=lambda pair: pair[1]):
                ids = [one for one, _ in run]
                text.append(printable(self._decode(self._visible(ids))), style="" if kept else "dim")
        title = f"canvas {progress.block + 1}, step {progress.step}"
        console = self._live.console
        lines = text.wrap(console, console.width)[-max(1, console.height - _MARGIN) :]
        body = Text("\n").join(lines)
        self._live.update(Text.assemble(body, "\n", (title, "cyan")), refresh=True)

    def _visible(self, ids: list[int]) -> list[int]:
        # A canvas is shown with its thoughts; only the finished text goes without them.
        return [one for one in ids if not self._template.is_control(one)]


@contextmanager
def drawing(console: Console, engine: Engine) -> Iterator[Draft]:
    """Draw on a terminal until the end of the block; nothing of it stays."""
    with Live(console=console, transient=True, auto_refresh=False) as live:
        yield Draft(live, engine)


def printable(text: str) -> str:
    """`text` without characters that could steer a terminal; line breaks and tabs stay."""
    return "".join(c if c.isprintable() or c in "\n\t" else "�" for c in text)
