"""Proves that `jev doctor` finds what works, what does not and why, and that its exit code says which."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from jev import machine
from jev.cli import app, machine_checks, model_checks
from jev.cli.console import number, size
from jev.model import embedded


def doctor(*args: str) -> Result:
    return CliRunner().invoke(app, ["doctor", *args])


def checks_of(result: Result) -> dict[str, dict[str, Any]]:
    return {check["name"]: check for check in json.loads(result.stdout)["checks"]}


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JEV_MODEL", "JEV_DEVICE", "JEV_DTYPE", "JEV_HOST", "JEV_PORT", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def taken_port(monkeypatch: pytest.MonkeyPatch):
    """A port that something listens on, set as the server's."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        monkeypatch.setenv("JEV_PORT", str(port))
        yield port


def test_a_working_machine(taken_port: int) -> None:
    result = doctor("--json")
    body, checks = json.loads(result.stdout), checks_of(result)
    assert result.exit_code == 0, result.output
    assert body["ok"] is True
    assert "fail" not in {check["status"] for check in body["checks"]}
    for name in (
        "python",
        "processor",
        "cpu dtype",
        "extra server",
        "checkpoint",
        "model",
        "labels",
        "decision",
    ):
        assert checks[name]["status"] == "ok", checks[name]
    assert embedded.NAME in checks["model"]["detail"]
    assert "P(yes) 0." in checks["decision"]["detail"]
    assert checks[f"port {taken_port}"]["status"] == "warn"
    assert checks[f"port {taken_port}"]["fix"] == "jev serve --port 0"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what takes time and is not looked at."""
    monkeypatch.setattr(machine_checks, "_product_seconds", lambda dtype: 1.0)


@pytest.mark.usefixtures("quick")
class TestFailures:
    def test_a_missing_model_is_found_and_the_machine_is_looked_at_all_the_same(self) -> None:
        result = doctor("--model", "/no/model", "--json")
        checks = checks_of(result)
        assert result.exit_code == 1
        assert checks["model"]["status"] == "fail"
        assert "/no/model" in checks["model"]["detail"]
        assert checks["torch"]["status"] in ("ok", "warn")
        assert "decision" not in checks

    def test_bad_settings_are_a_finding(self, tmp_path: Path) -> None:
        file = tmp_path / "bad.toml"
        file.write_text("prot = 1")
        result = doctor("--config", str(file))
        assert result.exit_code == 1
        assert "unknown setting 'prot'" in result.stdout
        assert result.stdout.splitlines()[-1] == "jev does not work on this machine"
        assert "checkpoint" not in result.stdout

    def test_a_device_that_is_not_there(self) -> None:
        result = doctor("--device", "no-such-device", "--json")
        assert result.exit_code == 1
        assert "no-such-device" in checks_of(result)["model"]["detail"]

    def test_a_model_too_large_for_the_memory_is_not_loaded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("jev.planner.memory", lambda: (2**30, 2**20))
        monkeypatch.delattr(model_checks, "load_model")
        result = doctor("--json")
        assert result.exit_code == 1
        assert "MB, but only 1 MB of memory is free" in checks_of(result)["model"]["detail"]

    def test_a_model_that_answers_nonsense(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*args: object, **kwargs: object) -> None:
            raise ArithmeticError("the model gave a logit that is not finite")

        monkeypatch.setattr("jev.engine.Engine.run", fail)
        result = doctor("--json")
        assert result.exit_code == 1
        assert checks_of(result)["decision"] == {
            "name": "decision",
            "status": "fail",
            "detail": "the model gave a logit that is not finite",
            "fix": "",
        }

    def test_a_missing_package_of_the_server_extra(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(machine, "_installed", lambda name: name not in ("uvicorn", "ray"))
        result = doctor("--json")
        checks = checks_of(result)
        assert result.exit_code == 1
        assert checks["extra server"]["status"] == "fail"
        assert checks["extra server"]["detail"].startswith("uvicorn not installed")
        assert checks["extra server"]["fix"] == "pip install 'jev-server[server]'"
        assert checks["extra ray"]["status"] == "none"
        assert checks["extra ocr"]["status"] == "ok"


def test_too_many_threads_are_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_checks, "usable_cores", lambda: 0.5)
    monkeypatch.setattr("torch.get_num_threads", lambda: 8)
    check = machine_checks._torch("1.0")
    assert check.status == "warn"
    assert check.fix.startswith("--threads 1 ")


@pytest.mark.parametrize(
    ("fast", "advice"), [(0.1, "bfloat16 is 10.0x as fast"), (1.0, "float32 is the type")]
)
def test_the_sensible_type_is_measured(monkeypatch: pytest.MonkeyPatch, fast: float, advice: str) -> None:
    monkeypatch.setattr(
        machine_checks, "_product_seconds", lambda dtype: fast if "bfloat16" in str(dtype) else 1.0
    )
    assert advice in machine_checks._dtype().detail


class TestMachine:
    """Facts are read from files of the kernel, here replaced by what containers and Macs have."""

    @pytest.fixture
    def files(self, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
        found: dict[str, str] = {}
        monkeypatch.setattr(machine, "_read", lambda path: found.get(path, ""))
        return found

    def test_memory_of_a_container(self, files: dict[str, str]) -> None:
        files["/proc/meminfo"] = "MemTotal: 64000000 kB\nMemAvailable:   1000 kB\n"
        files["/sys/fs/cgroup/memory.max"] = "3000000\n"
        files["/sys/fs/cgroup/memory.current"] = "2500000\n"
        assert machine.memory() == (3000000, 500000)
        files["/sys/fs/cgroup/memory.stat"] = "anon 1\ninactive_file 1000\nactive_file 200\nfile 9\n"
        assert machine.memory() == (3000000, 501200)
        files["/sys/fs/cgroup/memory.max"] = "max\n"
        assert machine.memory()[1] == 1024000

    def test_memory_where_the_system_says_little(self, files: dict[str, str]) -> None:
        total, free = machine.memory()
        assert total > 2**20
        assert free is None
        assert machine.resident_bytes() > 2**20

    def test_cores_of_a_container(self, files: dict[str, str]) -> None:
        files["/sys/fs/cgroup/cpu.max"] = "50000 100000\n"
        assert machine.usable_cores() == 0.5
        files["/sys/fs/cgroup/cpu.max"] = "max 100000\n"
        assert machine.usable_cores() >= 1

    def test_vector_units(self, files: dict[str, str]) -> None:
        assert machine.cpu_flags() == []
        files["/proc/cpuinfo"] = "model name\t: Some CPU\nflags\t\t: fpu avx2 amx_bf16 avx512f_not\n"
        assert machine.cpu_flags() == ["avx2", "amx_bf16"]
        assert machine.cpu_name() == "Some CPU"


def test_every_extra_is_looked_at() -> None:
    assert "torch" not in machine.missing_packages("server")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "_installed", lambda name: False)
        assert {"torch", "typer", "python-multipart"} <= set(machine.missing_packages("server"))
        assert machine.missing_packages("ray") == ["ray"]
        assert machine.missing_packages("ocr") == ["rapidocr-onnxruntime"]


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (5 * 2**20, "5.0 MiB"), (3 * 2**40, "3.0 TiB")],
)
def test_size(count: int, shown: str) -> None:
    assert size(count) == shown


@pytest.mark.parametrize(("count", "shown"), [(999, "999"), (59_300_000, "59.3 M"), (26e9, "26.0 B")])
def test_number(count: float, shown: str) -> None:
    assert number(count) == shown
