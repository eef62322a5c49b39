"""Pause, resume and cache reset for whoever runs the server, behind a key of their own."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, ConfigDict, Field

from jev.scheduler import Scheduler
from jev.server.auth import Authenticator
from jev.server.openapi import ERRORS
from jev.server.routes import service_of


class PauseRequest(BaseModel):
    """How to pause."""

    model_config = ConfigDict(extra="forbid")

    mode: Literal["keep", "finish", "abort"] = Field(
        default="finish",
        description="what has begun: `finish` decisions and canvases, `keep` all where it is, `abort` all",
    )


class ControlState(BaseModel):
    """What the model's thread is at."""

    paused: bool
    requests: int = Field(description="decisions waiting or running")
    texts: int = Field(description="texts waiting or being written")


def control_api(key: str) -> APIRouter:
    """The routes, for holders of `key` alone."""
    authenticator = Authenticator([key])

    async def guard(request: Request) -> None:
        authenticator.check(request.headers)

    api = APIRouter(
        prefix="/v1/control", dependencies=[Depends(guard)], responses=ERRORS, tags=["operations"]
    )

    @api.get("", summary="Whether the model is paused, and what waits")
    async def state(request: Request) -> ControlState:
        return _state(_scheduler(request))

    @api.post("/pause", summary="Let the model rest")
    async def pause(request: Request, body: PauseRequest | None = None) -> ControlState:
        """Answer once the model is at rest. Requests that come now wait, each up to its deadline."""
        scheduler = _scheduler(request)
        await scheduler.pause((body or PauseRequest()).mode)
        return _state(scheduler)

    @api.post("/resume", summary="Go on after a pause")
    async def resume(request: Request) -> ControlState:
        scheduler = _scheduler(request)
        scheduler.resume()
        return _state(scheduler)

    @api.post("/reset-cache", summary="Forget cached prefixes and pictures")
    async def reset(request: Request) -> ControlState:
        """Answer once they are gone. What is being decided or written keeps what it stands behind."""
        scheduler = _scheduler(request)
        await scheduler.reset_cache()
        return _state(scheduler)

    return api


def _scheduler(request: Request) -> Scheduler:
    return service_of(request).serving()[1]


def _state(scheduler: Scheduler) -> ControlState:
    return ControlState(
        paused=scheduler.paused, requests=scheduler.pending[0], texts=scheduler.pending_texts[0]
    )
