"""Under load the server refuses at once, keeps deadlines, and drops the work of clients that left."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytestmark = pytest.mark.anyio


class Gate:
    """Holds the model thread until it is opened or the run is cancelled."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.entered = threading.Event()
        self.cancelled = 0

    def __call__(self, plan: Any, cancelled: Callable[[], bool]) -> None:
        self.entered.set()
        while not self.open.wait(0.005):
            if cancelled():
                self.cancelled += 1
                raise RuntimeError("cancelled")


@pytest.fixture
def gate(engine: Any) -> Iterator[Gate]:
    gate = Gate()
    engine.on_run = gate
    yield gate
    gate.open.set()


async def until(condition: Callable[[], Any]) -> None:
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it did not happen")


async def test_a_full_queue_529(running: Any, gate: Gate, body: dict[str, Any]) -> None:
    async with running(max_pending_requests=2) as (app, client):
        waiting = [asyncio.create_task(client.post("/v1/systemone", json=body)) for _ in range(2)]
        await until(lambda: app.state.service.pending()[0] == 2)
        started = time.perf_counter()
        response = await client.post("/v1/systemone", json=body)
        assert time.perf_counter() - started < 2
        assert response.status_code == 529
        assert response.headers["content-type"] == "application/json"
        assert response.json()["detail"]["error_type"] == "overloaded_error"
        assert int(response.headers["retry-after"]) >= 1
        assert response.headers["x-typesafe-request-id"].startswith("req_")
        gate.open.set()
        assert [r.status_code for r in await asyncio.gather(*waiting)] == [200, 200]
        assert (await client.post("/v1/systemone", json=body)).status_code == 200


async def test_a_full_token_budget_529(running: Any, gate: Gate, body: dict[str, Any]) -> None:
    async with running(max_pending_tokens=60) as (app, client):
        waiting = asyncio.create_task(client.post("/v1/systemone", json=body))
        await until(lambda: app.state.service.pending()[0] == 1)
        response = await client.post("/v1/systemone", json=body)
        assert response.status_code == 529
        assert "tokens are pending" in response.json()["detail"]["message"]
        gate.open.set()
        assert (await waiting).status_code == 200


async def test_the_event_loop_stays_free_while_the_model_runs(
    running: Any, gate: Gate, body: dict[str, Any]
) -> None:
    async with running() as (_app, client):
        waiting = asyncio.create_task(client.post("/v1/systemone", json=body))
        await until(gate.entered.is_set)
        assert (await client.get("/health")).status_code == 200
        assert (await client.post("/v1/systemone", json={})).status_code == 422
        gate.open.set()
        await waiting


async def test_the_deadline_setting_529(running: Any, gate: Gate, body: dict[str, Any]) -> None:
    async with running(request_timeout_s=0.2) as (_app, client):
        response = await client.post("/v1/systemone", json=body)
        assert response.status_code == 529
        assert response.json()["detail"]["message"] == "The deadline passed while the request was running"
        await until(lambda: gate.cancelled == 1)


async def test_the_timeout_header_lowers_the_deadline(running: Any, gate: Gate, body: dict[str, Any]) -> None:
    async with running() as (_app, client):
        first = asyncio.create_task(client.post("/v1/systemone", json=body))
        await until(gate.entered.is_set)
        response = await client.post("/v1/systemone", json=body, headers={"timeout": "0.2"})
        assert response.status_code == 529
        assert response.json()["detail"]["message"] == "The deadline passed while the request was running"
        gate.open.set()
        assert (await first).status_code == 200


async def test_the_timeout_header_does_not_raise_the_deadline(
    running: Any, gate: Gate, body: dict[str, Any]
) -> None:
    async with running(request_timeout_s=0.2) as (_app, client):
        assert (await client.post("/v1/systemone", json=body, headers={"timeout": "60"})).status_code == 529


async def test_a_deadline_during_preparation_529(running: Any, engine: Any, body: dict[str, Any]) -> None:
    engine.on_prepare = lambda request: time.sleep(0.5)
    async with running(request_timeout_s=0.1) as (_app, client):
        response = await client.post("/v1/systemone", json=body)
        assert response.status_code == 529
        assert response.json()["detail"]["message"].endswith("while the request was being prepared")
    assert engine.ran == []


def leaving(body: dict[str, Any], gone: asyncio.Event) -> Callable[[], Any]:
    """An ASGI receive of a client that sends its body and goes away when `gone` is set."""
    sent = False

    async def receive() -> dict[str, Any]:
        nonlocal sent
        if not sent:
            sent = True
            return {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}
        await gone.wait()
        return {"type": "http.disconnect"}

    return receive


async def test_a_client_that_leaves_stops_its_running_work(
    running: Any, gate: Gate, engine: Any, call: Any, body: dict[str, Any]
) -> None:
    async with running() as (app, client):
        gone = asyncio.Event()
        request = asyncio.create_task(call(app, leaving(body, gone)))
        await until(gate.entered.is_set)
        gone.set()
        response = await request
        assert (response.status, response.body) == (499, b"")
        await until(lambda: app.state.service.pending() == (0, 0))
        await until(lambda: gate.cancelled == 1)
        gate.open.set()
        assert (await client.post("/v1/systemone", json=body)).status_code == 200


async def test_a_client_that_leaves_frees_its_place_in_the_queue(
    running: Any, gate: Gate, engine: Any, call: Any, body: dict[str, Any]
) -> None:
    async with running(max_pending_requests=2) as (app, client):
        first = asyncio.create_task(client.post("/v1/systemone", json=body))
        await until(gate.entered.is_set)
        gone = asyncio.Event()
        queued = asyncio.create_task(call(app, leaving(body, gone)))
        await until(lambda: app.state.service.pending()[0] == 2)
        gone.set()
        assert (await queued).status == 499
        await until(lambda: app.state.service.pending()[0] == 1)
        gate.open.set()
        assert (await first).status_code == 200


async def test_stopping_the_app_answers_what_still_waits_503(
    running: Any, gate: Gate, body: dict[str, Any]
) -> None:
    async with running() as (app, client):
        waiting = [asyncio.create_task(client.post("/v1/systemone", json=body)) for _ in range(2)]
        await until(lambda: app.state.service.pending()[0] == 2)
        await app.state.service.stop()
        for response in await asyncio.gather(*waiting):
            assert response.status_code == 503
            assert response.json()["detail"]["message"] == "The server is shutting down"
        response = await client.post("/v1/systemone", json=body)
        assert response.status_code == 503


async def test_a_cancelled_request_is_answered_503(
    running: Any, gate: Gate, call: Any, body: dict[str, Any]
) -> None:
    async with running() as (app, _client):
        request = asyncio.create_task(call(app, leaving(body, asyncio.Event())))
        await until(gate.entered.is_set)
        request.cancel()
        response = await request
        assert response.status == 503
        assert response.headers["x-request-id"].startswith("req_")
        await until(lambda: gate.cancelled == 1)
