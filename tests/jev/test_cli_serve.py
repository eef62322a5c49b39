"""Proves that `jev serve` serves what `jev ask --url` asks, stops cleanly, and refuses in one line."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from jev.model.embedded import NAME

KEY = "test-key"
BODY = {
    "model": "jev-latest",
    "state": "My card was charged twice.",
    "questions": {
        "payment": {"type": "noul", "instructions": "Is this about a payment?"},
        "topic": {"type": "choice", "criteria": {"billing": None, "größe": None}},
        "mood": {"type": "score", "criteria": ["calm", "furious"]},
    },
    "diagnostics": True,
    "unknown": 1,
}


def environment(**more: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("JEV_")}
    return {**kept, "OMP_NUM_THREADS": "1", **more}


def jev(*args: str, input: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "jev", *args]
    return subprocess.run(command, input=input, capture_output=True, timeout=300, env=environment())


@pytest.fixture(scope="module")
def process() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "jev", "serve", "--port", "0", "--name", "mine", "--log-json"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment(JEV_API_KEYS=KEY),
    ) as running:
        yield running
        running.kill()


@pytest.fixture(scope="module")
def url(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    killer = threading.Timer(120, process.kill)
    killer.start()
    line = process.stdout.readline()
    killer.cancel()
    match = re.fullmatch(r"jev listening on (http://127\.0\.0\.1:\d+) \(model mine\)\n", line)
    assert match, line
    return match[1]


def test_ask_prints_exactly_the_servers_response(url: str) -> None:
    raw = httpx.post(f"{url}/v1/systemone", json=BODY, headers={"authorization": f"Bearer {KEY}"}, timeout=60)
    done = jev(
        "ask", "--file", "-", "--url", url, "--api-key", KEY, "--json", input=json.dumps(BODY).encode()
    )
    assert done.returncode == 0, done.stderr

    def without_times(body: bytes) -> bytes:
        body = re.sub(rb'"\w+_ms":[\d.]+', b"", body)
        # The server has read the state by then.
        return re.sub(rb'"(cached|steps)":\d+', b"", body)

    assert without_times(done.stdout) == without_times(raw.content + b"\n")
    assert b'"x_warnings"' in done.stdout
    assert "größe".encode() in done.stdout


def test_the_answers_here_and_there_are_the_same(url: str) -> None:
    ask = ("ask", "x", "--noul", "q=Is it?", "--seed", "3", "--json")
    there = json.loads(jev(*ask, "--url", url, "--api-key", KEY).stdout)
    here = json.loads(jev(*ask).stdout)
    assert (there.pop("model"), here.pop("model")) == ("mine", NAME)
    assert there["answers"]["q"]["noul"] == pytest.approx(here["answers"]["q"]["noul"], abs=1e-6)
    assert there["usage"] == here["usage"]


def test_models_of_the_server(url: str) -> None:
    done = jev("models", "--url", url, "--api-key", KEY, "--json")
    assert "mine" in [row["name"] for row in json.loads(done.stdout)["models"]]


def test_a_wrong_key_is_one_line_and_exit_code_2(url: str) -> None:
    done = jev("ask", "x", "--noul", "q?", "--url", url, "--api-key", "wrong")
    assert done.returncode == 2
    assert done.stderr.startswith(b"error: ")
    assert done.stderr.count(b"\n") == 1


def test_a_port_in_use_is_one_line_and_exit_code_2() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        done = jev("serve", "--port", str(port))
    assert done.returncode == 2
    assert done.stderr.decode() == f"error: Cannot listen on 127.0.0.1:{port}: Address already in use\n"


def test_a_bad_settings_file_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_text("prot = 1\n")
    for option in ("--config", "--model"):
        done = jev("serve", option, str(file))
        assert done.returncode == 2
        assert done.stderr.decode() == f"error: {file}: unknown setting 'prot'; did you mean 'port'?\n"


def test_sigterm_stops_it_with_exit_code_0(process: subprocess.Popen[str], url: str) -> None:
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/health")
