"""A server with the page whose chat says what a test wants it to say."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from jev.server.page import page_routes

GATE_S = 120

Script = Callable[[dict[str, Any]], list[Any]]
"""What a chat is answered with: events, and `threading.Event`s to wait for between them; or a response."""


@contextmanager
def scripted(script: Script, **headers: str) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A server with the page and a chat that streams `script(body)`: its address and the bodies it got."""
    bodies: list[dict[str, Any]] = []
    app = FastAPI()
    app.include_router(page_routes())

    @app.get("/ready")
    async def ready() -> dict[str, str]:
        return {"status": "ready", "model": "scripted"}

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"models": [{"name": "jev-latest", "description": "", "release_date": "2026-01-01"}]}

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        bodies.append(await request.json())
        parts = script(bodies[-1])
        if len(parts) == 1 and isinstance(parts[0], JSONResponse):
            return parts[0]

        async def lines() -> AsyncIterator[str]:
            for part in parts:
                if isinstance(part, threading.Event):
                    await asyncio.to_thread(part.wait, GATE_S)
                else:
                    yield f"data: {part if isinstance(part, str) else json.dumps(part)}\n\n"

        return StreamingResponse(lines(), media_type="text/event-stream", headers=headers)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(app, log_level="error", lifespan="off", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/", bodies
        finally:
            server.should_exit = True
            thread.join(10)


def text(content: str, finish: str | None = None) -> dict[str, Any]:
    """A chunk of committed text."""
    delta = {"content": content} if content else {}
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def refined(block: int, step: int, canvas: str, kept: list[list[int]], final: bool = False) -> dict[str, Any]:
    """A canvas as it is after a step."""
    told = {
        "block": block,
        "step": step,
        "steps": 8,
        "text": canvas,
        "kept": kept,
        "entropy": 1 / step,
        "final": final,
    }
    return {"choices": [], "x_denoising": told}
