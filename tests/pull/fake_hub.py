"""A model hub on loopback, as huggingface_hub sees it, that can drop connections, lie and be slow."""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPO = "someone/some-model"

_PATH = re.compile(r"/(?P<repo>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<name>.+)")


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def git_sha1(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@dataclass
class Behaviour:
    """What goes wrong with one file.

    Attributes:
        drops: how many GETs end early, by closing the connection.
        drop_after: bytes that those bring.
        body: served in place of the content.
        status: answered instead, to the first `refusals` requests (all by default).
        code: X-Error-Code of it.
        method: which requests `status` is for; "" = all.
        pause_s: seconds between two pieces.
        hangs: GETs never get an answer.
        ranges: whether Range is understood.
        large: in large-file storage: behind a redirect, with the SHA-256 as its ETag.
        stated: ETag in place of the true one.
        commit: stated as the revision's.
        shift: bytes by which a range begins too late, or too early.
        total: bytes that a range's file is said to have, and is sent up to.
    """

    drops: int = 0
    drop_after: int = 1000
    body: bytes | None = None
    status: int | None = None
    refusals: int = 10**9
    code: str = ""
    method: str = ""
    pause_s: float = 0
    hangs: bool = False
    ranges: bool = True
    large: bool = True
    stated: str | None = None
    commit: str = COMMIT
    shift: int = 0
    total: int | None = None


@dataclass
class Hub:
    """The files it has, how it misbehaves, and what it has seen.

    Attributes:
        files: content by name, of REPO at COMMIT (also its branch `main`).
        behaviour: by name; others behave well.
        requests: how often each of "HEAD name" and "GET name" came.
        ranges: the Range headers of GETs, in order.
        sent: bytes of bodies.
        tokens: the Authorization headers that came for each kind of address.
    """

    files: dict[str, bytes]
    behaviour: dict[str, Behaviour] = field(default_factory=dict)
    requests: Counter[str] = field(default_factory=Counter)
    ranges: list[str | None] = field(default_factory=list)
    sent: int = 0
    tokens: dict[str, set[str | None]] = field(default_factory=dict)
    url: str = ""

    def __enter__(self) -> Hub:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args: object) -> None:
                pass

            def do_HEAD(self) -> None:
                hub.answer(self, body=False)

            def do_GET(self) -> None:
                hub.answer(self, body=True)

        class Server(ThreadingHTTPServer):
            def handle_error(self, *args: object) -> None:
                pass  # clients that were killed

        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        return self

    def __exit__(self, *args: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, request: BaseHTTPRequestHandler, *, body: bool) -> None:
        """One HEAD or GET; `/store/NAME` is where redirects of large files lead."""
        store = request.path.startswith("/store/")
        found = _PATH.fullmatch(request.path)
        name = request.path.removeprefix("/store/") if store else found["name"] if found else ""
        self.tokens.setdefault("store" if store else "hub", set()).add(request.headers["Authorization"])
        how = self.behaviour.get(name, Behaviour())
        if not store:
            self.requests[f"{request.command} {name}"] += 1
        if how.status and how.refusals and how.method in ("", request.command) and not store:
            how.refusals -= 1
            return self._refuse(request, how.status, how.code)
        if found and found["repo"] != REPO:
            return self._refuse(request, 401, "RepoNotFound")
        if found and found["revision"] not in ("main", COMMIT):
            return self._refuse(request, 404, "RevisionNotFound")
        if name not in self.files:
            return self._refuse(request, 404, "EntryNotFound")
        content = self.files[name]
        etag = how.stated or (sha256(content) if how.large else git_sha1(content))
        if how.large and not store:
            request.send_response(302)
            request.send_header("Location", f"{self.url.replace('127.0.0.1', 'localhost')}/store/{name}")
            request.send_header("X-Linked-Etag", f'"{etag}"')
            request.send_header("X-Linked-Size", str(len(content)))
            request.send_header("X-Repo-Commit", how.commit)
            request.send_header("Content-Length", "0")
            request.end_headers()
            return None
        return self._content(request, content, etag, how, body=body)

    def _refuse(self, request: BaseHTTPRequestHandler, status: int, code: str) -> None:
        request.send_response(status)
        if code:
            request.send_header("X-Error-Code", code)
        request.send_header("Content-Length", "0")
        request.end_headers()

    def _content(
        self, request: BaseHTTPRequestHandler, content: bytes, etag: str, how: Behaviour, *, body: bool
    ) -> None:
        content = content if how.body is None else how.body
        start = 0
        if body:
            self.ranges.append(request.headers["Range"])
            if how.hangs:
                time.sleep(60)
            if how.ranges and request.headers["Range"]:
                start = int(request.headers["Range"].removeprefix("bytes=").rstrip("-")) + how.shift
                if how.total:
                    start, content = min(start, how.total // 2), content[: how.total]
                if start >= len(content):
                    return self._refuse(request, 416, "")
        request.send_response(206 if start else 200)
        if start:
            request.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        request.send_header("ETag", f'"{etag}"')
        request.send_header("X-Repo-Commit", how.commit)
        request.send_header("Content-Length", str(len(content) - start))
        request.end_headers()
        if not body:
            return None
        rest, cut = content[start:], None
        if how.drops:
            how.drops -= 1
            cut = how.drop_after
        try:
            for at in range(0, len(rest if cut is None else rest[:cut]), 1000):
                piece = rest[at : min(at + 1000, len(rest) if cut is None else cut)]
                request.wfile.write(piece)
                request.wfile.flush()
                self.sent += len(piece)
                if how.pause_s:
                    time.sleep(how.pause_s)
        except OSError:  # the other side has gone
            pass
        if cut is not None:
            request.close_connection = True
        return None
