"""How output looks: colour and blocks on a terminal, plain ASCII everywhere else."""

from __future__ import annotations

import io
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, RenderableType
from rich.table import Table

BAR_WIDTH = 24

_EIGHTHS = " ▏▎▍▌▋▊▉"


@dataclass(frozen=True)
class Screen:
    """Standard output: where to write, and whether only plain ASCII is wanted there."""

    console: Console
    plain: bool

    @classmethod
    def standard(cls) -> Screen:
        """Standard output; plain when it is no terminal, or NO_COLOR or TERM=dumb says so."""
        if isinstance(sys.stdout, io.TextIOWrapper):
            # An option's name may have characters that the terminal's encoding lacks.
            sys.stdout.reconfigure(errors="replace")
        console = Console(highlight=False, markup=False, emoji=False)
        plain = not console.is_terminal or console.no_color or console.is_dumb_terminal
        if plain:
            console = Console(
                highlight=False, markup=False, emoji=False, force_terminal=False, color_system=None
            )
        return cls(console, plain)

    def show(self, what: RenderableType, *, wrap: bool = True) -> None:
        """Print; plain lines end without spaces, and those that shall not wrap are as long as they are."""
        if not self.plain:
            self.console.print(what, soft_wrap=not wrap)
            return
        with self.console.capture() as captured:
            self.console.print(what, soft_wrap=not wrap)
        self.console.file.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))

    @property
    def separator(self) -> str:
        """What stands between the parts of a line."""
        return " | " if self.plain else " · "

    @property
    def mark(self) -> str:
        """What marks the winner."""
        return "*" if self.plain else "●"

    def bar(self, share: float, width: int = BAR_WIDTH) -> str:
        """A bar of at most `width` characters for a share in [0, 1]."""
        share = min(1.0, max(0.0, share))
        if self.plain:
            return "#" * round(share * width)
        return bar(share, width)

    def grid(self, columns: int) -> Table:
        """A table without lines, whose first column is narrow and whose texts fold when too long."""
        table = Table.grid(padding=(0, 2, 0, 0))
        for _ in range(columns):
            table.add_column(overflow="fold")
        return table


def bar(share: float, width: int = BAR_WIDTH) -> str:
    """A bar of at most `width` characters for a share in [0, 1], for a terminal."""
    full, eighths = divmod(round(share * width * 8), 8)
    return ("█" * full + _EIGHTHS[eighths]).rstrip()


def spinner() -> Console:
    """A console on stderr, for what is shown while one waits; it shows nothing where that is no terminal."""
    return Console(stderr=True, highlight=False, markup=False, emoji=False)


def one_line(text: str) -> str:
    """`text` on one line and without characters that could steer a terminal."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))


def shown(path: str | Path) -> str:
    """A path as text that any output takes, also one that is no UTF-8."""
    return os.fsencode(path).decode(errors="replace")


def size(count: float) -> str:
    """Bytes for people: 57.2 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def number(count: float) -> str:
    """A large count for people: 29.8 M."""
    for unit in ("", " K", " M"):
        if count < 1000:
            return f"{count:.0f}" if not unit else f"{count:.1f}{unit}"
        count /= 1000
    return f"{count:.1f} B"
