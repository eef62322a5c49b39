"""The routes of batches: jobs of many requests, in the shape of OpenAI's batch API."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from pydantic import ValidationError
from starlette.responses import JSONResponse, Response, StreamingResponse

from jev.errors import InvalidRequestError, NotFoundError
from jev.schemas import BadRequestError, Issue, parse_json
from jev.schemas.batches import Batch, BatchCreate, BatchList
from jev.schemas.errors import issues_of
from jev.server.batch_jobs import BatchJobs
from jev.server.body import Media
from jev.server.file_routes import JSON_LINES, store_of
from jev.server.openapi import ERRORS
from jev.server.routes import guard, service_of

MAX_BODY = 2**16
"""Bytes of the largest `POST /v1/batches`: it names a file, it does not hold it."""
MAX_LISTED = 100
DEFAULT_LISTED = 20

_UNFINISHED: dict[int | str, dict[str, Any]] = {
    409: {**ERRORS[503], "description": "The batch has not ended"}
}
_ERRORS: dict[int | str, dict[str, Any]] = {
    **{status: ERRORS[status] for status in (401, 403, 422, 429, 500)},
    404: {**ERRORS[404], "description": "There is no such batch"},
    503: {**ERRORS[503], "description": "The batches cannot be stored or read"},
}
_CREATE_ERRORS: dict[int | str, dict[str, Any]] = {
    **{status: ERRORS[status] for status in (408, 415, 529)},
    413: {**ERRORS[413], "description": "The body is too large, or there are too many batches"},
}

batches_api = APIRouter(
    prefix="/v1/batches", dependencies=[Depends(guard)], responses=_ERRORS, tags=["batches"]
)


@batches_api.post(
    "",
    summary="Start a batch",
    response_model=Batch,
    responses=_CREATE_ERRORS,
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": BatchCreate.model_json_schema()}},
        }
    },
)
async def create(request: Request) -> Response:
    """Queue the requests of an uploaded file of JSON lines; they run behind all other requests."""
    service, jobs = service_of(request), _jobs_of(request)
    media = Media.of(request.headers)
    with service.bodies.lease() as lease:
        raw = await service.receive(request, lease, limit=MAX_BODY)
    asked = _asked(media, raw)
    store = store_of(service)
    try:
        _, data = await service.in_worker(partial(store.read, asked.input_file_id))
    except KeyError:
        raise BadRequestError.at(
            "input_file_id", msg="There is no uploaded file with this id; it may have expired"
        ) from None
    return _shown(await jobs.create(asked, data))


@batches_api.get("", summary="List the batches", response_model=BatchList)
async def list_batches(
    request: Request,
    limit: Annotated[str, Query(description=f"1 to {MAX_LISTED}")] = str(DEFAULT_LISTED),
    after: Annotated[str | None, Query(description="id of the last batch of the page before")] = None,
) -> Response:
    """List the batches, the newest first."""
    count = int(limit) if limit.isascii() and limit.isdecimal() and len(limit) < 4 else 0
    if not 1 <= count <= MAX_LISTED:
        raise _bad_query("limit", f"Input should be a whole number from 1 to {MAX_LISTED}")
    batches = _jobs_of(request).kept.all()
    if after is not None:
        # Ids sort as they were made, so the page goes on also if that batch was removed meanwhile.
        batches = [batch for batch in batches if batch.id < after]
    page = batches[:count]
    shown = BatchList(
        data=page,
        first_id=page[0].id if page else None,
        last_id=page[-1].id if page else None,
        has_more=len(batches) > count,
    )
    return JSONResponse(shown.model_dump())


@batches_api.get("/{id}", summary="Show a batch", response_model=Batch)
async def get_batch(request: Request, id: str) -> Response:
    """Show how far a batch is, and where its results are once it has ended."""
    try:
        return _shown(_jobs_of(request).kept.get(id))
    except KeyError:
        raise _no_batch() from None


@batches_api.post("/{id}/cancel", summary="Cancel a batch", response_model=Batch)
async def cancel(request: Request, id: str) -> Response:
    """Have a batch end after the requests that are with the model; what was decided stays readable."""
    try:
        return _shown(await _jobs_of(request).cancel(id))
    except KeyError:
        raise _no_batch() from None


@batches_api.get(
    "/{id}/results",
    summary="Read all results of a batch",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "JSON lines, one for each request in the order of the input",
            "content": {JSON_LINES: {"schema": {"type": "string"}}},
        },
        **_UNFINISHED,
    },
)
async def results(request: Request, id: str) -> Response:
    """Give out answers and errors together, in the order of the input, once the batch has ended."""
    jobs = _jobs_of(request)
    try:
        batch = jobs.ended(id)
    except KeyError:
        raise _no_batch() from None
    return StreamingResponse(jobs.kept.results(batch.id), media_type=JSON_LINES)


@batches_api.delete(
    "/{id}", summary="Remove a batch", status_code=204, response_class=Response, responses=_UNFINISHED
)
async def delete(request: Request, id: str) -> Response:
    """Remove a batch that has ended, with its results."""
    try:
        await _jobs_of(request).remove(id)
    except KeyError:
        raise _no_batch() from None
    return Response(status_code=204)


def _asked(media: Media, raw: bytes) -> BatchCreate:
    if media.boundary is not None:
        raise BadRequestError.at(msg="Send application/json", type="multipart_invalid")
    data, _ = media.unpack(raw, MAX_BODY)
    try:
        return BatchCreate.model_validate(parse_json(data))
    except ValidationError as error:
        raise BadRequestError(issues_of(error)) from None


def _jobs_of(request: Request) -> BatchJobs:
    return request.app.state.batches


def _shown(batch: Batch) -> Response:
    return JSONResponse(batch.model_dump())


def _no_batch() -> NotFoundError:
    return NotFoundError("There is no batch with this id; it may have been removed")


def _bad_query(name: str, message: str) -> InvalidRequestError:
    return InvalidRequestError.of([Issue(loc=["query", name], msg=message, type="value_error")])
