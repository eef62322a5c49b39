"""A real server process around the fake engine, and what it holds of the system."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import httpx

PROGRAM = """
import importlib.util, sys, time, threading
from jev.errors import JevError
from jev.server import protocol, run, service
from jev.settings import Settings, SettingsError

spec = importlib.util.spec_from_file_location("fakes", sys.argv[1])
fakes = importlib.util.module_from_spec(spec)
sys.modules["fakes"] = fakes
spec.loader.exec_module(fakes)
engine = fakes.FakeEngine()

def work(plan, cancelled):
    for _ in range(int(plan.request.state or 0)):
        time.sleep(0.01)
        if cancelled():
            print("cancelled", flush=True)
            raise RuntimeError

engine.on_run = work
{extra}
try:
    run.serve(Settings.load(**{settings!r}), {engine})
except JevError as error:
    print("error:", error, flush=True)
    sys.exit(1)
print("stopped", flush=True)
"""


class Server:
    """A server process around the fake engine; its state text is how many 10 ms the model works."""

    def __init__(self, *, extra: str = "", engine: str = "engine", **settings: Any) -> None:
        settings = {"port": 0, "log_json": True, **settings}
        program = PROGRAM.format(extra=textwrap.dedent(extra), engine=engine, settings=settings)
        fakes = Path(__file__).with_name("conftest.py")
        environment = {k: v for k, v in os.environ.items() if not k.startswith("JEV_")}
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, str(fakes)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline().strip()
        self.url = next((word for word in self.line.split() if word.startswith("http://")), "")
        self.port = int(self.url.rpartition(":")[2]) if self.url else 0

    def ask(self, work: int = 0) -> httpx.Response:
        question = {"type": "noul", "instructions": "?"}
        body = {"state": str(work), "questions": {"q": question}}
        return httpx.post(f"{self.url}/v1/systemone", json=body, timeout=30)

    def wait_for_pending(self, requests: int) -> None:
        """Wait until so many requests are with the model thread."""
        for _ in range(1000):
            if f"jev_pending_requests {requests}.0\n" in httpx.get(f"{self.url}/metrics").text:
                return
            time.sleep(0.01)
        raise AssertionError("they never were")

    def send(self, data: bytes) -> bytes:
        """Send raw bytes and return everything that comes back until the server closes."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as connection:
            connection.sendall(data)
            answer = b""
            while piece := connection.recv(65536):
                answer += piece
            return answer

    def held(self) -> tuple[int, int]:
        """Threads and open files of the process."""
        proc = Path(f"/proc/{self.process.pid}")
        return len(list((proc / "task").iterdir())), len(list((proc / "fd").iterdir()))

    def stop(self, sig: int = signal.SIGTERM) -> tuple[int, str, str]:
        """Signal the process and return its exit status and what it still wrote."""
        self.process.send_signal(sig)
        return self.ended()

    def ended(self) -> tuple[int, str, str]:
        """Wait for the process to end by itself."""
        out, err = self.process.communicate(timeout=30)
        return self.process.returncode, out, err

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
