"""The soak benchmark runs as documented, and tells leaks and failures that no kill explains from the rest."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
STEADY = {"server": 800, "workers": 300, "worker": 200, "threads": 12, "files": 25}


@pytest.fixture
def soak(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("soak")  # pyright: ignore[reportReturnType]


@pytest.mark.slow
def test_a_real_server(tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    command = [sys.executable, str(BENCHMARKS / "soak.py"), "--model", str(tiny), "--threads", "1"]
    command += ["--minutes", "0.1", "--warm-up", "0.03", "--every", "0.3", "--kill-every", "2"]
    done = subprocess.run([*command, "--json", out], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(out.read_text())
    assert len(report["samples"]) > 10
    assert all(one["server"] > 10**8 and one["threads"] > 2 for one in report["samples"])
    ended = {(one["kind"], one["outcome"]): one["requests"] for one in report["outcomes"]}
    assert ended["text", "200"] > 3
    assert any(kind == "batch" for kind, _ in ended)
    # In so few seconds memory, threads and open files are not yet what they will be.
    grown = ("grows", "no more")
    found = {
        one["wanted"]: one["met"]
        for one in report["targets"]
        if not any(words in one["wanted"] for words in grown)
    }
    assert len(found) == 3
    assert found == dict.fromkeys(found, True), done.stdout


def judged(
    soak: ModuleType,
    grown: Callable[[float], dict[str, int]] = lambda share: {},
    outcomes: dict[tuple[str, str], int] | None = None,
) -> list[str]:
    """What is not met after ten minutes with a warm-up of two, in which `grown` was added by their share."""
    samples = [
        soak.Sample(10.0 * number, requests=number, **{**STEADY, **grown(number / 60)})
        for number in range(61)
    ]
    traffic = SimpleNamespace(outcomes=Counter(outcomes or {("text", "200"): 9}), kills=2)
    targets: list[dict[str, Any]] = soak.judge(samples, traffic, True, 120.0)
    return [one["wanted"] for one in targets if not one["met"]]


def test_what_is_steady_passes(soak: ModuleType) -> None:
    assert judged(soak) == []
    assert judged(soak, lambda share: {"server": 700 if share < 0.1 else 800}) == [], "the warm-up"
    fine = {("attachment", "422"): 1, ("upload", "503"): 1, ("text", "529"): 3, ("text", "left"): 3}
    assert judged(soak, outcomes=fine) == []


@pytest.mark.parametrize(
    ("grown", "wanted"),
    [
        (lambda share: {"server": int(800 + 80 * share)}, "the server's memory"),
        (lambda share: {"worker": int(200 + 50 * share)}, "the largest worker"),
        (lambda share: {"threads": int(12 + 10 * share)}, "threads"),
        (lambda share: {"files": int(25 + 10 * share)}, "open files"),
    ],
    ids=["server", "workers", "threads", "files"],
)
def test_a_leak_is_told(soak: ModuleType, grown: Callable[[float], dict[str, int]], wanted: str) -> None:
    assert any(wanted in one for one in judged(soak, grown))


@pytest.mark.parametrize(
    "outcomes",
    [{("attachment", "422"): 3}, {("text", "503"): 1}, {("batch", "failed"): 1}, {("attachment", "500"): 1}],
    ids=["more than were killed", "text", "batch", "500"],
)
def test_a_failure_that_no_kill_explains_is_told(soak: ModuleType, outcomes: dict[Any, int]) -> None:
    assert len(judged(soak, outcomes=outcomes)) == 1
