"""Real server processes with the embedded model, started the way a user starts them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

KEY = "e2e-key-1"
START_SECONDS = 120


@contextlib.contextmanager
def serving(folder: Path, **environment: str) -> Iterator[str]:
    """Run `jev serve` on a free port and yield its address; afterwards it must stop cleanly."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("JEV_")}
    log = folder / "server.log"
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "jev", "serve", "--port", "0"],
            cwd=folder,  # nothing may depend on the checkout
            env={**clean, **environment},
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    assert process.stdout is not None
    too_late = threading.Timer(START_SECONDS, process.kill)
    too_late.start()
    try:
        line = process.stdout.readline()
        too_late.cancel()
        if not line.startswith("jev listening on http://"):
            raise RuntimeError(f"the server said {line!r}\n{log.read_text()}")
        yield line.split()[3]
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, log.read_text()
        assert "Traceback" not in log.read_text()
    finally:
        too_late.cancel()
        process.kill()
        process.communicate()


@pytest.fixture(scope="session")
def start_server() -> Callable[..., contextlib.AbstractContextManager[str]]:
    """Start a server with settings of its own: `with start_server(folder, JEV_NAME=...) as url`."""
    return serving


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server without authentication."""
    with serving(tmp_path_factory.mktemp("server")) as url:
        yield url


@pytest.fixture(scope="session")
def keyed_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The address of a server that wants a key and cannot read pictures, and a key that it accepts."""
    with serving(tmp_path_factory.mktemp("keyed"), JEV_API_KEYS=f"other,{KEY}", JEV_OCR="off") as url:
        yield url, KEY
