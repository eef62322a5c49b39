"""`jev batch run` takes what is documented, says in one line what is wrong and ends with the right code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from jev.cli import app

ROWS = [{"id": f"r{n}", "state": f"state {n % 5}"} for n in range(8)]


@pytest.fixture
def folder(tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with rows and questions; the tiny model answers."""
    for name in [name for name in os.environ if name.startswith("JEV_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("JEV_MODEL", str(tiny))
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    questions = {
        "q": {"type": "noul", "instructions": "Is it?"},
        "team": {"type": "choice", "criteria": {"a": None, "b": None}},
    }
    Path("q.json").write_text(json.dumps(questions))
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["batch", *arguments])


def written(path: str = "out.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


JOB = ("run", "-i", "rows.jsonl", "-o", "out.jsonl", "-q", "q.json")


def test_from_rows_to_answers(folder: Path) -> None:
    done = run(*JOB, "--review-below", "1", "--json")
    assert done.exit_code == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["rows"], report["answered"], report["failed"], report["copied"]) == (8, 8, 0, 3)
    rows = written()
    assert [(row["row"], row["id"]) for row in rows] == [(n + 1, f"r{n}") for n in range(8)]
    assert rows[0]["answers"] == rows[5]["answers"]
    assert set(rows[0]["answers"]) == {"q", "team"}
    assert rows[0]["model"] == "tiny"
    review = written("out.review.jsonl")
    assert len(review) == 8
    assert [row["certainty"] for row in review] == sorted(row["certainty"] for row in review)
    assert review[0]["input"]["id"] == review[0]["id"]
    status = json.loads(run("status", "out.jsonl", "--json").stdout)
    assert (status["rows"], status["answered"], status["finished"]) == (8, 8, True)
    before = Path("out.jsonl").stat().st_mtime_ns
    again = run(*JOB)
    assert again.exit_code == 0
    assert Path("out.jsonl").stat().st_mtime_ns == before
    assert "8 rows: 8 answered (3 as copies of equal rows), 0 failed" in again.stdout


def test_the_same_numbers_as_one_request_at_a_time(folder: Path, tiny: Path) -> None:
    from jev import LocalJev

    assert run(*JOB, "--keep-input").exit_code == 0
    with LocalJev(tiny) as local:
        for row in written():
            alone = local.decide(row["input"]["state"], json.loads(Path("q.json").read_text()))
            assert row["answers"]["q"]["noul"] == pytest.approx(alone.nouls["q"].noul, abs=1e-5)


def test_failed_rows_have_a_reason_and_can_be_asked_again(folder: Path) -> None:
    with Path("rows.jsonl").open("ab") as file:
        file.write(b'{"state": "see", "attachments": ["note.txt"]}\n')
        file.write(b'{"state": "' + b"x" * 5_000_000 + b'"}\n')
        file.write(b'{"state": "\xff"}\n{"text": "no state"}\n')
    done = run(*JOB)
    assert done.exit_code == 3
    assert "12 rows: 8 answered (3 as copies of equal rows), 4 failed" in done.stdout
    assert "failed: row 9: Attachment 'note.txt': there is no such file" in done.stderr
    errors = {row["row"]: row["error"] for row in written() if "error" in row}
    assert {number: error["type"] for number, error in errors.items()} == {
        9: "attachment",
        10: "invalid_request_error",
        11: "invalid_utf8",
        12: "missing",
    }
    assert "Too long" in errors[10]["message"]
    whole = Path("out.jsonl").read_bytes()
    Path("note.txt").write_text("It is here now.")
    done = run(*JOB, "--retry-failed")
    assert done.exit_code == 3
    rows = written()
    assert "answers" in rows[8]
    assert Path("out.jsonl").read_bytes().splitlines()[:8] == whole.splitlines()[:8]
    assert len(rows) == 12


def test_a_job_from_a_file_with_flags_on_top(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("rows.csv").write_text("key,text\n1,hello\n2,world\n")
    Path("job.toml").write_text(
        'input = "rows.csv"\noutput = "out.parquet"\nstate_columns = ["text"]\nid_column = "key"\n'
        "keep_input = true\n[options]\nsamples = 2\nseed = 7\n"
        '[questions.q]\ntype = "score"\ninstructions = "How?"\ncriteria = ["low", "high"]\n'
    )
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    done = run("run", "../job.toml", "--seed", "8")
    assert done.exit_code == 0, done.stderr
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = parquet.read_table(folder / "out.parquet").to_pylist()
    assert [(row["id"], json.loads(row["input"])["text"]) for row in rows] == [("1", "hello"), ("2", "world")]
    assert 0 <= rows[0]["q"] <= 1
    refused = run("run", "../job.toml", "--seed", "9")
    assert refused.exit_code == 2
    assert "the job there has other options; --restart begins anew" in refused.stderr
    assert run("run", "../job.toml", "--seed", "9", "--restart").exit_code == 0


def test_a_dry_run_writes_nothing(folder: Path) -> None:
    done = run(*JOB, "--dry-run", "--price", "2", "--json")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["rows"], found["sampled"], found["equal"], found["probed"]) == (8, 8, 3, 5)
    assert found["seconds"] > 0
    assert run(*JOB).exit_code == 0
    status = json.loads(run("status", "out.jsonl", "--json").stdout)
    assert found["input_tokens"] == status["input_tokens"]
    assert found["cost"] == pytest.approx((status["input_tokens"] + status["output_tokens"]) / 1e6 * 2)
    assert "about" in run(*JOB, "--dry-run").stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-o", "out.jsonl", "-q", "q.json"], "input: Field required"),
        (["-i", "no.jsonl", "-o", "out.jsonl", "-q", "q.json"], "input no.jsonl: there is no such file"),
        (["-i", "rows.jsonl", "-o", "out.txt", "-q", "q.json"], "output out.txt: the name must end in"),
        (["-i", "rows.jsonl", "-o", "no/out.jsonl", "-q", "q.json"], "there is no folder no"),
        (["-i", "rows.jsonl", "-o", "rows.jsonl", "-q", "q.json"], "output rows.jsonl: it is the input"),
        (["-i", "rows.jsonl", "-o", "out.jsonl", "-q", "no.json"], "questions no.json: it cannot be read"),
        (["-i", "rows.jsonl", "-o", "out.jsonl", "-q", "rows.jsonl"], "questions rows.jsonl: JSON decode"),
        ([*JOB[1:], "--samples", "99"], "samples: Input should be less than or equal to 32"),
        ([*JOB[1:], "--noul", "x?"], "give one or the other"),
        ([*JOB[1:], "--group-rows", "0"], "group_rows: Input should be"),
        ([*JOB[1:], "--backend", "nonsense"], "there is no kind 'nonsense'"),
        ([*JOB[1:], "--unordered", "--keep-input"], "keep_input needs an ordered output"),
        ([*JOB[1:], "--review", "r.jsonl"], "review: it needs review_below"),
        ([*JOB[1:], "--model-path", "/no/model"], "/no/model does not exist"),
        ([*JOB[1:], "--model", "other"], "No model named 'other'"),
        ([*JOB[1:], "--calibration", "none"], "error: calibration: No calibration named 'none'"),
        ([*JOB[1:], "--url", "http://127.0.0.1:9", "--timeout", "0"], "--timeout must be more than 0"),
        ([*JOB[1:], "--review-below", "1", "--review", "rows.jsonl"], "review rows.jsonl: it is the input"),
        ([*JOB[1:], "--review-below", "1", "--review", "./out.jsonl"], "review out.jsonl: it is the output"),
        ([*JOB[1:], "--review-below", "1", "--review", "q.json"], "it is the file of the questions"),
        ([*JOB[1:], "--review-below", "1", "--review", "no/r.jsonl"], "there is no folder no"),
        ([*JOB[1:], "--attachments-root", "no"], "attachments_root no: there is no such folder"),
        ([*JOB[1:], "--id-column", "\udcff"], "id_column: Input should be a valid string"),
        ([*JOB[1:], "--dry-run", "--price", "nan"], "--price must be 0 or more"),
        (["job.toml"], "job.toml: it cannot be read"),
        (["-i", "rows.jsonl", "-o", "old.jsonl", "-q", "q.json"], "it exists already"),
    ],
)
def test_a_job_that_cannot_run_is_one_line(folder: Path, arguments: list[str], message: str) -> None:
    Path("old.jsonl").write_text("mine\n")
    done = run("run", *arguments)
    assert done.exit_code == 2, done.output
    assert message in done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert Path("old.jsonl").read_text() == "mine\n"


