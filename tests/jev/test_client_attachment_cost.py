"""Attachments cost the SDK neither Pillow nor the memory of a file that is uploaded from disk."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import tracemalloc
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from jev import AsyncJev, Jev, UploadedFile
from jev._attachments import load


def test_pillow_is_not_loaded_for_it() -> None:
    code = (
        "import sys, jev\nfrom pathlib import Path\n"
        "from jev._draft import Draft\n"
        "Draft.of('s', {}, {'attachments': [b'x', Path(sys.executable), ('a', b'y')]})\n"
        "print([name for name in ('PIL', 'numpy', 'torch') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


class Sink(BaseHTTPRequestHandler):
    """Reads uploads and throws them away."""

    def do_POST(self) -> None:
        left = int(self.headers["content-length"])
        while left:
            left -= len(self.rfile.read(min(left, 1 << 16)))
        body = b'{"files": [{"id": "file-1", "name": "a", "bytes": 1, "kind": "video"}]}'
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_file_on_disk_is_sent_without_being_held_in_memory(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "movie.mp4"
    with file.open("wb") as stream:
        stream.truncate(64 * 2**20)
    assert load(file).data is None
    sink = ThreadingHTTPServer(("127.0.0.1", 0), Sink)
    threading.Thread(target=sink.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{sink.server_port}"

    async def run() -> UploadedFile:
        async with AsyncJev(url) as jev:
            return await jev.upload(file)

    tracemalloc.start()
    try:
        if kind == "sync":
            with Jev(url) as jev:
                uploaded = jev.upload(file)
        else:
            uploaded = asyncio.run(run())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        sink.shutdown()
        sink.server_close()
    assert uploaded.id == "file-1"
    assert peak < 8 * 2**20
