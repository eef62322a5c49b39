"""The batches of a server: one after another, and on from where they were after a restart."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from jev.batch.ledger import read_totals
from jev.batch.outcome import Outcome
from jev.batch.readers import JobError
from jev.crash import crash_report
from jev.errors import APIError, ModelUnavailableError, ServerError
from jev.schemas.batches import Batch, BatchCreate, BatchIssue
from jev.server.batch_job import BatchJob, counted
from jev.server.batch_store import LEDGER, LIVE, BatchStore
from jev.server.file_folder import stored
from jev.server.service import Service

logger = logging.getLogger(__name__)

T = TypeVar("T")

SWEEP_SECONDS = 600.0
DISK_SECONDS = 30.0
"""How long a batch waits after the disk failed, before it is tried again."""


class UnfinishedError(APIError):
    """A batch has not ended, so there is nothing to read or remove."""

    status = 409
    error_type = "batch_unfinished"
    default_message = "The batch has not ended"


class BatchJobs:
    """Keeps batches and runs them. Used from the server's event loop only.

    Args:
        service: decides the lines.

    Attributes:
        store: the batches; None before `start`, and where they cannot be kept.
        decided: requests of batches that got an answer, and that got none, since the start.
    """

    def __init__(self, service: Service) -> None:
        self.store: BatchStore | None = None
        self.decided = {"completed": 0, "failed": 0}
        self._service = service
        self._queue: asyncio.Queue[str] = asyncio.Queue()
        self._running: set[str] = set()
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Open the folder.

        Raises:
            SettingsError: it cannot be used.
        """
        settings = self._service.settings
        opened = partial(
            BatchStore, settings.batches_dir, ttl_s=settings.batches_ttl_s, max_batches=settings.max_batches
        )
        self.store = await asyncio.to_thread(opened)

    async def start(self) -> None:
        """Go on with what has not ended, as soon as there is a model."""
        store = self.kept
        for batch in reversed(store.all()):
            if not batch.ended:
                await asyncio.to_thread(self._recount, store, batch)
                self._queue.put_nowait(batch.id)
        work = [self._work() for _ in range(self._service.settings.batches_at_once)]
        self._tasks = [asyncio.create_task(task) for task in (*work, self._sweep())]

    async def stop(self) -> None:
        """Stop where things are; what has not ended goes on at the next start."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.store is not None:
            await asyncio.to_thread(self.store.close)

    def stats(self) -> dict[str, int]:
        """Numbers for metrics: batches that have not ended, and requests decided since the start."""
        unfinished = 0 if self.store is None else sum(not batch.ended for batch in self.store.all())
        return {"unfinished": unfinished, **self.decided}

    @property
    def kept(self) -> BatchStore:
        """The batches; ServerError 503 where they cannot be kept."""
        if self.store is None:
            raise ServerError("This server keeps no batches", status=503, error_type="storage_unavailable")
        return self.store

    async def create(self, request: BatchCreate, data: bytes) -> Batch:
        """Keep a batch and queue it.

        Raises:
            TooLargeError: there are too many batches.
            ServerError: 503; the disk is full or fails.
        """
        batch = await _on_disk(partial(self.kept.create, request, data))
        self._queue.put_nowait(batch.id)
        return batch

    async def cancel(self, id: str) -> Batch:
        """Have a batch end soon; one that has ended stays as it is. KeyError if there is none."""
        store = self.kept
        now = int(store.clock())
        changed = partial(store.update, id, only=LIVE, status="cancelling", cancelling_at=now)
        if store.get(id).status in LIVE and (await _on_disk(changed)).status == "cancelling":
            await self._run(id)  # if it runs already, that run notices
        return store.get(id)

    async def remove(self, id: str) -> None:
        """Remove a batch with its results; KeyError if there is none, UnfinishedError before its end."""
        self.ended(id)
        await _on_disk(partial(self.kept.remove, id))

    def ended(self, id: str) -> Batch:
        """Return a batch that has ended; errors as in `remove`."""
        batch = self.kept.get(id)
        if not batch.ended or id in self._running:
            raise UnfinishedError(f"The batch is {batch.status}; its results are there when it has ended")
        return batch

    async def _work(self) -> None:
        """Run queued batches for ever."""
        while True:
            id = await self._queue.get()
            await self._service.ready.wait()
            try:
                await self._run(id)
            except ModelUnavailableError:
                return  # the server is stopping: it goes on at the next start
            except Exception as error:  # the next batches are run whatever becomes of this one
                logger.error("%s was left: %s", id, crash_report(error))

    async def _run(self, id: str) -> None:
        """Take a batch to its end, unless somebody is at it.

        Raises:
            ModelUnavailableError: the server is shutting down.
        """
        store = self.kept
        if id in self._running:
            return
        self._running.add(id)
        try:
            while not store.get(id).ended:
                job = BatchJob(self._service, store, id, self._decided)
                try:
                    await self._take_on(job, id)
                except ServerError as error:
                    logger.error("%s waits for the disk: %s", id, error)
                    await asyncio.sleep(DISK_SECONDS)
        except KeyError:
            pass  # it was removed
        finally:
            self._running.discard(id)

    async def _take_on(self, job: BatchJob, id: str) -> None:
        """Run a job; one that fails in a way that nobody thought of ends its batch.

        Raises:
            ModelUnavailableError: the server is shutting down.
            ServerError: 503; the disk is full or fails.
            KeyError: the batch was removed.
        """
        try:
            await job.run()
        except (ModelUnavailableError, ServerError):
            raise
        except Exception as error:
            self.kept.get(id)  # KeyError if it was removed meanwhile, which is no failure
            logger.error("%s failed: %s", id, crash_report(error))
            await job.fail(BatchIssue(code="server_error", message="The server failed; its log says where"))

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            with suppress(ServerError):  # logged, and tried again later
                await _on_disk(self.kept.sweep)

    def _decided(self, outcome: Outcome) -> None:
        self.decided["completed" if outcome.answered else "failed"] += 1

    @staticmethod
    def _recount(store: BatchStore, batch: Batch) -> None:
        """Show how far a batch came; what was last written of it may be older."""
        with suppress(JobError):  # it had not begun
            totals, _ = read_totals(store.folder(batch.id) / LEDGER)
            counts, usage = counted(totals)
            counts.total = batch.request_counts.total
            store.show(batch.id, lambda known: {"request_counts": counts, "usage": usage})


async def _on_disk(work: Callable[[], T]) -> T:
    return await asyncio.to_thread(stored, work)