def test_an_output_among_the_files_that_are_the_input(folder: Path) -> None:
    done = run("run", "-i", ".", "-o", "out.jsonl", "-q", "q.json")
    assert (done.exit_code, "it is in the input's folder" in done.stderr) == (2, True)


def test_a_folder_of_files(folder: Path) -> None:
    Path("files").mkdir()
    Path("files/a.txt").write_text("A letter.")
    Path("files/b.pdf").write_bytes(b"%PDF-1.7 nothing behind it")
    done = run("run", "-i", "files", "-o", "out.jsonl", "-q", "q.json")
    assert done.exit_code == 3
    good, bad = written()
    assert (good["id"], bad["id"]) == ("a.txt", "b.pdf")
    assert "answers" in good
    assert "Attachment 'b.pdf': It is a damaged PDF file" in bad["error"]["message"]


def test_what_one_job_may_take_another_way(folder: Path) -> None:
    whole = run(*JOB, "--unordered")
    assert whole.exit_code == 0
    rows = written()
    again = run(*JOB, "--keep-input", "--group-rows", "3", "--no-dedup")  # nothing is asked again
    assert again.exit_code == 0
    assert [{**row, "input": ROWS[row["row"] - 1]} for row in rows] == written()


def test_rows_from_standard_input_are_kept(folder: Path) -> None:
    job = ("run", "-i", "-", "-o", "out.jsonl", "-q", "q.json")
    piped = Path("rows.jsonl").read_text()
    assert CliRunner().invoke(app, ["batch", *job], input=piped).exit_code == 0
    assert len(written()) == len(ROWS)
    Path("out.jsonl").unlink()
    assert run(*job).exit_code == 0  # nothing is piped in
    assert len(written()) == len(ROWS)


