"""`serve` says where it listens once it can answer, survives bad clients, and stops gracefully."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving import PROGRAM, Server


@pytest.fixture
def spawn() -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def spawn(**options: Any) -> Server:
        servers.append(Server(**options))
        return servers[-1]

    yield spawn
    for server in servers:
        server.kill()


@pytest.fixture(scope="module")
def shared() -> Iterator[Server]:
    """One server for all tests that leave it as it was; impatient with connections that stall."""
    server = Server(extra="protocol.STALL_SECONDS = 0.5", keep_alive_s=1)
    yield server
    server.kill()


def test_it_says_where_it_listens_and_stops_cleanly(spawn: Callable[..., Server]) -> None:
    server = spawn()
    assert server.line == f"jev listening on http://127.0.0.1:{server.port} (model fake-1)"
    assert server.port > 0
    response = server.ask()
    assert response.status_code == 200
    assert "server" not in response.headers
    code, out, err = server.stop()
    assert (code, out) == (0, "stopped\n")
    lines = [json.loads(line) for line in err.splitlines()]
    assert [line["status"] for line in lines] == [200]
    assert lines[0]["id"] == response.headers["x-request-id"]


def test_ctrl_c_stops_cleanly(spawn: Callable[..., Server]) -> None:
    code, out, err = spawn().stop(signal.SIGINT)
    assert (code, out, err) == (0, "stopped\n", "")


def test_running_requests_finish_before_it_stops(spawn: Callable[..., Server]) -> None:
    server = spawn()
    answers: list[httpx.Response] = []
    threads = [threading.Thread(target=lambda: answers.append(server.ask(50))) for _ in range(2)]
    for thread in threads:
        thread.start()
    server.wait_for_pending(2)
    server.process.send_signal(signal.SIGTERM)
    with pytest.raises(httpx.TransportError):
        for _ in range(1000):
            httpx.get(f"{server.url}/health")
            time.sleep(0.01)
    for thread in threads:
        thread.join()
    assert [answer.status_code for answer in answers] == [200, 200]
    assert server.stop()[:2] == (0, "stopped\n")


def test_requests_that_take_too_long_to_finish_are_cut_off(spawn: Callable[..., Server]) -> None:
    server = spawn(shutdown_timeout_s=1)
    answers: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: answers.append(server.ask(100_000)))
    thread.start()
    server.wait_for_pending(1)
    started = time.perf_counter()
    code, out, _ = server.stop()
    thread.join()
    assert time.perf_counter() - started < 10
    assert code == 0
    assert out.splitlines()[-1] == "stopped"
    assert answers[0].status_code == 503
    assert answers[0].json()["detail"]["message"] == "The server is shutting down"


def test_a_client_that_hangs_up_stops_the_model(spawn: Callable[..., Server]) -> None:
    server = spawn()
    body = json.dumps({"state": "100000", "questions": {"q": {"type": "noul", "instructions": "?"}}}).encode()
    head = f"POST /v1/systemone HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    connection = socket.create_connection(("127.0.0.1", server.port))
    connection.sendall(head + body)
    server.wait_for_pending(1)
    connection.close()
    assert server.process.stdout is not None
    assert server.process.stdout.readline() == "cancelled\n"
    assert server.ask().status_code == 200
    lines = [json.loads(line) for line in server.stop()[2].splitlines()]
    assert [line["status"] for line in lines if line["path"] == "/v1/systemone"] == [499, 200]


def test_an_address_in_use_is_one_sentence(spawn: Callable[..., Server]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = spawn(port=port)
        assert server.line == f"error: Cannot listen on 127.0.0.1:{port}: Address already in use"
        assert server.ended()[0] == 1


def test_a_host_that_does_not_exist_is_one_sentence(spawn: Callable[..., Server]) -> None:
    server = spawn(host="no-such-host.invalid")
    assert server.line.startswith("error: Cannot listen on no-such-host.invalid:0: ")
    assert server.ended()[0] == 1


def test_a_model_that_cannot_be_loaded_ends_it(spawn: Callable[..., Server]) -> None:
    extra = """
    def load_engine(settings):
        raise SettingsError("model.safetensors is cut short")
    service.load_engine = load_engine
    """
    server = spawn(extra=extra, engine="None")
    assert server.line == "error: model.safetensors is cut short"
    code, _, err = server.ended()
    assert code == 1
    assert "the model could not be loaded: model.safetensors is cut short" in err
    assert "Traceback" not in err


def test_it_is_healthy_but_silent_while_the_model_loads(spawn: Callable[..., Server]) -> None:
    extra = """
    print("loading", flush=True)
    def load_engine(settings):
        sys.stdin.readline()
        return engine
    service.load_engine = load_engine
    listen = run._listen
    def shown(host, port):
        listener = listen(host, port)
        print("http://127.0.0.1:%d" % listener.getsockname()[1], flush=True)
        return listener
    run._listen = shown
    """
    program = PROGRAM.format(extra=textwrap.dedent(extra), engine="None", settings={"port": 0})
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(Path(__file__).with_name("conftest.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "loading\n"
        url = process.stdout.readline().strip()
        assert httpx.get(f"{url}/health", timeout=30).status_code == 200
        assert httpx.get(f"{url}/ready").status_code == 503
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline().startswith(f"jev listening on {url} ")
        assert httpx.get(f"{url}/ready").status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.communicate()


def test_it_can_be_stopped_while_the_model_loads(spawn: Callable[..., Server]) -> None:
    extra = """
    def load_engine(settings):
        print("loading", flush=True)
        time.sleep(3600)
    service.load_engine = load_engine
    """
    server = spawn(extra=extra, engine="None")
    assert server.line == "loading"
    code, out, _ = server.stop()
    assert (code, out) == (0, "stopped\n")


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/2\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",  # no Host
        b"GET / HTTP/1.1\r\nHost: localhost\r\nBad Header: y\r\n\r\n",
        b"POST /v1/systemone HTTP/1.1\r\nHost: localhost\r\nContent-Length: many\r\n\r\n",
        b"POST /v1/systemone HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 200,
        b"GET / HTTP/1.1\r\nHost: localhost\r\nA: " + b"a" * 1_000_000 + b"\r\n\r\n",
    ],
)
def test_bytes_that_are_not_http_get_a_400_in_json(shared: Server, data: bytes) -> None:
    head, _, body = shared.send(data).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"content-type: application/json" in head.lower()
    assert b"x-typesafe-request-id: req_" in head.lower()
    assert json.loads(body)["detail"]["error_type"] == "invalid_request_error"
    assert shared.ask().status_code == 200


def test_a_broken_chunk_does_not_disturb_the_next_client(shared: Server) -> None:
    data = b"POST /v1/systemone HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"
    assert shared.send(data).startswith(b"HTTP/1.1 400 ")
    assert shared.ask().status_code == 200


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GET / HT",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET / HT",
        b"POST /v1/models HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{",
    ],
)
def test_a_connection_that_stalls_is_closed(shared: Server, data: bytes) -> None:
    started = time.perf_counter()
    shared.send(data)
    assert 0.2 < time.perf_counter() - started < 5


def test_a_slow_answer_is_not_a_stall(shared: Server) -> None:
    assert shared.ask(120).status_code == 200


def test_a_connection_is_kept_for_further_requests(shared: Server) -> None:
    with httpx.Client(base_url=shared.url) as client:
        for _ in range(3):
            assert client.get("/health").status_code == 200
            assert client.post("/v1/systemone", content=b"{").status_code == 422
            assert client.post("/v1/models", content=b"x" * 100_000).status_code == 405
        pool: Any = client._transport
        assert len(pool._pool.connections) == 1


def test_a_websocket_is_declined_without_advice_in_the_log(spawn: Callable[..., Server]) -> None:
    server = spawn()
    head = b"HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, close\r\nUpgrade: websocket\r\n"
    key = b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    asked = server.send(b"GET /v1/systemone " + head + key)
    assert asked.startswith(b"HTTP/1.1 405 ")
    upgraded = server.send(b"GET /health " + head.replace(b"websocket", b"h2c") + b"\r\n")
    assert upgraded.startswith(b"HTTP/1.1 200 ")
    lines = [json.loads(line) for line in server.stop()[2].splitlines()]
    assert [line.get("status") for line in lines if line.get("path") != "/health"] == [405]


def test_an_ipv6_address_is_shown_in_brackets(spawn: Callable[..., Server]) -> None:
    server = spawn(host="::1")
    if server.line.startswith("error: "):
        pytest.skip("this machine has no IPv6")
    assert server.url == f"http://[::1]:{server.port}"
    assert httpx.get(f"{server.url}/health").status_code == 200
