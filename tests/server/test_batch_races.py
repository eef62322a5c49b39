"""Batches whatever meets what: a cancel and an end, a full disk and a beginning, a pause, a busy server."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from jev.batch.ledger import Ledger
from jev.batch.readers import JobError
from jev.engine import Engine
from jev.schemas import parse_request
from jev.schemas.batches import Batch, BatchCreate
from jev.server import batch_job, batch_jobs, batch_store
from jev.server.batch_jobs import BatchJobs
from jev.server.service import Service
from jev.settings import Settings

pytestmark = pytest.mark.anyio

ASK = BatchCreate(input_file_id="file-x", endpoint="/v1/systemone")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def body(number: int) -> dict[str, Any]:
    questions = {"q": {"type": "noul", "instructions": "Is it?"}}
    return {"state": f"s {number}", "samples": 1, "questions": questions}


def data(count: int) -> bytes:
    lines = [
        {"custom_id": f"c{n}", "method": "POST", "url": "/v1/systemone", "body": body(n)}
        for n in range(count)
    ]
    return b"".join(json.dumps(one).encode() + b"\n" for one in lines)


class Kept:
    """A service with its batches, of which one may wait."""

    def __init__(self, engine: Engine) -> None:
        self.service = Service(Settings(batch_in_flight=8), engine)
        self.jobs = BatchJobs(self.service)

    def now(self, batch: Batch) -> Batch:
        return self.jobs.kept.get(batch.id)

    async def until(self, batch: Batch, ready: Callable[[Batch], bool], seconds: float = 30.0) -> Batch:
        end = time.monotonic() + seconds
        while not ready(self.now(batch)):
            assert time.monotonic() < end, self.now(batch)
            await asyncio.sleep(0.01)
        return self.now(batch)

    async def end_of(self, batch: Batch) -> Batch:
        return await self.until(batch, lambda one: one.ended)


@pytest.fixture
async def kept(tiny_model: Engine, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Kept]:
    monkeypatch.setattr(batch_jobs, "DISK_SECONDS", 0.1)
    found = Kept(tiny_model)
    await found.jobs.open()
    await found.service.start()
    await found.jobs.start()
    yield found
    await found.jobs.stop()
    await found.service.stop()


async def test_a_cancel_while_a_line_is_counted_is_not_lost(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting, go_on = threading.Event(), threading.Event()
    usage_of = batch_job.usage_of

    def slow(read: int, written: int) -> Any:
        if not counting.is_set() and threading.current_thread().name.startswith("jev-batch"):
            counting.set()
            go_on.wait(0.3)
        return usage_of(read, written)

    monkeypatch.setattr(batch_job, "usage_of", slow)
    batch = await kept.jobs.create(ASK, data(40))
    await asyncio.to_thread(counting.wait, 20)
    cancelling = asyncio.create_task(kept.jobs.cancel(batch.id))
    await asyncio.sleep(0.1)
    go_on.set()
    assert (await cancelling).status in ("cancelling", "cancelled")
    done = await kept.end_of(batch)
    assert done.status == "cancelled"
    assert done.request_counts.completed + done.request_counts.failed == 40


async def test_a_cancel_that_meets_the_end_changes_nothing(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither what is shown nor what is on disk, where a restart would find it."""
    batch = await kept.jobs.create(ASK, data(2))
    on_disk = batch_jobs._on_disk

    async def late(work: Callable[[], Any]) -> Any:
        await kept.end_of(batch)
        return await on_disk(work)

    monkeypatch.setattr(batch_jobs, "_on_disk", late)
    answer = await asyncio.wait_for(kept.jobs.cancel(batch.id), 20)
    assert answer.status == "completed"
    stored = Batch.model_validate_json((kept.jobs.kept.folder(batch.id) / "batch.json").read_bytes())
    assert stored.status == "completed"
    assert kept.jobs.ended(batch.id).request_counts.completed == 2


async def test_an_end_that_is_on_disk_is_not_overwritten(kept: Kept) -> None:
    """Between the two the batch is shown as it was; a cancel then comes too late."""
    store = kept.jobs.kept
    batch = store.create(ASK, data(1))  # nobody runs it
    over = store.write(batch.id, status="completed", completed_at=1)
    late = store.update(batch.id, only=("validating",), status="cancelling")
    assert late == over
    assert store.get(batch.id).status == "validating"
    stored = Batch.model_validate_json((store.folder(batch.id) / "batch.json").read_bytes())
    assert stored.status == "completed"
    store.show(batch.id, lambda _: dict(over))
    assert store.get(batch.id) == over


