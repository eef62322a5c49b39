"""The routes of uploads: files are stored once and then named by their ids in requests."""

from __future__ import annotations

import asyncio
import re
import time
from datetime import UTC, datetime
from functools import partial
from typing import Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import FileResponse, JSONResponse, Response

from jev.errors import NotFoundError, ServerError
from jev.schemas import BadRequestError, UploadedFile, UploadedFiles
from jev.schemas.batches import FileObject
from jev.server.batch_store import BatchStore, ResultFile
from jev.server.files import FileStore, StoredFile
from jev.server.openapi import ERRORS
from jev.server.routes import guard, service_of
from jev.server.service import Service
from jev.server.uploads import (
    FILE_PART,
    MAX_FILES,
    MAX_HEAD,
    PURPOSE,
    UploadParser,
    boundary_of,
    receive_upload,
)

MAX_LISTED = 1000
"""Most files that a list shows."""

JSON_LINES = "application/jsonl"

_PURPOSE = re.compile(r"[a-z][a-z_-]{0,31}", re.ASCII)

_LAST_SECOND = 253402300799.0  # of the year 9999, the last that a date can have

_ERRORS: dict[int | str, dict[str, Any]] = {
    **{status: ERRORS[status] for status in (401, 403, 408, 413, 415, 422, 429, 500, 529)},
    404: {**ERRORS[404], "description": "There is no such file, or it has expired"},
    503: {**ERRORS[503], "description": "The files cannot be stored or read"},
}

_UPLOAD_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": [FILE_PART],
                    "properties": {
                        FILE_PART: {
                            "type": "array",
                            "minItems": 1,
                            "maxItems": MAX_FILES,
                            "items": {"type": "string", "format": "binary"},
                        },
                        PURPOSE: {
                            "type": "string",
                            "pattern": f"^{_PURPOSE.pattern}$",
                            "description": "with it, one file is taken and the answer is a file object",
                        },
                    },
                    "additionalProperties": False,
                }
            }
        },
    }
}


files_api = APIRouter(prefix="/v1/files", dependencies=[Depends(guard)], responses=_ERRORS, tags=["files"])


@files_api.post(
    "", summary="Upload files", response_model=UploadedFiles | FileObject, openapi_extra=_UPLOAD_BODY
)
async def upload(request: Request) -> Response:
    """Store the parts named `file` and return their ids in order; if one is refused, none is stored.

    With a field `purpose`, such as "batch", one file is taken and the answer is a file object as OpenAI's
    API has it.
    """
    boundary = boundary_of(request.headers)
    service = service_of(request)
    store = store_of(service)
    batch = store.begin()
    try:
        parser = UploadParser(batch, boundary)
        await receive_upload(
            request.receive,
            request.headers,
            parser,
            service.in_worker,
            limit=min(MAX_FILES * store.max_bytes, store.quota_bytes) + MAX_FILES * MAX_HEAD,
            idle_seconds=service.settings.body_timeout_s,
        )
        purpose = _purpose_of(parser)
        stored = await service.in_worker(batch.commit)
    finally:
        # Shielded: it waits for a worker that still writes, and must happen also if this is cancelled.
        await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, batch.close))
    return _list_of(stored) if purpose is None else JSONResponse(_object_of(stored[0], purpose).model_dump())


@files_api.get("", summary="List the files", response_model=UploadedFiles)
async def list_files(request: Request) -> Response:
    """List at most 1000 files, the newest first."""
    service = service_of(request)
    return _list_of(await service.in_worker(partial(store_of(service).list, MAX_LISTED)))


@files_api.get("/{id}", summary="Show one file", response_model=UploadedFile | FileObject)
async def get_file(request: Request, id: str) -> Response:
    """Show what is known about an upload, or about the results of a batch."""
    if (result := _result_of(request, id)) is not None:
        return JSONResponse(_object_of_result(result).model_dump())
    service = service_of(request)
    try:
        file = await service.in_worker(partial(store_of(service).get, id))
    except KeyError:
        raise _no_file() from None
    return JSONResponse(_shown(file).model_dump(mode="json"))


@files_api.get(
    "/{id}/content",
    summary="Read the results of a batch",
    response_class=FileResponse,
    responses={200: {"description": "JSON lines", "content": {JSON_LINES: {"schema": {"type": "string"}}}}},
)
async def get_content(request: Request, id: str) -> Response:
    """Give out a batch's file of answers or of errors; the content of an upload is not given out."""
    result = _result_of(request, id)
    if result is None:
        raise NotFoundError("There are no results with this id; the content of uploads is not given out")
    return FileResponse(result.path, media_type=JSON_LINES, filename=f"{id}.jsonl")


@files_api.delete("/{id}", summary="Remove a file", status_code=204, response_class=Response)
async def delete_file(request: Request, id: str) -> Response:
    """Remove a file for everybody who uploaded it."""
    service = service_of(request)
    try:
        await service.in_worker(partial(store_of(service).delete, id))
    except KeyError:
        raise _no_file() from None
    return Response(status_code=204)


def store_of(service: Service) -> FileStore:
    """Return the store of uploads; ServerError 503 if there is none."""
    if not isinstance(service.files, FileStore):
        raise ServerError("This server takes no uploads", status=503, error_type="storage_unavailable")
    return service.files


def _list_of(files: list[StoredFile]) -> Response:
    return JSONResponse(UploadedFiles(files=[_shown(file) for file in files]).model_dump(mode="json"))


def _shown(file: StoredFile) -> UploadedFile:
    """What the API shows of a stored file."""
    expires = datetime.fromtimestamp(int(min(file.expires, _LAST_SECOND)), UTC)
    return UploadedFile(
        id=file.id,
        name=file.name,
        bytes=file.size,
        kind=file.kind,
        sha256=file.sha256,
        expires_at=expires,
    )


def _purpose_of(parser: UploadParser) -> str | None:
    """What an upload is for, where it says so.

    Raises:
        BadRequestError: it is not a plain word, or there are several files.
    """
    purpose = parser.fields.get(PURPOSE)
    if purpose is None:
        return None
    if not _PURPOSE.fullmatch(purpose):
        raise BadRequestError.at(PURPOSE, msg=f"Input should match {_PURPOSE.pattern}")
    if parser.count > 1:
        raise BadRequestError.at(
            "files", msg=f"An upload with a purpose has one file, this one has {parser.count}"
        )
    return purpose


def _object_of(file: StoredFile, purpose: str) -> FileObject:
    return FileObject(
        id=file.id,
        bytes=file.size,
        created_at=int(time.time()),
        expires_at=int(min(file.expires, _LAST_SECOND)),
        filename=file.name,
        purpose=purpose,
    )


def _result_of(request: Request, id: str) -> ResultFile | None:
    store: BatchStore | None = request.app.state.batches.store
    try:
        return store.result(id) if store is not None else None
    except KeyError:
        return None


def _object_of_result(result: ResultFile) -> FileObject:
    return FileObject(
        id=result.id,
        bytes=result.size,
        created_at=result.batch.finalizing_at or result.batch.created_at,
        expires_at=int(min(result.expires, _LAST_SECOND)),
        filename=f"{result.id}.jsonl",
        purpose="batch_output",
    )


def _no_file() -> NotFoundError:
    return NotFoundError("There is no file with this id; it may have expired")
