"""The routes: decisions and models behind the key; health, readiness and metrics open."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Depends, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import JSONResponse, PlainTextResponse, Response

from jev.attachments import Source, sources_of
from jev.errors import OverloadedError
from jev.material import NOTHING
from jev.schemas import (
    ServedModels,
    SystemOneRequest,
    SystemOneResponse,
    Warning,
    parse_json,
    parse_request,
)
from jev.server.body import Lease, Media
from jev.server.metrics import Metrics
from jev.server.openapi import ERRORS, SYSTEMONE
from jev.server.record import RequestRecord
from jev.server.service import Service
from jev.server.tracing import Decision
from jev.server.waiting import seconds_allowed, unless_gone

if TYPE_CHECKING:
    from jev.engine import Plan


def service_of(request: Request) -> Service:
    """Return the app's shared state."""
    return request.app.state.service


async def guard(request: Request) -> None:
    """Check the key and the rate, before anything of the body is read."""
    service = service_of(request)
    caller = service.authenticator.check(request.headers)
    if caller is None:
        caller = request.client.host if request.client else "unknown"
    service.rate_limiter.check(caller)


api = APIRouter(prefix="/v1", dependencies=[Depends(guard)], responses=ERRORS)
ops = APIRouter()


@api.post("/systemone", summary="Answer typed questions about a state", tags=["decisions"], **SYSTEMONE)
async def systemone(request: Request) -> Response:
    """Read the state once and return a probability for every label of every question."""
    service = service_of(request)
    with service.tracing.decision(RequestRecord.of(request.scope).id, request.headers) as decision:
        return await _decide(service, request, decision)


@api.get("/models", summary="List the models", response_model=ServedModels, tags=["decisions"])
async def models(request: Request) -> Response:
    """List what the `model` field of a request may name."""
    engine, _ = service_of(request).serving()
    return JSONResponse(ServedModels.of(engine.models()).model_dump())


@ops.head("/health", include_in_schema=False)
@ops.get("/health", summary="Whether the process is alive", tags=["operations"])
async def health() -> dict[str, str]:
    """Answer at once, also while the model is loading."""
    return {"status": "ok"}


@ops.head("/ready", include_in_schema=False)
@ops.get("/ready", summary="Whether requests are served", tags=["operations"], responses={503: ERRORS[503]})
async def ready(request: Request) -> dict[str, str]:
    """Answer 200 once the model is loaded, 503 before that and when it could not be."""
    engine, _ = service_of(request).serving()
    return {"status": "ready", "model": engine.name}


@ops.get("/metrics", summary="Prometheus metrics", tags=["operations"], response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    """Show counters, latencies, the queue, the prefix cache and the process."""
    shown: Metrics = request.app.state.metrics
    return Response(shown.render(), headers={"content-type": CONTENT_TYPE_LATEST})


def to_json(response: SystemOneResponse, warnings: Sequence[Warning]) -> bytes:
    """Return the 200 body. Numbers that JSON does not have raise ValueError: they are never sent as null."""
    body = body_of(response, warnings)
    return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def body_of(response: SystemOneResponse, warnings: Sequence[Warning]) -> dict[str, Any]:
    """Return the 200 body as plain JSON values."""
    body: dict[str, Any] = response.model_dump(mode="json")
    ignored = [warning.model_dump(mode="json") for warning in warnings]
    body["x_warnings"] = [*ignored, *(body["x_warnings"] or ())] or None
    for key in ("x_warnings", "x_diagnostics"):
        if body[key] is None:
            del body[key]
    return body


async def _decide(service: Service, request: Request, decision: Decision) -> Response:
    service.serving()  # without a model, say so before the body is read
    media = Media.of(request.headers)
    deadline = time.monotonic() + seconds_allowed(request.headers, service.settings.request_timeout_s)
    with service.bodies.lease() as lease:
        raw = await service.receive(request, lease)
        prepared = _prepare(service, media, raw, deadline, lease)
        plan, warnings = await unless_gone(request.receive, prepared)
        del raw
    record = RequestRecord.of(request.scope)
    record.questions, record.tokens = plan.questions, plan.tokens
    decision.asked(plan.request)
    work = service.serving()[1].submit(plan, deadline=deadline)
    response, record.queue_seconds = await unless_gone(request.receive, work)
    answer = Response(to_json(response, warnings), media_type="application/json")
    decision.answered(response)
    return answer


async def _prepare(
    service: Service, media: Media, raw: bytes, deadline: float, lease: Lease
) -> tuple[Plan, list[Warning]]:
    """Turn a raw body into a plan, on a worker thread."""
    engine, _ = service.serving()
    limit = service.settings.max_expanded_bytes

    def parse() -> tuple[SystemOneRequest, list[Warning], list[Source]]:
        body, parts = media.unpack(raw, limit)
        request, warnings = parse_request(parse_json(body))
        return request, warnings, sources_of(request, parts, service.files, service.limits)

    try:
        async with asyncio.timeout(deadline - time.monotonic()):
            request, warnings, sources = await service.in_worker(parse)
            # A body of a few bytes may name many megabytes, which wait in memory for their turn.
            lease.take(sum(len(source.data) for source in sources if source.uploaded))
            material = await service.reader().read(sources) if sources else NOTHING
            return await service.in_worker(lambda: engine.prepare(request, material)), warnings
    except TimeoutError:
        raise OverloadedError(
            "The deadline passed while the request was being prepared", retry_after=1
        ) from None
