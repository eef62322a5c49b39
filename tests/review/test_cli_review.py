"""Proves that `jev review` says in one line what is wrong, passes over bad rows, ends with the right code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from queue_lines import NOUL, items, line, write
from typer.testing import CliRunner, Result

from jev.cli import app
from jev.review import Store


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a queue of two rows, and the other files that options name."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "queue.jsonl", [line(1), line(2)])
    write(tmp_path / "q.json", [{"is": NOUL}])
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "circle.jsonl").symlink_to("circle.jsonl")
    write(tmp_path / "bad.jsonl", [{"state": "x"}, {"state": "y"}])
    return tmp_path


def review(*options: str) -> Result:
    return CliRunner().invoke(app, ["review", *options])


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["queue.jsonl", "--out", "out.jsonl"], "error: jev review reads keys from a terminal"),
        (
            ["queue.jsonl", "--out", "queue.jsonl"],
            "error: --out queue.jsonl: the review reads queue.jsonl, so",
        ),
        (
            ["out.skipped.jsonl", "--out", "out.jsonl"],
            "error: --out out.jsonl: the review reads out.skipped.jsonl",
        ),
        (
            ["queue.jsonl", "--out", "out.csv"],
            "error: --out out.csv: it must be a file whose name ends in .jsonl",
        ),
        (["-", "--out", "out.jsonl"], "error: QUEUE: it must be a file; standard input is where keys"),
        (["queue.jsonl", "--out", "circle.jsonl"], "error: --out circle.jsonl: it is a link in a circle"),
        (["no.jsonl", "--out", "out.jsonl"], "error: input no.jsonl: there is no such file or folder"),
        (["empty.jsonl", "--out", "out.jsonl"], "error: empty.jsonl: it has no rows"),
        (["queue.jsonl", "--out", "out.jsonl", "--port", "80"], "error: --port: it needs --web"),
        (["queue.jsonl", "--out", "out.jsonl", "--questions", "no.json"], "error: no.json: cannot be read"),
        (
            ["queue.jsonl", "--out", "out.jsonl", "--attachments-root", "no"],
            "error: --attachments-root no: there",
        ),
    ],
)
def test_what_cannot_run_is_one_line_and_exit_code_2(folder: Path, options: list[str], line: str) -> None:
    done = review(*options)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(line)
    assert done.stderr.count("\n") == 1
    assert not (folder / "out.jsonl").exists()
    assert not (folder / ".out.jsonl.lock").exists()


def test_a_file_of_bad_rows_names_them(folder: Path) -> None:
    done = review("bad.jsonl", "--out", "out.jsonl")
    assert done.exit_code == 2
    reason = "it brings no questions; give them with --questions; it is passed over"
    assert done.stderr.splitlines() == [
        f"warning: row 1: {reason}",
        f"warning: row 2: {reason}",
        "error: bad.jsonl: none of its rows can be reviewed",
    ]
    assert review("bad.jsonl", "--out", "out.jsonl", "-q", "q.json").exit_code == 2  # no such short option
    done = review("bad.jsonl", "--out", "out.jsonl", "--questions", "q.json")
    assert "reads keys from a terminal" in done.stderr  # now they can


@pytest.mark.parametrize(("bad", "code"), [([], 0), ([b"{"] * 7, 3)])
def test_with_nothing_left_it_needs_no_terminal(folder: Path, bad: list[Any], code: int) -> None:
    with Store(folder / "out.jsonl") as store:
        first, second = items(folder, [line(1), line(2)])
        store.answer(first, 0)
        store.unsure(second)
    write(folder / "queue.jsonl", [line(1), *bad, line(2)])
    with (folder / "out.jsonl").open("ab") as file:
        file.write(b'{"id": "torn')
    done = review("queue.jsonl", "--out", "out.jsonl", "--json")
    assert done.exit_code == code
    counts = {"before": 2, "reviewed": 0, "corrected": 0, "skipped": 0, "unsure": 0, "left": 0}
    assert json.loads(done.stdout) == {**counts, "bad": len(bad), "output": "out.jsonl"}
    warnings = done.stderr.splitlines()
    assert warnings[0] == "warning: out.jsonl: its last line was cut off and is dropped"
    assert len(warnings) == (1 if not bad else 7)
    if bad:
        assert warnings[1].startswith("warning: row 2: line 2: JSON decode error")
        assert warnings[-1] == "warning: 2 more rows are passed over"