def test_a_job_files_backend_wins_over_the_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JEV_BASE_URL", "http://127.0.0.1:9")
    Path("job.toml").write_text('input = "rows.jsonl"\noutput = "out.jsonl"\nquestions = "q.json"\n')
    assert "Cannot reach http://127.0.0.1:9" in run("run", "job.toml", "--retries", "0").stderr
    with Path("job.toml").open("a") as file:
        file.write('backend = "torch"\n')
    assert "has other model" in run("run", "job.toml").stderr
    assert run("run", "job.toml", "--restart").exit_code == 0
    typed = run("run", "job.toml", "--restart", "--url", "http://127.0.0.1:8", "--retries", "0")
    assert "Cannot reach http://127.0.0.1:8" in typed.stderr


def test_help_starts_without_what_is_heavy() -> None:
    script = (
        "import sys\nfrom jev.cli import app\n"
        "app(['batch', 'run', '--help'], standalone_mode=False)\n"
        "print(sorted({'torch', 'numpy', 'pyarrow', 'fastapi', 'ray'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "--review-below" in done.stdout
    assert done.stdout.endswith("[]\n")


def test_status_of_no_job(folder: Path) -> None:
    done = run("status", "out.jsonl")
    assert done.exit_code == 2
    assert "there is no ledger here" in done.stderr


def test_a_server_that_is_not_there_stops_the_job(folder: Path) -> None:
    done = run(*JOB, "--url", "http://127.0.0.1:9", "--retries", "0")
    assert done.exit_code == 1
    assert "Cannot reach http://127.0.0.1:9" in done.stderr
    assert "0 of 8 rows are done and kept, the same command goes on with the rest" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_and_resumed(folder: Path, number: signal.Signals) -> None:
    rows = 3000
    Path("rows.jsonl").write_text("".join(f'{{"state": "row {n}"}}\n' for n in range(rows)))
    process = subprocess.Popen(
        [sys.executable, "-m", "jev", "batch", *JOB, "--group-rows", "8"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    partial = Path("out.jsonl.job/partial")
    wait_for(lambda: partial.exists() and partial.stat().st_size > 0)
    busy = run(*JOB)
    assert (busy.exit_code, "another process is running this job" in busy.stderr) == (2, True)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert "stopping after the rows in hand" in said
    assert f"of {rows:,} rows are done and kept" in said
    assert "Traceback" not in said
    status = json.loads(run("status", "out.jsonl", "--json").stdout)
    assert 0 < status["answered"] < rows
    assert not status["finished"]
    assert not Path("out.jsonl").exists()


def wait_for(ready: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not ready():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_restart_that_cannot_begin_loses_nothing(folder: Path) -> None:
    """Not the ledger, and not the only copy of what was piped in."""
    piped = Path("rows.jsonl").read_text()
    job = ("run", "-i", "-", "-o", "out.jsonl", "-q", "q.json")
    assert CliRunner().invoke(app, ["batch", *job], input=piped).exit_code == 0
    kept = {path: path.read_bytes() for path in Path("out.jsonl.job").iterdir()}
    for wrong, message in (
        (("run", "-i", "typo.jsonl", "-o", "out.jsonl", "-q", "q.json"), "there is no such file"),
        (("run", "-i", "rows.jsonl", "-o", "out.jsonl", "-q", "no.json"), "it cannot be read"),
        (job, "nothing is piped in"),
    ):
        done = run(*wrong, "--restart")
        assert (done.exit_code, message in done.stderr) == (2, True)
        assert Path("out.jsonl.job/input.jsonl").read_text() == piped
        assert json.loads(run("status", "out.jsonl", "--json").stdout)["answered"] == len(ROWS)
    assert {path.name for path in kept} >= {"input.jsonl", "ledger.sqlite"}
    Path("row.json").write_text('{"row": {"type": "noul", "instructions": "Is it?"}}')
    table = ("run", "-i", "-", "-o", "out.parquet", "-q", "q.json")
    assert CliRunner().invoke(app, ["batch", *table], input=piped).exit_code == 0
    refused = CliRunner().invoke(app, ["batch", *table[:-1], "row.json", "--restart"], input="{}\n")
    assert (refused.exit_code, "two columns named 'row'" in refused.stderr) == (2, True)
    assert Path("out.parquet.job/input.jsonl").read_text() == piped
    assert run(*table).exit_code == 0  # what was refused has changed nothing
    other = json.dumps({"state": "another"}) + "\n"
    assert CliRunner().invoke(app, ["batch", *job, "--restart"], input=other).exit_code == 0
    assert len(written()) == 1


def test_signals_are_heard_while_a_model_is_loaded(folder: Path) -> None:
    """The second one ends the process at once, wherever it is."""
    slow = (
        "import time\nimport jev.batch.opening as opening\n"
        "def load(*_, **__):\n    print('loading', flush=True)\n    end = time.monotonic() + 60\n"
        "    while time.monotonic() < end: time.sleep(0.05)\n"
        "opening.open_decider = load\nfrom jev.cli import app\napp()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", slow, "batch", *JOB], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "loading\n"
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=20)
    assert process.returncode == 128 + signal.SIGTERM
    assert "once more stops at once" in said


def test_names_that_are_no_utf8_are_shown(folder: Path) -> None:
    name = os.fsdecode(b"out\xff.jsonl")
    done = subprocess.run(
        [sys.executable, "-m", "jev", "batch", "run", "-i", "rows.jsonl", "-o", name, "-q", "q.json"],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "utf-8:strict"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "output: out\ufffd.jsonl" in done.stdout.decode()
    assert Path(name).is_file()


def test_a_sample_is_spread_over_all_rows(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where there are a few more rows than are looked at."""
    lines = [json.dumps({"state": f"{n}"}) if n < 300 else "{" for n in range(511)]
    Path("rows.jsonl").write_text("\n".join(lines))
    found = json.loads(run(*JOB, "--dry-run", "--json").stdout)
    assert found["rows"] == 511
    assert 200 < found["sampled"] <= 256
    assert found["bad"] / found["sampled"] == pytest.approx(211 / 511, abs=0.02)
    assert found["equal"] == 0
