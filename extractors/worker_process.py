"""The parent's side of a worker process: starts it, times its jobs, reads its answers."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe
from typing import Any

from jev.extractors import errors
from jev.extractors.errors import ExtractError, LimitExceeded, ServiceUnavailable, Unreadable
from jev.extractors.evidence import Evidence, Picture, digest
from jev.extractors.limits import Limits
from jev.extractors.options import Options
from jev.extractors.worker_child import allowance

_START_SECONDS = 60.0
_MAX_MESSAGE = 64 * 2**20
_MAX_PICTURE = 256 * 2**20
_ERRORS: dict[str, type[ExtractError]] = {
    kind.__name__: kind
    for kind in (
        errors.UnsupportedType,
        errors.Unreadable,
        errors.MissingReader,
        errors.ServiceUnavailable,
        errors.ExtractError,
    )
}


class Worker:
    """One child process, the pipe to it, and its folder for temporary files.

    A fresh interpreter, not a fork: it shares no locks, threads or memory with a process that runs a
    model. What it sends is read as JSON and bytes, never unpickled.

    Attributes:
        jobs: how many it was given.
    """

    def __init__(self, target: str) -> None:
        """Start the process; it is not waited for.

        Args:
            target: "module:function" that does a job.

        Raises:
            ServiceUnavailable: if the system does not start it.
        """
        self.jobs = 0
        self._ready = self._spent = False
        try:
            folder = tempfile.mkdtemp(prefix="jev-extract-")
        except OSError as error:
            raise _unstarted() from error
        try:
            self._pipe, child = Pipe()
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise _unstarted() from error
        environment = {
            # No secret of the server's settings is a decoder's business.
            **{name: value for name, value in os.environ.items() if not name.startswith("JEV_")},
            # What this process can import the child can, however it was told to.
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "TMPDIR": folder,
            # Each arena reserves address space, which is what is bounded.
            "MALLOC_ARENA_MAX": "2",
        }
        call = f"serve({child.fileno()}, {target!r}, {folder!r})"
        code = f"from jev.extractors.worker_child import serve; {call}"
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and code
                [sys.executable, "-c", code],
                stdin=subprocess.DEVNULL,
                # Decoders write what they think of a file to either; it may quote the file.
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(child.fileno(),),
                env=environment,
                # Ctrl-C is for the parent, which ends its workers in its own time.
                start_new_session=True,
            )
        except OSError as error:
            _dispose(None, self._pipe, folder)
            raise _unstarted() from error
        finally:
            child.close()
        # Also at the end of the program, if nobody disposed of it.
        self._finalize = weakref.finalize(self, _dispose, self._process, self._pipe, folder)

    @property
    def usable(self) -> bool:
        """Whether it can do another job."""
        # It may also have been ended from outside since its last job, for want of memory for example.
        return not self._spent and self._process.poll() is None

    def kill(self) -> None:
        """End the process now; what it was doing fails. Safe from any thread."""
        self._spent = True
        self._process.kill()

    def dispose(self) -> None:
        """End the process and remove its temporary files; not while another thread runs a job."""
        self._spent = True
        self._finalize()

    def run(
        self, data: bytes, name: str, limits: Limits, slots: int, options: Options, field: str
    ) -> Evidence:
        """Do one job.

        Raises:
            ExtractError: what the job raised, or what the death of the process means.
        """
        self.jobs += 1
        self._wait_until_ready()
        deadline = _Deadline(self.kill, *allowance("decode", limits))
        try:
            self._pipe.send_bytes(pickle.dumps((data, name, limits, slots, options, field)))
            answer = self._receive()
            while "stage" in answer:
                deadline.extend(*allowance(str(answer["stage"]), limits))
                answer = self._receive()
            if "error" in answer:
                self._spent = self._spent or answer.get("spent", False)
                raise _error(answer["error"])
            return self._evidence(answer, data, name)
        except ExtractError:
            raise
        except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
            self.kill()
            raise deadline.error() if deadline.passed else self._death(deadline) from error
        finally:
            deadline.cancel()

    def _wait_until_ready(self) -> None:
        if self._ready:
            return
        deadline = _Deadline(self.kill, "", _START_SECONDS)
        try:
            answer = self._receive()
        except (OSError, EOFError, ValueError) as error:
            self.kill()
            raise _unstarted() from error
        finally:
            deadline.cancel()
        if "unstarted" in answer:
            self.kill()
            raise ServiceUnavailable(f"An extraction worker could not be started: {answer['unstarted']}")
        self._ready = True

    def _receive(self) -> dict[str, Any]:
        return json.loads(self._pipe.recv_bytes(_MAX_MESSAGE))

    def _evidence(self, answer: dict[str, Any], data: bytes, name: str) -> Evidence:
        fields = answer["evidence"]
        pictures = tuple(
            Picture.of(self._pipe.recv_bytes(_MAX_PICTURE), p["width"], p["height"], p["place"])
            for p in answer["pictures"]
        )
        notes = tuple(fields["notes"])
        return Evidence(
            name, fields["kind"], fields["text"], pictures, notes, digest(data), answer["sampled"]
        )

    def _death(self, deadline: _Deadline) -> ExtractError:
        """Return what the end of the process says about the file."""
        code = self._process.wait()
        if code in (-signal.SIGXCPU, -signal.SIGALRM):
            return deadline.error()
        how = f"signal {-code}" if code < 0 else f"exit status {code}"
        return Unreadable(f"The decoder of its content crashed ({how})")


class _Deadline:
    """Calls `kill` when the time is up, whatever the pipe is waiting for."""

    def __init__(self, kill: Callable[[], None], limit: str, seconds: float) -> None:
        self._kill = kill
        self._limit, self._seconds = limit, seconds
        self._end = time.monotonic() + seconds
        self.passed = False
        self._timer = self._started()

    def extend(self, limit: str, seconds: float) -> None:
        """Add time for a further stage."""
        self._timer.cancel()
        self._limit, self._seconds = limit, seconds
        self._end += seconds
        self._timer = self._started()

    def cancel(self) -> None:
        """Stop the clock."""
        self._timer.cancel()

    def error(self) -> LimitExceeded:
        """Return the error for the stage that took too long."""
        return LimitExceeded(self._limit, self._seconds, unit="seconds")

    def _started(self) -> threading.Timer:
        timer = threading.Timer(max(0.0, self._end - time.monotonic()), self._expire)
        timer.daemon = True
        timer.start()
        return timer

    def _expire(self) -> None:
        self.passed = True
        self._kill()


def _unstarted() -> ServiceUnavailable:
    return ServiceUnavailable("An extraction worker could not be started")


def _error(encoded: dict[str, Any]) -> ExtractError:
    if "fields" in encoded:
        fields = encoded["fields"]
        limit = LimitExceeded(
            fields["limit"],
            fields["allowed"],
            fields["actual"],
            unit=fields["unit"],
            at_least=fields["at_least"],
            together=fields["together"],
        )
        limit.args = (encoded["message"],)
        return limit
    return _ERRORS[encoded["type"]](encoded["message"])


def _dispose(process: subprocess.Popen[bytes] | None, pipe: Connection, folder: str) -> None:
    if process:
        process.kill()
        process.wait()
    pipe.close()
    shutil.rmtree(folder, ignore_errors=True)
