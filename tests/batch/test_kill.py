"""A job that is killed at any moment and run again loses no row, repeats none and writes the same bytes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from jev.model.tiny import write_tiny_checkpoint

HARNESS = Path(__file__).with_name("killing.py")
QUESTIONS = {
    "angry": {"type": "noul", "instructions": "Is it?"},
    "team": {"type": "choice", "criteria": {"a": None, "b": None, "c": None}},
}


def start(*arguments: str | Path, rows: int, kills: int = 0, seed: int = 1) -> subprocess.Popen[str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("JEV_")}
    return subprocess.Popen(
        [sys.executable, HARNESS, str(kills), str(rows), str(seed), *map(str, arguments)],
        env={**clean, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[list[int], int]:
    """Rows that were done at each kill, and the exit code of the run that was left alone."""
    printed, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    report = json.loads(printed)
    return report["killed"], report["code"]


def about(number: int, every: int) -> int:
    """What a row is about: every so-manieth is new, the others repeat any row before them."""
    return number if number % every == 0 else number * 7919 % (number // every + 1) * every


def write_job(folder: Path, rows: int, every: int, *asked: str) -> tuple[str | Path, ...]:
    questions = folder / "questions.json"
    questions.write_text(json.dumps({name: QUESTIONS[name] for name in asked}))
    with (folder / "in.jsonl").open("w") as file:
        for number in range(1, rows + 1):
            if number % 997 == 0:
                file.write("{broken\n")
                continue
            file.write(json.dumps({"id": f"r{number}", "state": f"row {about(number, every)}"}) + "\n")
    return ("--input", folder / "in.jsonl", "--questions", questions)


def check(output: Path, rows: int) -> None:
    lines = output.read_text().splitlines()
    assert [json.loads(line)["row"] for line in lines] == list(range(1, rows + 1))


@pytest.mark.slow
def test_twenty_thousand_rows_killed_twenty_times(tmp_path: Path) -> None:
    model = write_tiny_checkpoint(tmp_path / "tiny", layers=1, hidden=16, experts=2, top_k=1, vision=False)
    rows = 20_000
    job = (*write_job(tmp_path, rows, 6, "team"), "--model-path", model, "--samples", "1")
    whole, killed = tmp_path / "whole.jsonl", tmp_path / "killed.jsonl"
    runs = [
        start(*job, "--output", whole, rows=rows),
        start(*job, "--output", killed, rows=rows, kills=20),
    ]
    (_, untouched), (moments, resumed) = map(ended, runs)
    assert (untouched, resumed) == (3, 3)  # some rows are broken
    assert len(moments) == 20
    assert moments == sorted(moments)  # nothing that was done is ever undone
    assert sum(later > before for before, later in zip([0, *moments], moments, strict=False)) > 10
    assert moments[-1] < rows
    check(killed, rows)
    assert killed.read_bytes() == whole.read_bytes()
    assert not list(tmp_path.glob("killed.jsonl.job/partial*"))


@pytest.mark.slow
def test_the_embedded_model_in_this_process_and_over_http(tmp_path: Path, server: str) -> None:
    rows, every, kills, at_once = 24, 2, 3, 2
    distinct = len({about(number, every) for number in range(1, rows + 1)})
    job = (*write_job(tmp_path, rows, every, *QUESTIONS), "--samples", "1")
    here = (*job, "--group-rows", "4")
    there = (*job, "--url", server, "--concurrency", str(at_once))
    whole, killed, remote = (tmp_path / f"{name}.jsonl" for name in ("whole", "killed", "remote"))
    before = answered(server)
    runs = [
        start(*here, "--output", whole, rows=rows),
        start(*here, "--output", killed, rows=rows, kills=kills),
        start(*there, "--output", remote, rows=rows, kills=kills),
    ]
    (_, untouched), (moments, resumed), (distant, far) = map(ended, runs)
    assert (untouched, resumed, far) == (0, 0, 0)
    for done in (moments, distant):
        assert len(done) == kills
        assert 0 < done[-1] < rows
    check(killed, rows)
    assert killed.read_bytes() == whole.read_bytes()
    # A server packs what comes together, so the last digits are its own; the rows are the same.
    check(remote, rows)
    for one, other in zip(read(remote), read(whole), strict=True):
        assert one["id"] == other["id"]
        assert one["usage"] == other["usage"]
        assert one["answers"]["angry"]["noul"] == pytest.approx(other["answers"]["angry"]["noul"], abs=1e-5)
        assert one["answers"]["team"]["choice"] == other["answers"]["team"]["choice"]
    # Asked again was at most what was in flight when it was killed, or had just been answered.
    assert distinct <= answered(server) - before <= distinct + kills * (at_once + 2)


def read(output: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.read_text().splitlines()]


def answered(server: str) -> int:
    """Requests that a server has answered so far."""
    text = httpx.get(f"{server}/metrics").text
    found = re.search(
        r'^jev_requests_total\{path="/v1/systemone",status="200"\} ([0-9.]+)', text, re.MULTILINE
    )
    return int(float(found[1])) if found else 0