async def test_a_disk_that_is_full_at_the_beginning_is_waited_for(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch is resumed and not failed, and the next ones are run."""
    full = True

    class Full(Ledger):
        def open(self, *, restart: bool = False) -> None:
            if full:
                raise JobError("it cannot be used as a ledger (full)") from sqlite3.OperationalError("full")
            super().open(restart=restart)

    monkeypatch.setattr(batch_job, "Ledger", Full)
    first = await kept.jobs.create(ASK, data(2))
    second = await kept.jobs.create(ASK, data(2))
    await asyncio.sleep(0.4)
    assert kept.now(first).status == "validating"
    full = False
    assert (await kept.end_of(first)).status == "completed"
    assert (await kept.end_of(second)).status == "completed"


async def test_the_worker_outlives_a_batch_whose_failure_cannot_be_written(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, full = batch_store._write, True

    def refused(path: Path, content: bytes) -> None:
        if full and path.name == "batch.json.new":
            raise OSError(28, "No space left on device")
        write(path, content)

    def broken(self: Any, ledger: Any) -> Any:
        if full:
            raise RuntimeError("nobody thought of this")
        return validate(self, ledger)

    validate = batch_job.BatchJob._validate
    monkeypatch.setattr(batch_store, "_write", refused)
    monkeypatch.setattr(batch_job.BatchJob, "_validate", broken)
    first = await kept.jobs.create(ASK, data(2))
    await asyncio.sleep(0.4)
    full = False
    second = await kept.jobs.create(ASK, data(2))
    assert (await kept.end_of(second)).status == "completed"
    assert (await kept.end_of(first)).ended


async def test_rows_that_a_pause_refuses_are_decided_later(kept: Kept) -> None:
    batch = await kept.jobs.create(ASK, data(200))
    await kept.until(batch, lambda one: one.request_counts.completed > 10)
    scheduler = kept.service.serving()[1]
    for _ in range(3):
        await scheduler.pause("abort")
        scheduler.resume()
        await asyncio.sleep(0.05)
    done = await kept.end_of(batch)
    assert (done.status, done.request_counts.completed, done.request_counts.failed) == ("completed", 200, 0)


@pytest.mark.parametrize("how", ["expired", "cancelled"])
async def test_a_server_that_is_never_idle_ends_batches_in_time(
    kept: Kept, tiny_model: Engine, how: str
) -> None:
    scheduler = kept.service.serving()[1]
    busy = True

    async def live() -> None:
        plan = tiny_model.prepare(parse_request(body(1) | {"state": "live " * 20})[0])
        while busy:
            await scheduler.submit(plan)

    callers = [asyncio.create_task(live()) for _ in range(24)]
    try:
        batch = await kept.jobs.create(ASK, data(40))
        await kept.until(batch, lambda one: one.status == "in_progress")
        if how == "cancelled":
            await kept.jobs.cancel(batch.id)
        else:
            kept.jobs.kept.update(batch.id, only=("in_progress",), expires_at=int(time.time()))
        done = await kept.until(batch, lambda one: one.ended, seconds=15)
        assert done.status == how
        assert done.request_counts.failed > 0
    finally:
        busy = False
        await asyncio.gather(*callers)


async def test_a_slow_disk_does_not_stop_the_loop(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = await kept.jobs.create(ASK, data(1))
    await kept.end_of(batch)
    sync = batch_store.os.fsync

    def slow(descriptor: int) -> None:
        time.sleep(0.5)
        sync(descriptor)

    monkeypatch.setattr(batch_store.os, "fsync", slow)
    making = asyncio.create_task(kept.jobs.create(ASK, data(1)))
    longest = 0.0
    while not making.done():
        began = time.monotonic()
        kept.jobs.stats()
        kept.now(batch)
        longest = max(longest, time.monotonic() - began)
        await asyncio.sleep(0.01)
    assert longest < 0.3
    monkeypatch.undo()
    await kept.end_of(making.result())


async def test_removing_does_not_stop_the_loop(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = await kept.jobs.create(ASK, data(1))
    await kept.end_of(batch)
    await asyncio.sleep(0.1)
    seen: list[int] = []
    remove = batch_store._remove

    def slow(folder: Path) -> None:
        seen.append(len(kept.jobs.kept.all()))  # would wait for ever if the lock were held
        remove(folder)

    monkeypatch.setattr(batch_store, "_remove", slow)
    await asyncio.wait_for(kept.jobs.remove(batch.id), 20)
    assert seen == [0]
