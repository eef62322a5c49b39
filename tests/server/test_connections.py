"""Clients that stall, lie, drop, or send too much keep nobody else waiting, and leave nothing behind."""

from __future__ import annotations

import json
import re
import selectors
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from serving import Server

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="what a process holds is read in /proc")

HEAD = b"POST /v1/systemone HTTP/1.1\r\nHost: localhost\r\n"
BODY = json.dumps({"state": "0", "questions": {"q": {"type": "noul", "instructions": "?"}}}).encode()
STALL = 1.5
PACE = 0.1
"""Seconds from one byte to the next: a stall is 15 of them, as 30 s are of a byte every two seconds."""
PROMPT = 5.0
"""Longest that anyone else may wait for an answer: it takes milliseconds on an idle machine, and minutes if a
hundred stalls are waited for in turn.
"""
POOLS = 10
"""Threads that pools of the server may still start; fewer than the clients of the tests that use them."""
IDLE = 1000
LINGER = struct.pack("ii", 1, 0)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    extra = f"protocol.STALL_SECONDS = {STALL}"
    server = Server(extra=extra, body_timeout_s=STALL, keep_alive_s=1, log_level="error")
    for _ in range(3):
        assert server.ask().status_code == 200
    yield server
    server.kill()


@contextmanager
def undisturbed(server: Server) -> Iterator[None]:
    """Ask all the time; afterwards each answer was prompt, and no thread or open file has stayed."""
    before = server.held()
    stop = threading.Event()
    waits: list[float] = []
    statuses: set[int | None] = set()
    question = HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY

    def ask() -> None:
        while len(waits) < 3 or not stop.wait(0.02):
            started = time.perf_counter()
            statuses.add(status(exchange(server, question)))
            waits.append(time.perf_counter() - started)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        yield
    finally:
        stop.set()
        asking.join()
    assert statuses == {200}
    assert max(waits) < PROMPT
    give_up = time.monotonic() + 2 * PROMPT
    most = before[0] + POOLS, before[1]
    while any(now > then for now, then in zip(server.held(), most, strict=True)):
        assert time.monotonic() < give_up, f"threads and files: {before} before, {server.held()} after"
        time.sleep(0.05)


def drip(server: Server, kinds: list[tuple[bytes, bytes]]) -> list[tuple[float, bytes]]:
    """From a connection each, send the first bytes at once and then the others one at a time, until it is
    closed.

    Returns the seconds that each was open, and what it was told.
    """
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        told = [b""] * len(kinds)
        ended: dict[int, float] = {}
        began = time.monotonic()
        for number, (first, _) in enumerate(kinds):
            one = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            one.sendall(first)
            one.setblocking(False)
            selector.register(one, selectors.EVENT_READ, number)
        at = 0
        while selector.get_map():
            assert time.monotonic() - began < 10 * STALL + PROMPT, f"{len(kinds) - len(ended)} are still open"
            for key in list(selector.get_map().values()):
                with suppress(OSError):  # closed; what it was told is still to be read
                    key.fileobj.send(kinds[key.data][1][at : at + 1])  # type: ignore[union-attr]
            at += 1
            until = time.monotonic() + PACE
            while selector.get_map() and (left := until - time.monotonic()) > 0:
                for key, _ in selector.select(left):
                    piece = b""
                    with suppress(OSError):
                        piece = key.fileobj.recv(65536)  # type: ignore[union-attr]
                    told[key.data] += piece
                    if not piece:
                        ended[key.data] = time.monotonic() - began
                        selector.unregister(key.fileobj)
        return [(ended[number], told[number]) for number in range(len(kinds))]


def status(answer: bytes) -> int | None:
    found = re.match(rb"HTTP/1\.1 (\d{3}) ", answer)
    return int(found[1]) if found else None


def exchange(server: Server, *pieces: bytes, end: bool = False) -> bytes:
    """Send pieces with a pause between them; what comes back until the server closes.

    `end` says after them that no more will come.
    """
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        with suppress(ConnectionError):  # it was closed while this still sent
            for number, piece in enumerate(pieces):
                if number:
                    time.sleep(0.01)
                connection.sendall(piece)
            if end:
                connection.shutdown(socket.SHUT_WR)
        return ends(connection)


def ends(connection: socket.socket) -> bytes:
    """What comes until the server closes."""
    connection.settimeout(10)
    answer = b""
    with suppress(ConnectionError):
        while got := connection.recv(65536):
            answer += got
    return answer


def test_heads_and_bodies_that_drip(server: Server) -> None:
    heads = [(b"", HEAD + b"A: " + b"a" * 1000), (HEAD, b"A: " + b"a" * 1000)]
    bodies = [
        (HEAD + b"Content-Length: 1000\r\n\r\n", b" " * 1000),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n" * 1000),
    ]
    with undisturbed(server):
        found = drip(server, (heads + bodies) * 25)
    for number, (seconds, answer) in enumerate(found):
        assert 0.5 * STALL < seconds < STALL + PROMPT
        assert status(answer) == (None, None, 408, 408)[number % 4]


