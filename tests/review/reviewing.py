"""A review's page as its script asks it, and a `jev review --web` process."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from queue_lines import write

WAIT_S = 60


class Page:
    """What the page's script does."""

    client: httpx.Client

    def state(self) -> dict[str, Any]:
        return self.client.get("state").raise_for_status().json()

    def decide(self, do: str, **fields: Any) -> dict[str, Any]:
        made = {"at": self.state()["at"], "do": do, **fields}
        return self.client.post("decide", json=made).raise_for_status().json()


class Served(Page):
    """A `jev review --web` process, and a client of its page."""

    def __init__(self, folder: Path, *options: str) -> None:
        command = [
            sys.executable,
            "-m",
            "jev",
            "review",
            "queue.jsonl",
            "--out",
            "out.jsonl",
            "--web",
            "--json",
        ]
        self.process = subprocess.Popen(
            [*command, *options],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.late = threading.Timer(WAIT_S, self.process.kill)
        self.late.start()
        assert self.process.stderr is not None
        self.url = ""
        self.warnings: list[str] = []
        for text in self.process.stderr:
            if found := re.match(r"jev review on (http://127\.0\.0\.1:\d+/[\w-]{20,}/)", text):
                self.url = found[1]
                break
            self.warnings.append(text)
        self.client = httpx.Client(base_url=self.url, trust_env=False)

    def end(self) -> tuple[int, dict[str, Any], str]:
        """Wait for its end: exit code, summary and what else it said."""
        try:
            out, err = self.process.communicate(timeout=WAIT_S)
        finally:
            self.late.cancel()
        assert "Traceback" not in err
        return self.process.returncode, json.loads(out) if out else {}, err


@contextmanager
def served(folder: Path, lines: list[Any], *options: str) -> Iterator[Served]:
    write(folder / "queue.jsonl", lines)
    found = Served(folder, *options)
    try:
        yield found
    finally:
        found.process.kill()
        found.process.wait(WAIT_S)
        found.late.cancel()
        found.client.close()
