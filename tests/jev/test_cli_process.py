"""Proves that the installed command works as a process: answers, pipes, exit codes, start, missing extra."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from jev.model.embedded import NAME

COMMAND = Path(sys.executable).with_name("jev")

BLOCKED = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocker())
sys.argv = ["jev", *{args!r}]
from jev.__main__ import main
main()
"""


def run(
    *command: str | Path, input: bytes = b"", env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("JEV_")}
    return subprocess.run(
        command,
        input=input,
        capture_output=True,
        timeout=300,
        env={**kept, "OMP_NUM_THREADS": "1", **(env or {})},
    )


def run_without(blocked: set[str], *args: str) -> subprocess.CompletedProcess[bytes]:
    """Run the command line where some packages cannot be imported."""
    return run(sys.executable, "-c", BLOCKED.format(blocked=blocked, args=list(args)))


def test_asks_the_embedded_model_about_a_pipe() -> None:
    done = run(COMMAND, "ask", "--noul", "spam=Is it spam?", "--json", input=b"Buy now!\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(b"\n") == 1
    body = json.loads(done.stdout)
    assert body["model"] == NAME
    assert 0 < body["answers"]["spam"]["noul"] < 1
    assert done.stderr == b""


def test_python_m_jev_prints_a_table_that_any_encoding_can_hold() -> None:
    command = [sys.executable, "-m", "jev", "ask", "x", "--choice", "größe=klein,groß"]
    done = run(*command, env={"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == b"gr??e | choice"
    assert b"#" in done.stdout


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (["ask", "x", "--choice", "team"], b"error: --choice 'team': "),
        (["ask", "--noul", "q?"], b"error: standard input is empty"),
        (["ask", "x", "--noul", "q?", "--model-path", "/no/model"], b"error: /no/model does not exist"),
        (["serve", "--model", "/no/model"], b"error: /no/model does not exist"),
        (["serve", "--port", "99999"], b"error: port: "),
        (["models", "--model", "/no/model"], b"error: "),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(args: list[str], line: bytes) -> None:
    done = run(COMMAND, *args)
    assert done.returncode == 2
    assert done.stderr.startswith(line)
    assert done.stderr.count(b"\n") == 1
    assert done.stdout == b""


def test_an_unreachable_server_is_one_line_and_exit_code_1() -> None:
    done = run(COMMAND, "ask", "x", "--noul", "q?", "--url", "http://127.0.0.1:9")
    assert done.returncode == 1
    assert done.stderr.startswith(b"error: Cannot reach http://127.0.0.1:9: ")
    assert done.stderr.count(b"\n") == 1


def test_version() -> None:
    done = run(COMMAND, "--version")
    assert done.stdout.decode().strip() == f"jev {version('jev-server')}"


@pytest.mark.parametrize("command", [[], ["ask"], ["serve"], ["models"], ["doctor"]])
def test_help_starts_without_torch_or_a_web_framework(command: list[str]) -> None:
    script = (
        "import sys\n"
        f"sys.argv = ['jev', *{command!r}, '--help']\n"
        "from jev.__main__ import main\n"
        "try:\n    main()\nexcept SystemExit as done:\n    assert not done.code, done.code\n"
        "print(sorted({'torch', 'fastapi', 'uvicorn', 'tokenizers'} & set(sys.modules)))"
    )
    done = run(sys.executable, "-c", script)
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip().endswith(b"\n[]")


@pytest.mark.parametrize(
    ("blocked", "args", "missing"),
    [
        ({"typer", "rich"}, ["--version"], "typer"),
        ({"rich"}, ["ask", "x", "--noul", "q?"], "rich"),
        ({"torch"}, ["ask", "x", "--noul", "q?"], "torch"),
        ({"tokenizers"}, ["ask", "x", "--noul", "q?"], "tokenizers"),
        ({"uvicorn"}, ["serve"], "uvicorn"),
        ({"pydantic_settings"}, ["serve"], "pydantic_settings"),
    ],
)
def test_a_missing_extra_is_one_line_that_names_it(blocked: set[str], args: list[str], missing: str) -> None:
    done = run_without(blocked, *args)
    assert done.returncode == 2
    assert done.stderr.decode() == f"error: this needs {missing}: pip install 'jev-server[server]'\n"
    assert done.stdout == b""


@pytest.mark.parametrize(("blocked", "check"), [("torch", "torch"), ("tokenizers", "model")])
def test_doctor_says_what_is_missing_instead_of_failing(blocked: str, check: str) -> None:
    done = run_without({blocked}, "doctor", "--json")
    assert done.returncode == 1, done.stderr
    found = {one["name"]: one for one in json.loads(done.stdout)["checks"]}[check]
    assert found["status"] == "fail"
    assert blocked in found["detail"]
    assert found["fix"] == "pip install 'jev-server[server]'"


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    from jev.model.tiny import write_tiny_checkpoint

    model = write_tiny_checkpoint(tmp_path, layers=3, hidden=32, experts=4, top_k=2, vision=False)
    words = [
        COMMAND,
        "generate",
        "-p",
        "Hi",
        "--max-tokens",
        "2",
        "--max-denoising-steps",
        "1",
        "--model",
        model,
    ]
    done = run("sh", "-c", '"$@" > /dev/full', "sh", *words)
    assert (done.returncode, done.stderr) == (1, b"error: No space left on device\n")
