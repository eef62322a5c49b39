"""The benchmarks of batches run as documented, and a job's memory does not grow with its rows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def report(script: str, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, str(BENCHMARKS / script), *arguments, "--threads", "1", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_memory_stays_flat() -> None:
    found = report("batch_memory.py", "--rows", "12000", "--distinct", "1000", "--baseline", "0.25")
    assert found["samples"][-1]["rows"] > 9000
    assert found["growth"] < 0.05  # nine thousand rows of half a kilobyte would be more


@pytest.mark.slow
def test_a_batch_beside_a_server() -> None:
    found = report("batch.py", "--rows", "4", "--rounds", "1")
    (one,) = found["rounds"]
    assert one["batch"] > 0
    assert one["server"] > 0
    assert found["ratio"]["median"] == pytest.approx(one["batch"] / one["server"])