def test_a_thousand_idle_connections(server: Server) -> None:
    with undisturbed(server), ExitStack() as stack:
        opened = [
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port))) for _ in range(IDLE)
        ]
        for one in opened[::2]:  # half of them had an answer, and are kept open by their clients
            one.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        began = time.perf_counter()
        told = [ends(one) for one in opened]
        assert time.perf_counter() - began < STALL + 2 * PROMPT
    assert {status(answer) for answer in told[::2]} == {200}
    assert set(told[1::2]) == {b""}


@pytest.mark.parametrize(
    "pieces",
    [
        (b"A: " + b"a" * 65536,),
        (b"A: " + b"a" * 100_000 + b"\r\n\r\n",),
        tuple(b"A%d: " % number + b"a" * 10_000 + b"\r\n" for number in range(10)),
        (b"A: b\r\n" * 20_000 + b"\r\n",),
    ],
    ids=["unfinished", "one piece", "many pieces", "many headers"],
)
def test_a_head_over_the_limit(server: Server, pieces: tuple[bytes, ...]) -> None:
    with undisturbed(server):
        answer = exchange(server, b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + pieces[0], *pieces[1:])
    assert status(answer) == 400
    assert b"The head of the request is over the limit of 65536 bytes" in answer


def test_a_head_below_the_limit(server: Server) -> None:
    head = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    for pieces in ((b"A: " + b"a" * 65_000,), (b"A: ", *[b"a" * 1000] * 65)):
        assert status(exchange(server, head + pieces[0], *pieces[1:], b"\r\n\r\n")) == 200


def test_a_body_longer_than_it_says(server: Server) -> None:
    head = HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY)
    with undisturbed(server):
        answer = exchange(server, head + BODY + b"}" * 100_000)
    # What comes behind it can only be another request, and is none.
    assert status(answer) == 200
    answers = re.findall(rb"HTTP/1\.1 (\d{3}) ", answer)
    assert answers == [b"200", b"400"]


def test_a_body_shorter_than_it_says(server: Server) -> None:
    head = HEAD + b"Content-Length: %d\r\n\r\n" % (len(BODY) + 1)
    with undisturbed(server):
        began = time.perf_counter()
        assert exchange(server, head + BODY, end=True) == b"", "its client says that it is gone"
        assert time.perf_counter() - began < PROMPT
        assert status(exchange(server, head + BODY)) == 408


@pytest.mark.parametrize(
    ("chunks", "answer"),
    [
        (b"%x\r\n" % (len(BODY) + 5) + BODY + b"\r\n0\r\n\r\n", 408),  # says more than it has
        (b"%x\r\n" % (len(BODY) - 5) + BODY + b"\r\n0\r\n\r\n", 400),
        (b"-5\r\n" + BODY + b"\r\n0\r\n\r\n", 400),
        (b"f" * 17 + b"\r\n" + BODY, 408),
        (b"f" * 100 + b"\r\n" + BODY, 400),
        (b"5;" + b"x" * 200_000 + b"\r\n", 400),
    ],
    ids=["too large", "too small", "negative", "exabytes", "endless", "endless extension"],
)
def test_a_chunk_that_lies_about_its_size(server: Server, chunks: bytes, answer: int) -> None:
    with undisturbed(server):
        told = exchange(server, HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunks)
    assert status(told) == answer


def test_connections_dropped_in_the_middle_of_a_body(server: Server) -> None:
    sent = HEAD + b"Content-Length: 1000000\r\n\r\n" + b" " * 10_000
    uploaded = sent.replace(b"/v1/systemone", b"/v1/files").replace(
        b"Host: localhost", b"Host: localhost\r\nContent-Type: multipart/form-data; boundary=b"
    )

    def drop() -> None:
        for number in range(100):
            with socket.create_connection(("127.0.0.1", server.port)) as connection:
                connection.sendall((sent, uploaded)[number % 2])
                if number % 4 < 2:  # a reset instead of an end
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER)

    with undisturbed(server):
        drop()


def test_a_low_limit_on_open_files_is_raised_or_told() -> None:
    limits = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (200, {most}))"
    raised = Server(extra=limits.format(most=4096))
    try:
        shown = (Path("/proc") / str(raised.process.pid) / "limits").read_text(encoding="ascii")
        assert re.search(r"Max open files +4096 ", shown)
        assert raised.stop()[2] == ""
    finally:
        raised.kill()
    low = Server(extra=limits.format(most=300))
    try:
        assert "at most 300 files and connections can be open at once" in low.stop()[2]
    finally:
        low.kill()
