"""The public compatibility suite passes every MUST and every SHOULD, with a key and without."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

# `auth.bearer`, `auth.missing` and `auth.invalid` apply with a key, `auth.ignored-when-off` without.
MUST = 32
SHOULD_OPEN = 13
SHOULD_KEYED = 15


def run_suite(url: str, report: Path, *arguments: str) -> dict[str, Any]:
    program = "import sys; from jevcompat.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "test", url, "--json", str(report), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(report.read_text())


def check(report: dict[str, Any], should: int) -> None:
    assert [row["id"] for row in report["results"] if row["status"] not in ("pass", "skip")] == []
    assert report["aborted"] is None
    assert report["case_errors"] == []
    assert report["inconclusive"] == []
    summary = report["summary"]
    assert summary["conformant"] is True
    assert (summary["MUST"]["passed"], summary["MUST"]["failed"]) == (MUST, 0)
    assert (summary["SHOULD"]["passed"], summary["SHOULD"]["failed"]) == (should, 0)


def test_without_a_key(server: str, tmp_path: Path) -> None:
    report = run_suite(server, tmp_path / "report.json")
    check(report, SHOULD_OPEN)
    assert report["info"]["model_reported"] not in ("", "jev-latest")
    assert set(report["info"]["limits"].values()) == {255, 10}


def test_with_a_key(keyed_server: tuple[str, str], tmp_path: Path) -> None:
    url, key = keyed_server
    check(run_suite(url, tmp_path / "report.json", "--key", key), SHOULD_KEYED)
