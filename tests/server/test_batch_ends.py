"""Batches let other requests go first, and whatever stops them or the server, no line is lost or repeated."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from batching import WAIT, created, encoded, ended, lines_in, many, results_of, when
from starlette.testclient import TestClient

from jev.engine import Engine
from jev.errors import OverloadedError
from jev.scheduler import Scheduler
from jev.server.app import create_app
from jev.settings import Settings


@pytest.fixture
def client(start_tiny: Callable[..., TestClient]) -> TestClient:
    return start_tiny()


# --- beside live requests -----------------------------------------------------------------------------


class Steps:
    """An engine whose runs take three steps each; `gate` holds the first step until it is set."""

    name = "steps"

    def __init__(self) -> None:
        self.stepped: list[list[str]] = []
        self.begun = threading.Event()
        self.gate = threading.Event()

    def start(self, plan: Any) -> Any:
        plan.left = 3
        return plan

    def step(self, runs: list[Any]) -> None:
        self.stepped.append([run.name for run in runs])
        self.begun.set()
        assert self.gate.wait(WAIT)
        for run in runs:
            run.left -= 1

    def finish(self, run: Any) -> Any:
        return run.name


class StepPlan:
    tokens = 10

    def __init__(self, name: str) -> None:
        self.name = name
        self.left = 3

    @property
    def done(self) -> bool:
        return self.left == 0


@pytest.mark.anyio
async def test_live_requests_take_every_step_from_the_background() -> None:
    engine = Steps()
    scheduler = Scheduler(engine, max_requests=2, max_tokens=100)  # type: ignore[arg-type]
    try:
        work = [
            asyncio.create_task(scheduler.submit(StepPlan(f"batch {i}"), background=True))  # type: ignore[arg-type]
            for i in range(3)
        ]
        await asyncio.to_thread(engine.begun.wait, WAIT)
        assert scheduler.pending == (0, 0)  # they take no place from others
        live = [asyncio.create_task(scheduler.submit(StepPlan(f"live {i}"))) for i in range(2)]  # type: ignore[arg-type]
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError):
            await scheduler.submit(StepPlan("live 3"))  # type: ignore[arg-type]
        engine.gate.set()
        for task in live:
            await task
        begun = next(i for i, names in enumerate(engine.stepped) if "live 0" in names)
        assert begun <= 1
        assert engine.stepped[begun : begun + 3] == [["live 0", "live 1"]] * 3
        assert [(await task)[0] for task in work] == ["batch 0", "batch 1", "batch 2"]
    finally:
        engine.gate.set()
        await asyncio.to_thread(scheduler.close)


def test_lines_wait_while_the_queue_is_full(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    submit, refused = Scheduler.submit, []

    async def busy(self: Scheduler, plan: Any, **options: Any) -> Any:
        if len(refused) < 40:
            refused.append(plan)
            raise OverloadedError("full", retry_after=0.01)
        return await submit(self, plan, **options)

    monkeypatch.setattr(Scheduler, "submit", busy)
    batch = ended(client, created(client, many(20))["id"])
    assert batch["request_counts"] == {"total": 20, "completed": 20, "failed": 0}
    assert len(refused) == 40


# --- ends and restarts --------------------------------------------------------------------------------


def test_a_cancelled_batch_keeps_what_is_done_and_names_the_rest(
    start_tiny: Callable[..., TestClient],
) -> None:
    client = start_tiny(batch_in_flight=1)
    running = created(client, many(1000))["id"]
    waiting = created(client, many(5))["id"]
    when(client, running, lambda batch: batch["request_counts"]["completed"] >= 3)
    assert client.get(f"/v1/batches/{running}/results").status_code == 409
    assert client.delete(f"/v1/batches/{running}").status_code == 409

    shown = client.post(f"/v1/batches/{waiting}/cancel").json()
    assert shown["status"] == "cancelled"  # at once: nothing of it was running
    assert {one["error"]["code"] for one in results_of(client, waiting)} == {"batch_cancelled"}

    assert client.post(f"/v1/batches/{running}/cancel").json()["status"] in ("cancelling", "cancelled")
    batch = ended(client, running)
    assert batch["status"] == "cancelled"
    assert batch["cancelling_at"] <= batch["cancelled_at"]
    counts = batch["request_counts"]
    assert counts["completed"] + counts["failed"] == counts["total"] == 1000
    assert 3 <= counts["completed"] < 1000
    names = [one["custom_id"] for one in results_of(client, running)]
    assert names == [f"line {number}" for number in range(1000)]
    assert client.post(f"/v1/batches/{running}/cancel").json()["status"] == "cancelled"


def test_an_expired_batch_keeps_what_is_done_and_names_the_rest(
    start_tiny: Callable[..., TestClient],
) -> None:
    client = start_tiny(batch_in_flight=1)
    id = created(client, many(1000), completion_window="1h")["id"]
    when(client, id, lambda batch: batch["request_counts"]["completed"] >= 3)
    client.app.state.batches.store.clock = lambda: time.time() + 3601  # type: ignore[attr-defined]
    batch = ended(client, id)
    assert batch["status"] == "expired"
    results = results_of(client, id)
    assert [one["custom_id"] for one in results] == [f"line {number}" for number in range(1000)]
    assert {one["error"]["code"] for one in results if one["error"]} == {"batch_expired"}


def test_a_stopped_server_goes_on_with_what_is_left(tmp_path: Path, tiny_model: Engine) -> None:
    settings = Settings(batches_dir=tmp_path, batch_in_flight=2)
    with TestClient(create_app(settings, tiny_model)) as client:
        id = created(client, [b"{", *many(60)])["id"]
        later = created(client, many(2))["id"]
        when(client, id, lambda batch: batch["request_counts"]["completed"] >= 10)
    with TestClient(create_app(settings, tiny_model)) as client:
        assert client.get(f"/v1/batches/{id}").json()["request_counts"]["total"] == 61
        batch = ended(client, id)
        assert batch["request_counts"] == {"total": 61, "completed": 60, "failed": 1}
        shown = client.get("/metrics").text
        now = float(shown.partition('jev_batch_requests_total{outcome="completed"} ')[2].split()[0])
        assert now <= 50 + 2  # what was decided before is not decided again
        assert ended(client, later)["status"] == "completed"
        assert [one["custom_id"] for one in lines_in(client, batch["output_file_id"])] == [
            f"line {number}" for number in range(60)
        ]


class Server:
    """`jev serve` with the tiny model, to be killed."""

    def __init__(self, tiny: Path, folder: Path) -> None:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("JEV_")}
        environment |= {"JEV_BATCHES_DIR": str(folder), "JEV_BATCH_IN_FLIGHT": "4", "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "jev", "serve", "--model", str(tiny), "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        assert self.process.stdout is not None
        announced = self.process.stdout.readline().split()
        url = next(word for word in announced if word.startswith("http://"))
        self.client = httpx.Client(base_url=url, timeout=60)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()
        self.client.close()


@pytest.mark.slow
def test_a_killed_server_loses_and_repeats_nothing_and_openai_can_drive_it(
    tiny: Path, tmp_path: Path
) -> None:
    server = Server(tiny, tmp_path)
    try:
        id = created(server.client, [*many(300), b"{"])["id"]
        when(server.client, id, lambda batch: batch["request_counts"]["completed"] >= 60)
        server.kill()
        server = Server(tiny, tmp_path)
        assert server.client.get(f"/v1/batches/{id}").json()["request_counts"]["completed"] >= 60
        batch = ended(server.client, id)
        assert batch["request_counts"] == {"total": 301, "completed": 300, "failed": 1}
        names = [one["custom_id"] for one in lines_in(server.client, batch["output_file_id"])]
        assert names == [f"line {number}" for number in range(300)]
        drive_with_openai(str(server.client.base_url), batch["id"], tmp_path)
    finally:
        server.kill()


def drive_with_openai(url: str, before: str, folder: Path) -> None:
    """Take a batch through the official client of OpenAI."""
    (folder / "openai-input").write_bytes(encoded(many(3)))
    with openai.OpenAI(base_url=f"{url}/v1".replace("//v1", "/v1"), api_key="any") as client:
        with (folder / "openai-input").open("rb") as stream:
            file = client.files.create(file=("lines.jsonl", stream), purpose="batch")
        assert (file.purpose, file.filename, file.status) == ("batch", "lines.jsonl", "processed")
        batch = client.batches.create(
            input_file_id=file.id,
            endpoint="/v1/systemone",  # type: ignore[arg-type]
            completion_window="24h",
            metadata={"by": "openai"},
        )
        give_up = time.monotonic() + WAIT
        while batch.status not in ("completed", "failed") and time.monotonic() < give_up:
            time.sleep(0.05)
            batch = client.batches.retrieve(batch.id)
        assert batch.status == "completed"
        assert batch.request_counts is not None
        assert (batch.request_counts.completed, batch.metadata) == (3, {"by": "openai"})
        assert batch.output_file_id is not None
        text = client.files.content(batch.output_file_id).text
        assert [json.loads(one)["custom_id"] for one in text.splitlines()] == ["line 0", "line 1", "line 2"]
        assert client.files.retrieve(batch.output_file_id).purpose == "batch_output"
        assert [one.id for one in client.batches.list(limit=1)] == [batch.id, before]
        assert client.batches.cancel(batch.id).status == "completed"
        with pytest.raises(openai.NotFoundError):
            client.batches.retrieve("batch_none")
