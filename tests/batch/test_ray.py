"""A job on a real Ray gives the very bytes that it gives without, also when an actor is killed at work."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from jev.batch.ledger import Ledger
from jev.batch.outcome import Outcome
from jev.batch.ray_engine import MAX_PARTS, parts_of

ROWS = 240
GROUP = 8
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith(("JEV_", "RAY_"))},
    "OMP_NUM_THREADS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
QUESTIONS = {
    "new": {"type": "noul", "instructions": "Is it new?"},
    "kind": {"type": "choice", "instructions": "What is it?", "criteria": {"a": None, "b": None}},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with an input: most rows differ, some are equal over parts, some are bad."""
    lines = [json.dumps({"id": f"row {i}", "state": f"state {i % (ROWS - 40)}"}) for i in range(ROWS)]
    lines[3] = "{"
    lines[ROWS - 2] = json.dumps({"id": "no state"})
    (tmp_path / "rows.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (tmp_path / "questions.json").write_text(json.dumps(QUESTIONS), encoding="utf-8")
    return tmp_path


def job(folder: Path, tiny: Path, output: str, *more: str) -> subprocess.Popen[str]:
    """Start `jev batch run` in the folder."""
    given = ["--input", "rows.jsonl", "--questions", "questions.json", "--output", output]
    given += ["--model-path", str(tiny), "--group-rows", str(GROUP), "--json", *more]
    return subprocess.Popen(
        [sys.executable, "-m", "jev", "batch", "run", *given],
        cwd=folder,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> dict[str, int]:
    """Wait for a job and return its report."""
    out, err = process.communicate(timeout=240)
    assert process.returncode == 3, err  # finished, and some rows failed
    return json.loads(out)


def actors_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The processes below a job that hold a model."""
    found = []
    for child in psutil.Process(process.pid).children(recursive=True):
        try:
            if "PartDecider" in " ".join(child.cmdline()):
                found.append(child)
        except psutil.Error:
            continue
    return found


def when_done(folder: Path, output: str, rows: int, process: subprocess.Popen[str]) -> None:
    """Wait until a job has entered so many rows."""
    from jev.batch import JobError
    from jev.batch.ledger import read_totals

    for _ in range(2400):
        assert process.poll() is None, process.communicate()[1]
        try:
            if read_totals(folder / f"{output}.job" / "ledger.sqlite")[0].done >= rows:
                return
        except JobError:
            pass
        time.sleep(0.05)
    raise AssertionError("the job does not get on")


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        children = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        for one in (process, *children):
            one.kill()
        process.communicate()


@pytest.mark.slow
def test_killing_an_actor_loses_nothing_and_repeats_nothing(
    folder: Path, tiny: Path, processes: list[subprocess.Popen[str]]
) -> None:
    processes.append(job(folder, tiny, "ray.jsonl", "--engine", "ray", "--actors", "2"))
    processes.append(job(folder, tiny, "plain.jsonl"))
    report = ended(processes[1])
    assert (report["rows"], report["failed"]) == (ROWS, 2)
    assert report["copied"] >= 38

    when_done(folder, "ray.jsonl", 2 * GROUP, processes[0])
    actors = actors_of(processes[0])
    assert len(actors) == 2
    actors[0].kill()
    same = ended(processes[0])
    figures = ("rows", "answered", "failed", "copied", "input_tokens", "output_tokens")
    assert {name: same[name] for name in figures} == {name: report[name] for name in figures}
    assert (folder / "ray.jsonl").read_bytes() == (folder / "plain.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("total", "done", "parts"),
    [
        (0, [], []),
        (1, [], [[(1, 1)]]),
        (10, [], [[(1, 4)], [(5, 8)], [(9, 10)]]),
        (10, [1, 2, 3, 4], [[(5, 8)], [(9, 10)]]),
        (10, [1, 2, 3], [[(4, 4)], [(5, 8)], [(9, 10)]]),
        (10, [1, 5, 6, 8, 10], [[(2, 4)], [(7, 7)], [(9, 9)]]),
        (10, [2, 6], [[(1, 1), (3, 4)], [(5, 5), (7, 8)], [(9, 10)]]),
        (10, list(range(1, 11)), []),
    ],
)
def test_every_open_row_is_in_one_part_and_groups_stay_whole(
    tmp_path: Path, total: int, done: list[int], parts: list[list[tuple[int, int]]]
) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    ledger.add(Outcome(number, None, {"error": {"message": "x"}}) for number in done)
    assert list(parts_of(ledger, total, 4)) == parts
    ledger.close()


def test_a_long_job_has_larger_parts_and_not_more_of_them(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    parts = list(parts_of(ledger, 1_000_001, 64))
    ledger.close()
    assert len(parts) <= MAX_PARTS
    assert all(first % 64 == 1 for ((first, _),) in parts)
    assert sum(last - first + 1 for ((first, last),) in parts) == 1_000_001


@pytest.mark.slow
def test_what_every_row_would_be_told_stops_the_job(folder: Path, tiny: Path) -> None:
    """As without Ray: one line, exit code 2, and no row entered as failed."""
    process = job(folder, tiny, "out.jsonl", "--engine", "ray", "--calibration", "missing")
    _, err = process.communicate(timeout=240)
    assert process.returncode == 2, err
    assert "No calibration named 'missing' is loaded" in err
    assert f"0 of {ROWS} rows are done and kept" in err


def test_a_server_is_asked_without_ray(folder: Path, tiny: Path) -> None:
    process = job(folder, tiny, "out.jsonl", "--engine", "ray", "--backend", "systemone=http://127.0.0.1:9")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "is a server, which is asked without Ray" in err
