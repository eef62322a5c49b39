"""Pause, resume and cache reset for whoever runs the server, behind a key of their own."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from jev.errors import InvalidRequestError
from jev.scheduler import Scheduler
from jev.schemas import issues_of, parse_json
from jev.server.auth import Authenticator
from jev.server.openapi import ERRORS
from jev.server.routes import service_of

MAX_BODY = 4096
"""Bytes of the largest body."""


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

    body = {"content": {"application/json": {"schema": PauseRequest.model_json_schema()}}}

    @api.post("/pause", summary="Let the model rest", openapi_extra={"requestBody": body})
    async def pause(request: Request) -> ControlState:
        """Answer once the model is at rest. Requests that come now wait, each up to its deadline."""
        asked = await _pause_request(request)  # by hand: FastAPI would read a body before the key
        scheduler = _scheduler(request)
        await scheduler.pause(asked.mode)
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


async def _pause_request(request: Request) -> PauseRequest:
    """What the body asks for; without one what is usual.

    Raises:
        APIError: it is too large, too slow, or asks for something else.
    """
    service = service_of(request)
    with service.bodies.lease() as lease:
        raw = await service.receive(request, lease, limit=MAX_BODY)
    asked = parse_json(raw) if raw.strip() else None
    try:
        return PauseRequest() if asked is None else PauseRequest.model_validate(asked)
    except ValidationError as error:
        raise InvalidRequestError.of(issues_of(error)) from None


def _scheduler(request: Request) -> Scheduler:
    return service_of(request).serving()[1]


def _state(scheduler: Scheduler) -> ControlState:
    return ControlState(
        paused=scheduler.paused, requests=scheduler.pending[0], texts=scheduler.pending_texts[0]
    )
