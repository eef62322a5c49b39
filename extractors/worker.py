"""Worker processes for `extract`: a decoder that hangs, leaks or crashes costs one request an error."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from jev.extractors.errors import ServiceUnavailable
from jev.extractors.evidence import Evidence
from jev.extractors.limits import Limits
from jev.extractors.options import Options
from jev.extractors.worker_process import Worker

_TARGET = "jev.extractors.extract:extract"


class Pool:
    """Runs `extract` in separate processes, at most `workers` at a time.

    A worker is killed when a job takes longer than its limit, has a bounded address space, and is
    replaced after a failure or after `jobs_each` jobs. Workers start when they are first needed. Safe
    to use from several threads and event loops. Close it, or use it as a context manager.

    Args:
        limits: for every job.
        options: for every job.
        workers: most processes at a time.
        jobs_each: jobs after which a process is replaced, so that leaks stay small.
        target: "module:function" that does a job, called as `extract` is; for tests.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        options: Options | None = None,
        *,
        workers: int = 2,
        jobs_each: int = 100,
        target: str = _TARGET,
    ) -> None:
        if workers < 1 or jobs_each < 1:
            raise ValueError("A pool needs at least one worker and one job for each")
        self.limits = limits or Limits()
        self.options = options or Options()
        self._jobs_each = jobs_each
        self._target = target
        # A place for every worker that may exist; whoever takes an empty one starts its worker.
        self._places: queue.LifoQueue[Worker | None] = queue.LifoQueue()
        for _ in range(workers):
            self._places.put(None)
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="extract")
        self._lock = threading.Lock()
        self._busy: set[Worker] = set()
        self._closed = False

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def extract(self, data: bytes, name: str, *, picture_slots: int, field: str = "files") -> Evidence:
        """Read one attachment without blocking the event loop; cancelling it kills the job.

        Raises:
            ExtractError: as `jev.extractors.extract.extract` does; moreover `LimitExceeded` for
                `decode_seconds`, `transcribe_seconds`, `ocr_seconds` or `decode_memory_bytes`,
                `Unreadable` if the decoder crashed, and `ServiceUnavailable` if no worker could be
                started or the pool is closed.
        """
        job = _Job()
        loop = asyncio.get_running_loop()
        try:
            future = loop.run_in_executor(self._threads, self._run, job, data, name, picture_slots, field)
        except RuntimeError as error:
            raise _closed() from error
        try:
            return await future
        except asyncio.CancelledError:
            job.cancel()
            raise

    def extract_sync(self, data: bytes, name: str, *, picture_slots: int, field: str = "files") -> Evidence:
        """Read one attachment; waits for a free worker. Raises as `extract` does."""
        return self._run(_Job(), data, name, picture_slots, field)

    def close(self) -> None:
        """End all workers now; jobs that are running or waiting fail with `ServiceUnavailable`."""
        with self._lock:
            self._closed = True
            busy = list(self._busy)
        for worker in busy:
            worker.kill()
        self._threads.shutdown(wait=True)
        while True:
            try:
                worker = self._places.get_nowait()
            except queue.Empty:
                break
            if worker:
                worker.dispose()
        # For threads of `extract_sync` that still wait for a place.
        self._places.put(None)

    def _run(self, job: _Job, data: bytes, name: str, slots: int, field: str) -> Evidence:
        worker = self._places.get()
        try:
            if job.cancelled or self._closed:
                raise _closed()
            if worker and not worker.usable:
                worker.dispose()
                worker = None
            worker = worker or Worker(self._target)
            with self._lock:
                if self._closed:
                    raise _closed()
                self._busy.add(worker)
            job.start(worker.kill)
            try:
                return worker.run(data, name, self.limits, slots, self.options, field)
            except Exception:
                if self._closed:
                    raise _closed() from None
                raise
        finally:
            job.end()
            if worker:
                with self._lock:
                    self._busy.discard(worker)
                if not worker.usable or worker.jobs >= self._jobs_each or self._closed:
                    worker.dispose()
                    worker = None
            self._places.put(worker)


class _Job:
    """Lets one thread cancel what another runs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kill: Callable[[], None] | None = None
        self.cancelled = False

    def start(self, kill: Callable[[], None]) -> None:
        with self._lock:
            self._kill = kill
            if self.cancelled:
                kill()

    def end(self) -> None:
        # The worker goes on to another job, which is not ours to cancel.
        with self._lock:
            self._kill = None

    def cancel(self) -> None:
        with self._lock:
            self.cancelled = True
            if self._kill:
                self._kill()


def _closed() -> ServiceUnavailable:
    return ServiceUnavailable("The extraction workers are closed")
