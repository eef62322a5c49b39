"""Whoever has the control key can let the model rest; nobody else can, and without a key nobody."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from jev.server.app import create_app
from jev.settings import Settings, SettingsError

pytestmark = pytest.mark.anyio

KEY = {"authorization": "Bearer ctl-1"}
PATHS = [("GET", ""), ("POST", "/pause"), ("POST", "/resume"), ("POST", "/reset-cache")]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def http(engine: Any) -> AsyncIterator[httpx.AsyncClient]:
    engine.forget = lambda: None
    app = create_app(Settings.load(control_key="ctl-1", api_keys=["user-1"]), engine)
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://jev") as client:
            yield client


async def once_pending(http: httpx.AsyncClient) -> dict[str, Any]:
    """The state once a request has come."""
    for _ in range(1000):
        state = (await http.get("/v1/control", headers=KEY)).json()
        if state["requests"]:
            return state
        await asyncio.sleep(0.01)
    raise AssertionError("no request came")


@pytest.mark.parametrize(("method", "path"), PATHS)
def test_without_a_control_key_there_is_no_such_route(
    start: Callable[..., TestClient], method: str, path: str
) -> None:
    assert start().request(method, f"/v1/control{path}", headers=KEY).status_code == 404


@pytest.mark.parametrize(("method", "path"), PATHS)
async def test_the_key_of_a_user_does_not_open_it(http: httpx.AsyncClient, method: str, path: str) -> None:
    assert (await http.request(method, f"/v1/control{path}")).status_code == 403
    user = {"authorization": "Bearer user-1"}
    assert (await http.request(method, f"/v1/control{path}", headers=user)).status_code == 401
    assert (await http.post("/v1/systemone", headers=KEY)).status_code == 401


async def test_requests_wait_while_it_is_paused(http: httpx.AsyncClient, body: dict[str, Any]) -> None:
    quiet = {"paused": True, "requests": 0, "texts": 0}
    assert (await http.post("/v1/control/pause", headers=KEY)).json() == quiet
    user = {"authorization": "Bearer user-1"}
    waiting = asyncio.create_task(http.post("/v1/systemone", json=body, headers=user))
    assert await once_pending(http) == {"paused": True, "requests": 1, "texts": 0}
    assert not waiting.done()
    assert (await http.post("/v1/control/resume", headers=KEY)).json()["paused"] is False
    assert (await waiting).status_code == 200


async def test_an_abort_refuses_what_waits(http: httpx.AsyncClient, body: dict[str, Any]) -> None:
    await http.post("/v1/control/pause", json={"mode": "keep"}, headers=KEY)
    user = {"authorization": "Bearer user-1"}
    waiting = asyncio.create_task(http.post("/v1/systemone", json=body, headers=user))
    await once_pending(http)
    await http.post("/v1/control/pause", json={"mode": "abort"}, headers=KEY)
    answer = await waiting
    assert answer.status_code == 503 and "paused" in answer.text


@pytest.mark.parametrize("given", [{"mode": "now"}, {"mode": None}, {"how": "keep"}, [], "keep"])
async def test_a_wrong_mode_is_named(http: httpx.AsyncClient, given: Any) -> None:
    answer = await http.post("/v1/control/pause", json=given, headers=KEY)
    assert answer.status_code == 422
    assert (await http.get("/v1/control", headers=KEY)).json()["paused"] is False


@pytest.mark.parametrize(
    "raw", [b'{"mode": NaN}', b'{"mode": "\\ud800"}', b"{", b"\xff", b"[" * 2000, b" " * 5000]
)
async def test_a_body_that_cannot_be_is_refused(http: httpx.AsyncClient, raw: bytes) -> None:
    answer = await http.post("/v1/control/pause", content=raw, headers=KEY)
    assert answer.status_code in (413, 422)
    assert (await http.get("/v1/control", headers=KEY)).json()["paused"] is False
    assert (await http.post("/v1/control/pause", content=b"  ", headers=KEY)).json()["paused"] is True


async def test_without_the_key_no_body_is_read(http: httpx.AsyncClient) -> None:
    read = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal read
        for _ in range(100):
            read += 1
            yield b" " * 2**16

    app = http._transport.app  # type: ignore[attr-defined]
    sent: list[Any] = []
    chunks = endless()

    async def receive() -> Any:
        return {"type": "http.request", "body": await anext(chunks), "more_body": True}

    async def send(message: Any) -> None:
        sent.append(message)

    path = "/v1/control/pause"
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"content-type", b"application/json")],
        "client": ("1.2.3.4", 1),
        "server": ("x", 80),
    }
    await app(scope, receive, send)
    assert sent[0]["status"] == 403
    assert read <= 1


async def test_the_cache_is_reset(http: httpx.AsyncClient) -> None:
    assert (await http.post("/v1/control/reset-cache", headers=KEY)).status_code == 200


def test_an_empty_key_is_no_key() -> None:
    with pytest.raises(SettingsError, match="control_key"):
        Settings.load(control_key="")
