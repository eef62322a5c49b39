"""What the benchmarks share: a server process of their own, quartiles, and how results are shown."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.table import Table

import jev._before_torch  # noqa: F401 - every script imports this file first, before torch

START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 30.0

_ADDRESS = re.compile(r"https?://[^\s()]+:\d+")


class ServerProcess:
    """`jev serve --port 0` in a process of its own, from `with` to the end of it.

    Args:
        settings: settings of the server by name (see `jev.settings`); None counts as not given.

    Attributes:
        url: the address it announced.
        pid: the process id.

    """

    def __init__(self, **settings: float | str | None) -> None:
        self.command = [sys.executable, "-m", "jev", "serve", "--port", "0"]
        given = {"log_level": "warning", **settings}
        self._environment = os.environ | {
            f"JEV_{name.upper()}": str(value) for name, value in given.items() if value is not None
        }

    def __enter__(self) -> Self:
        self._output = tempfile.NamedTemporaryFile(prefix="jev-serve-", suffix=".log")
        self._process = subprocess.Popen(
            self.command, stdout=self._output, stderr=subprocess.STDOUT, env=self._environment
        )
        self.pid = self._process.pid
        try:
            self.url = self._wait_for_address()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if (status := self._process.poll()) is not None:
            progress(f"{' '.join(self.command)} ended by itself, status {status}: {self._said()}")
        self.stop()

    def stop(self) -> None:
        """End the process, kindly first."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._output.close()

    def _said(self) -> str:
        """The end of what the server printed."""
        return Path(self._output.name).read_text(encoding="utf-8", errors="replace")[-2000:].strip()

    def _wait_for_address(self) -> str:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            ended = self._process.poll() is not None
            said = self._said()
            if ended:
                raise RuntimeError(f"{' '.join(self.command)} ended: {said}")
            if found := _ADDRESS.search(said):
                return found.group()
            time.sleep(0.05)
        raise RuntimeError(f"{' '.join(self.command)} announced no address in {START_TIMEOUT_S:.0f} s")


@dataclass(frozen=True)
class Quartiles:
    """The middle of repeated measurements and how far they spread."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Quartiles:
        """First quartile, median and third quartile; one value is all three."""
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        return cls(*statistics.quantiles(values, n=4, method="inclusive"))

    def shown(self, digits: int = 2) -> str:
        """`median (low to high)`."""
        return f"{self.median:.{digits}f} ({self.low:.{digits}f} to {self.high:.{digits}f})"


def parser_of(doc: str | None) -> argparse.ArgumentParser:
    """A parser that shows a script's docstring as it stands and takes no shortened options."""
    return argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """Add `--json [OUT]`; see `say`."""
    parser.add_argument(
        "--json",
        metavar="OUT",
        nargs="?",
        const="-",
        help="print one JSON object instead of tables, or write it to OUT beside them",
    )


def say(result: Mapping[str, Any], where: str | None) -> bool:
    """Give results as `--json` says; returns whether tables are wanted."""
    if where == "-":
        print(json.dumps(result))
    elif where is not None:
        Path(where).write_text(json.dumps(result) + "\n", encoding="utf-8")
    return where != "-"


def console() -> Console:
    """A console for results; wide enough for the tables when the output is a file."""
    found = Console()
    return found if found.is_terminal else Console(width=132)


def progress(text: str) -> None:
    """Say on stderr how far a long run is."""
    print(text, file=sys.stderr, flush=True)


def table(title: str, *columns: str) -> Table:
    """A table whose first column is text and whose other columns are numbers."""
    made = Table(title=title, title_justify="left", title_style="bold")
    for index, column in enumerate(columns):
        made.add_column(column, justify="left" if index == 0 else "right")
    return made


def verdict(met: bool) -> str:
    """How a target that is met or not is shown."""
    return "[green]met[/]" if met else "[bold red]NOT MET[/]"


def machine(threads: int | None) -> dict[str, Any]:
    """Set torch's threads here (None = torch decides) and return what is measured on."""
    import torch

    if threads is not None:
        torch.set_num_threads(threads)
    return {**machine_of_server(torch.get_num_threads()), "torch": torch.__version__}


def machine_of_server(threads: int | None) -> dict[str, Any]:
    """Return what is measured on where a server does the work, without loading torch here.

    `threads` are the server's; None = torch decides there.
    """
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "threads": "default" if threads is None else threads,
        "torch": version("torch"),
        "python": platform.python_version(),
    }


def machine_line(facts: Mapping[str, Any]) -> str:
    """One line for the head of a report."""
    return (
        f"{facts['cpu']}, {facts['cores']} cores, {facts['threads']} torch threads, "
        f"torch {facts['torch']}, Python {facts['python']}"
    )


def _cpu_name() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found.group(1) if found else platform.machine()
