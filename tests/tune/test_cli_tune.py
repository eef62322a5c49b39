"""Proves that `jev tune` lists every bad row, says what it takes, and refuses in one line what cannot be."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tune_cases import QUESTIONS, row, write
from typer.testing import CliRunner, Result

from jev.cli import app


def tune(folder: Path, base: Path, *arguments: str) -> Result:
    questions = folder / "questions.json"
    questions.write_text(json.dumps({name: one.model_dump(mode="json") for name, one in QUESTIONS.items()}))
    given = [
        "--data",
        folder / "rows.jsonl",
        "--questions",
        questions,
        "--model",
        base,
        "--out",
        folder / "out",
    ]
    return CliRunner().invoke(app, ["tune", *map(str, given), *arguments])


def test_bad_rows_are_all_listed_and_strict_stops(tmp_path: Path, small: Path) -> None:
    path = write(tmp_path / "rows.jsonl", [*map(row, range(8)), *[row(1, answers={"colour": "pink"})] * 9])
    options = ("--steps", "1", "--batch", "2", "--held-out", "0.25")
    strict = tune(tmp_path, small, *options, "--strict")
    assert strict.exit_code == 2
    assert strict.stderr.endswith("error: 9 rows are bad, and --strict was given; nothing was trained\n")
    for number in range(9, 18):
        assert f"bad: {path}: row {number}: answers.colour: 'pink' is none" in strict.stderr
    assert not (tmp_path / "out").exists()
    done = tune(tmp_path, small, *options, "--json")
    assert done.exit_code == 0
    assert "6 rows to learn from; 2 held out; 9 bad" in done.stderr
    assert "numbers are trained; memory: about " in done.stderr
    report = json.loads(done.stdout)
    assert [one["row"] for one in report["data"]["bad"]] == list(range(9, 18))
    again = tune(tmp_path, small, *options)
    assert "before" in again.stdout
    assert f"serve it with: jev serve --adapter tuned={tmp_path / 'out'}" in again.stdout


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--held-out", "none.jsonl"), "neither a share of the rows nor a file"),
        (("--held-out", "1"), "a share is at least 0 and less than 1"),
        (("--targets", "router"), "target 'router' is not one of q_proj"),
        (("--full", "--alpha", "2"), "--targets and --alpha have no meaning"),
        (("--name", "x"), "are for --full"),
        (("--full", "--dtype", "int8"), "all weights can only be trained in float32"),
        (("--lr", "0"), "lr: "),
        (("--lr", "1e9"), "lr: Input should be less than or equal to 1"),
        (("--instructions", "\udcff"), "instructions: Input cannot be sent"),
        (("--full", "--name", "a\nb"), "--name 'a\\nb': it is empty, or has control characters"),
        (("--minutes", "-1"), "minutes: "),
        (("--teacher", "nobody"), "--teacher: backend 'nobody': there is no kind"),
        (("--model", "no-such-folder"), "no-such-folder does not exist"),
        (("--data", "no-such-file"), "no-such-file: cannot be read"),
        (("--data", "x" * 300), "name too long"),
        (("--held-out", "x" * 300), "name too long"),
        (("--out", "x" * 300), "name too long"),
        (("--epochs", "1e308"), "epochs: Input should be less than or equal to 1000000"),
        (("--minutes", "1e308"), "minutes: Input should be less than or equal to 1000000"),
    ],
)
def test_what_cannot_be_is_one_line(tmp_path: Path, small: Path, options: tuple[str, ...], told: str) -> None:
    write(tmp_path / "rows.jsonl", map(row, range(4)))
    found = tune(tmp_path, small, "--steps", "1", *options)
    assert found.exit_code == 2
    (line,) = found.stderr.splitlines()
    assert line.startswith("error: ")
    assert told in line


@pytest.mark.parametrize("unusable", [{"answers": {"colour": "pink"}}, {"weight": 0}])
def test_a_held_out_file_without_a_usable_row_is_refused(
    tmp_path: Path, small: Path, unusable: dict[str, object]
) -> None:
    write(tmp_path / "rows.jsonl", map(row, range(4)))
    held_out = write(tmp_path / "held-out.jsonl", [row(7, **unusable)])
    found = tune(tmp_path, small, "--steps", "1", "--held-out", str(held_out))
    assert found.exit_code == 2
    assert f"error: {held_out}: no row is left to measure with" in found.stderr


def test_a_row_with_nothing_to_choose_from_is_listed(tmp_path: Path, small: Path) -> None:
    one = {"type": "choice", "instructions": "Which?", "criteria": {"only": None}}
    single = {"state": "x", "questions": {"which": one}, "answers": {"which": "only"}}
    path = write(tmp_path / "rows.jsonl", [single])
    found = tune(tmp_path, small, "--steps", "1")
    assert found.exit_code == 2
    assert f"bad: {path}: row 1: each of its questions has a single alternative" in found.stderr


def test_a_soft_label_that_no_float_holds_is_a_bad_row(tmp_path: Path, small: Path) -> None:
    huge = json.dumps(row(0, soft={"colour": {"red": 10**400}}))
    path = write(tmp_path / "rows.jsonl", [*map(row, range(3)), huge])
    done = tune(tmp_path, small, "--steps", "1", "--held-out", "0")
    assert done.exit_code == 0
    assert f"bad: {path}: row 4: soft.colour" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_the_teacher_is_asked_ends_the_run_at_once(
    tmp_path: Path, small: Path, number: signal.Signals
) -> None:
    """Though the teacher never answers."""
    write(tmp_path / "rows.jsonl", map(row, range(3)))
    with socket.create_server(("127.0.0.1", 0)) as teacher:
        teacher.settimeout(60)
        options = [
            "--data",
            "rows.jsonl",
            "--questions",
            "questions.json",
            "--model",
            str(small),
            "--out",
            "out",
        ]
        plain = {name: one.model_dump(mode="json") for name, one in QUESTIONS.items()}
        (tmp_path / "questions.json").write_text(json.dumps(plain))
        address = f"http://127.0.0.1:{teacher.getsockname()[1]}"
        command = [sys.executable, "-m", "jev", "tune", *options, "--teacher", address]
        with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
            teacher.accept()[0].recv(1)
            process.send_signal(number)
            try:
                _, told = process.communicate(timeout=30)
            finally:
                process.kill()
    assert process.returncode == 128 + number
    first = "stopping after what is in hand; once more stops at once"
    then = "stopped before the first step; what is done is kept, the same command goes on with the rest"
    assert told.endswith(f"{first}\n{then}\n")
    assert "Traceback" not in told
