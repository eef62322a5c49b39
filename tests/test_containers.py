"""Proves that the container files fit the package and each other, and, where nginx is, that two servers
behind it answer as one.
"""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from jev.settings import Settings

ROOT = Path(__file__).parents[1]
NGINX = (ROOT / "deploy" / "nginx.conf").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
DOCKERFILE = (ROOT / "Dockerfile").read_text()
SERVERS = {name: one for name, one in COMPOSE["services"].items() if name != "nginx"}
DEFAULTS = Settings()


def test_the_image_gets_every_folder_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    copied = {
        source
        for line in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.MULTILINE)
        for source in line.split()[:-1]
    }
    folders = {"jev", *project["tool"]["setuptools"]["package-dir"].values()}
    assert copied == folders | {"pyproject.toml", "constraints.txt", project["project"]["readme"], "LICENSE"}
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert kept == copied
    (extras,) = re.findall(r"^ARG EXTRAS=(.+)$", DOCKERFILE, re.MULTILINE)
    assert set(extras.split(",")) <= project["project"]["optional-dependencies"].keys()


def test_what_the_containers_set_are_settings() -> None:
    names = set(re.findall(r"\bJEV_[A-Z_]+(?==)", DOCKERFILE.split("FROM", 2)[2]))
    for one in SERVERS.values():
        names |= {name for name in one["environment"] if name.startswith("JEV_")}
    assert names
    assert {name.removeprefix("JEV_").lower() for name in names} <= Settings.model_fields.keys()


def test_nginx_knows_every_server() -> None:
    listed = re.findall(r"upstream (\w+) \{(.*?)\}", NGINX, re.DOTALL)
    assert len(listed) == 2
    for _, block in listed:
        assert re.findall(r"server ([\w-]+):(\d+)", block) == [(name, str(DEFAULTS.port)) for name in SERVERS]
    assert COMPOSE["services"]["nginx"]["depends_on"].keys() == SERVERS.keys()
    volumes = [one["volumes"] for one in SERVERS.values()]
    assert len({volume for some in volumes for volume in some}) == sum(map(len, volumes)), "they share one"


def test_who_is_in_front_waits_longer_than_who_is_behind() -> None:
    def seconds(text: str, source: str) -> int:
        (found,) = set(re.findall(rf"\b{text}:? (\d+)s", source))
        return int(found)

    assert seconds("proxy_read_timeout", NGINX) > DEFAULTS.request_timeout_s
    assert seconds("client_body_timeout", NGINX) > DEFAULTS.body_timeout_s
    assert seconds("keepalive_timeout", NGINX) < DEFAULTS.keep_alive_s
    assert seconds("stop_grace_period", (ROOT / "compose.yaml").read_text()) > DEFAULTS.shutdown_timeout_s


QUESTION = {"q": {"type": "noul", "instructions": "Is it?"}}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def wait_for(url: str) -> None:
    give_up = time.monotonic() + 60
    while time.monotonic() < give_up:
        try:
            if httpx.get(url).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    raise AssertionError(f"{url} does not answer")


@pytest.fixture
def pair(tiny: Path, tmp_path: Path) -> Iterator[tuple[str, dict[str, subprocess.Popen[bytes]]]]:
    """The address of an nginx in front of two servers, and their processes by address."""
    program = shutil.which("nginx")
    if program is None:
        pytest.skip("nginx is not installed")
    ports = [free_port() for _ in range(3)]
    text = NGINX.replace("listen 8080", f"listen 127.0.0.1:{ports[2]}").replace("/tmp/", f"{tmp_path}/")
    text = text.replace("worker_processes auto", "worker_processes 1")
    for name, port in zip(SERVERS, ports, strict=False):
        text = text.replace(f"{name}:8000 max", f"127.0.0.1:{port} max")
    config = tmp_path / "nginx.conf"
    config.write_text(text)
    with ExitStack() as stack:
        servers: dict[str, subprocess.Popen[bytes]] = {}
        for port in ports[:2]:
            command = [sys.executable, "-m", "jev", "serve", "--model", str(tiny), "--port", str(port)]
            process = subprocess.Popen([*command, "--threads", "1"], stdout=subprocess.DEVNULL)
            stack.callback(process.wait)
            stack.callback(process.kill)
            servers[f"http://127.0.0.1:{port}"] = process
        command = [program, "-c", str(config), "-e", "stderr", "-g", "daemon off;"]
        proxy = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        stack.callback(proxy.wait)
        stack.callback(proxy.terminate)
        for url in servers:
            wait_for(f"{url}/ready")
        url = f"http://127.0.0.1:{ports[2]}"
        wait_for(f"{url}/ready")
        yield url, servers


@pytest.mark.slow
def test_two_servers_behind_nginx_are_one(pair: tuple[str, dict[str, subprocess.Popen[bytes]]]) -> None:
    url, servers = pair
    with httpx.Client(base_url=url, timeout=60) as client:

        def ask(**fields: Any) -> httpx.Response:
            return client.post("/v1/systemone", json={"state": "s", "questions": QUESTION, **fields})

        assert {ask().status_code for _ in range(10)} == {200}
        decided = [
            float(found.group(1))
            for one in servers
            if (found := re.search(r"^jev_reads_total (\S+)", httpx.get(f"{one}/metrics").text, re.MULTILINE))
        ]
        assert len(decided) == 2
        assert all(decided), "both decide"

        # An upload is on one of them, and found whichever decides.
        stored = client.post("/v1/files", files=[("file", ("a.txt", b"some words"))]).json()["files"][0]
        assert {ask(files=[{"file": stored["id"]}]).status_code for _ in range(6)} == {200}
        assert client.get(f"/v1/files/{stored['id']}").status_code == 200
        wrong = ask(samples=0)
        assert (wrong.status_code, wrong.json()["detail"][0]["loc"]) == (422, ["body", "samples"])
        assert client.get("/metrics").status_code == 404
        assert client.get("/v1/files/nothing").json()["detail"]["error_type"] == "not_found_error"

        first = next(iter(servers.values()))
        first.kill()
        first.wait()
        assert {ask().status_code for _ in range(6)} == {200}
        assert client.get("/ready").status_code == 200
