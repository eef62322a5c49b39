"""Over a real socket the clients decide, reuse connections, time out, and name what broke."""

import asyncio
import gzip
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from jev import AsyncJev, ConnectionError, Jev, Noul, ResponseError, RetryPolicy, TimeoutError

QUESTIONS = {"a": Noul("Is it?")}
ONCE = RetryPolicy(max_retries=0)


class Handler(BaseHTTPRequestHandler):
    """Answers P(yes) = the state's length / 100; some states make it misbehave."""

    protocol_version = "HTTP/1.1"
    server: "Server"  # type: ignore[assignment]

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            content = gzip.decompress(content)
        state = json.loads(content)["state"]
        with self.server.lock:
            self.server.peers.add(self.client_address)
            self.server.states.append(state)
            fresh = self.server.states.count(state) == 1
        if state == "slow":
            self.server.closing.wait(5)
        if state == "reset" or (state == "reset once" and fresh):
            self.close_connection = True
            return
        answer = {"a": {"type": "noul", "noul": min(len(state) / 100, 1)}}
        body = {"model": "m", "answers": answer, "usage": {"input_tokens": 1, "output_tokens": 1}}
        sent = json.dumps(body).encode()
        self.send_response(200)
        if state == "garbled":
            self.send_header("content-encoding", "gzip")
        self.send_header("content-length", str(len(sent) + (9 if state == "cut" else 0)))
        self.end_headers()
        self.wfile.write(sent)
        self.close_connection = state == "cut"

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.lock = threading.Lock()
        self.peers: set[Any] = set()
        self.states: list[str] = []
        self.closing = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.closing.set()
        server.shutdown()
        thread.join()


def decide(kind: str, url: str, state: str, **client: Any) -> float:
    if kind == "sync":
        with Jev(url, **client) as jev:
            return jev.decide(state, QUESTIONS).nouls["a"].noul

    async def run() -> float:
        async with AsyncJev(url, **client) as jev:
            return (await jev.decide(state, QUESTIONS)).nouls["a"].noul

    return asyncio.run(run())


both = pytest.mark.parametrize("kind", ["sync", "async"])


@both
def test_decides_over_a_socket(kind: str, server: Server) -> None:
    assert decide(kind, server.url, "x" * 42) == 0.42
    assert decide(kind, server.url, "y" * 5000, compression=True) == 1.0
    assert server.states == ["x" * 42, "y" * 5000]


@both
def test_a_real_timeout(kind: str, server: Server) -> None:
    begin = time.monotonic()
    with pytest.raises(TimeoutError, match=f"No answer from {server.url} within 0.2 s"):
        decide(kind, server.url, "slow", timeout=0.2, retry=ONCE)
    assert time.monotonic() - begin < 3


@both
def test_a_closed_port(kind: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(ConnectionError, match=f"Cannot reach http://127.0.0.1:{port}"):
        decide(kind, f"http://127.0.0.1:{port}", "s", retry=ONCE)


@both
def test_a_connection_that_breaks_is_tried_again(kind: str, server: Server) -> None:
    assert decide(kind, server.url, "reset once", retry=RetryPolicy(backoff=0.01)) == 0.1
    assert server.states == ["reset once"] * 2
    with pytest.raises(ConnectionError):
        decide(kind, server.url, "reset", retry=RetryPolicy(backoff=0.01, max_retries=1))


@both
def test_half_an_answer_and_a_garbled_one(kind: str, server: Server) -> None:
    with pytest.raises(ConnectionError):
        decide(kind, server.url, "cut", retry=ONCE)
    with pytest.raises(ResponseError, match="cannot be decoded"):
        decide(kind, server.url, "garbled")


def test_threads_share_one_client_and_its_connections(server: Server) -> None:
    with Jev(server.url) as jev, ThreadPoolExecutor(4) as pool:
        states = ["x" * n for n in range(40)]
        decisions = list(pool.map(lambda state: jev.decide(state, QUESTIONS), states))
    assert [decision.nouls["a"].noul for decision in decisions] == [n / 100 for n in range(40)]
    assert len(server.peers) <= 4


def test_tasks_share_one_async_client(server: Server) -> None:
    async def main() -> list[float]:
        async with AsyncJev(server.url) as jev:
            decisions = await asyncio.gather(*(jev.decide("x" * n, QUESTIONS) for n in range(40)))
        return [decision.nouls["a"].noul for decision in decisions]

    assert asyncio.run(main()) == [n / 100 for n in range(40)]
