"""Proves that everything in examples/ runs as shown, in process or against a server."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from jev.model.embedded import NAME
from jev.schemas import parse_json, parse_request

EXAMPLES = Path(__file__).parents[1] / "examples"


def environment(**more: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("JEV_")}
    return {**kept, "OMP_NUM_THREADS": "1", **more}


def run(*command: str | Path, cwd: Path, **env: str) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, env=environment(**env), cwd=cwd, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def server_environment(keyed_server: tuple[str, str]) -> dict[str, str]:
    """The variables that name a server with the embedded model, and its key."""
    url, key = keyed_server
    return {"JEV_BASE_URL": url, "JEV_API_KEY": key}


def test_every_example_is_run_here() -> None:
    names = {file.name for file in EXAMPLES.iterdir() if file.is_file()}
    assert names == {"support_ticket.json", "decide_local.py", "decide_http.py", "curl.sh"}
    assert {file.name for file in (EXAMPLES / "learn").glob("*.py")} == {"loop.py", "sets.py"}


def test_support_ticket_has_no_field_that_nobody_knows() -> None:
    request, warnings = parse_request(parse_json((EXAMPLES / "support_ticket.json").read_bytes()))
    assert {question.type for question in request.questions.values()} == {"noul", "choice", "score"}
    assert warnings == []


def test_support_ticket_through_the_command_line(tmp_path: Path) -> None:
    file = EXAMPLES / "support_ticket.json"
    output = run(sys.executable, "-m", "jev", "ask", "--file", file, "--json", cwd=tmp_path)
    body = json.loads(output)
    assert list(body["answers"]) == list(json.loads(file.read_text())["questions"])
    assert body["answers"]["topic"]["choice"] == "billing"


def test_decide_local(tmp_path: Path) -> None:
    lines = run(sys.executable, EXAMPLES / "decide_local.py", cwd=tmp_path).splitlines()
    topics = [line.split()[1] for line in lines if line.startswith("  topic ")]
    assert topics == ["billing", "technical", "sales"]
    assert sum(line.startswith("  payment ") for line in lines) == 3
    assert sum(line.startswith("  severity ") for line in lines) == 3


def test_decide_http(server_environment: dict[str, str], tmp_path: Path) -> None:
    output = run(sys.executable, EXAMPLES / "decide_http.py", cwd=tmp_path, **server_environment)
    topics = [line.split()[0] for line in output.splitlines() if line.startswith("  ")]
    assert len(topics) == 3
    assert topics[:2] == ["billing", "technical"]


def test_decide_http_without_a_server_is_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLES / "decide_http.py"],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(JEV_BASE_URL="http://127.0.0.1:9"),
        cwd=tmp_path,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: Cannot reach http://127.0.0.1:9")


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl(server_environment: dict[str, str], tmp_path: Path) -> None:
    output = run("sh", EXAMPLES / "curl.sh", cwd=tmp_path, **server_environment)
    body = json.loads(output)
    assert body["model"] == NAME
    assert body["answers"]["topic"]["choice"] == "billing"


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_shows_the_servers_error(keyed_server: tuple[str, str], tmp_path: Path) -> None:
    done = subprocess.run(
        ["sh", EXAMPLES / "curl.sh"],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(JEV_BASE_URL=keyed_server[0]),
        cwd=tmp_path,
    )
    assert done.returncode != 0
    assert json.loads(done.stdout)["detail"]["error_type"] == "authentication_error"


@pytest.mark.slow
def test_learn_loop(tmp_path: Path) -> None:
    """From a batch to a served adapter; so short a tuning need not beat the model: the gate asks little."""
    loop = EXAMPLES / "learn" / "loop.py"
    few = ["--limit", "24", "--minutes", "0.2", "--processes", "1", "--measure", "24", "--floor", "0.2"]
    output = run(sys.executable, loop, *few, "--folder", tmp_path, cwd=tmp_path)
    assert "reviewed, " in output
    report = json.loads((tmp_path / "tickets" / "tune.json").read_text())
    assert report["training"]["steps"] >= 1
    assert "jev-latest: " in output
    assert "jev-latest+tickets: " in output


@pytest.mark.slow
def test_learn_sets(tmp_path: Path) -> None:
    """Two labels that every word gives away, learned from a folder as the data sets lie in."""
    data = tmp_path / "fruit"
    data.mkdir()
    for name, count in (("train", 24), ("test", 8)):
        rows = [
            {"id": f"{name}-{number}", "text": f"{word} {number}", "label": label}
            for number in range(count // 2)
            for word, label in (("carrot", "a_vegetable"), ("apple", "a_fruit"))
        ]
        with gzip.open(data / f"{name}.jsonl.gz", "wt", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    sets = EXAMPLES / "learn" / "sets.py"
    more = ["--minutes", "0.2", "--processes", "1", "--folder", tmp_path / "out", "--", "--rank", "2"]
    output = run(sys.executable, sets, data, *more, cwd=tmp_path)
    last = output.splitlines()[-1].split()
    assert last[:2] == ["fruit", "2"]
    assert float(last[4]) >= float(last[2])
    report = json.loads((tmp_path / "out" / "fruit" / "adapter" / "tune.json").read_text())
    assert report["recipe"]["rank"] == 2
