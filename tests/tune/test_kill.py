"""Proves that a run that is killed at any step ends with the very bits of one that is not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tune_cases import job

from jev.tune.run import run

KILLING = Path(__file__).with_name("killing.py")


@pytest.mark.slow
def test_a_killed_run_ends_bit_identical(tmp_path: Path, small: Path) -> None:
    (tmp_path / "whole").mkdir()
    steady = job(tmp_path / "whole", small, full=True, steps=8, every=2, lr=0.01)
    report = run(steady)
    assert report is not None
    out = tmp_path / "out"
    questions = tmp_path / "questions.json"
    assert steady.questions is not None
    plain = {name: one.model_dump(mode="json") for name, one in steady.questions.items()}
    questions.write_text(json.dumps(plain))
    options = {
        "data": steady.data,
        "questions": questions,
        "model": small,
        "steps": 8,
        "batch": 4,
        "rank": 4,
        "every": 2,
        "lr": 0.01,
        "save-seconds": 0,
        "out": out,
    }
    arguments = [str(part) for name, value in options.items() for part in (f"--{name}", value)]
    command = [sys.executable, str(KILLING), str(out), "1,4", *arguments, "--full"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["code"] == 0, done.stderr
    assert all(0 < step < 8 for step in told["killed"])
    assert (out / "model.safetensors").read_bytes() == (steady.out / "model.safetensors").read_bytes()
    again = json.loads((out / "tune.json").read_text())
    assert again["training"]["curve"] == report["training"]["curve"]
    assert again["training"]["looks"] == report["training"]["looks"]
    assert again["after"] == report["after"]
    assert not list((out / "training").glob("*.pt*"))
