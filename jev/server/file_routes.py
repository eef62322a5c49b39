"""The routes of uploads: files are stored once and then named by their ids in requests."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from functools import partial
from typing import Any

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel
from starlette.responses import JSONResponse, Response

from jev.errors import NotFoundError, ServerError
from jev.server.files import FileStore, StoredFile
from jev.server.openapi import ERRORS
from jev.server.routes import guard, service_of
from jev.server.service import Service
from jev.server.uploads import FILE_PART, MAX_FILES, MAX_HEAD, UploadParser, boundary_of, receive_upload

MAX_LISTED = 1000
"""Most files that a list shows."""

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
                        }
                    },
                    "additionalProperties": False,
                }
            }
        },
    }
}


class UploadedFile(BaseModel):
    """One file: its id, the name it was last uploaded with, and when it will be removed if not used."""

    id: str
    name: str
    bytes: int
    kind: str
    sha256: str
    expires_at: str

    @classmethod
    def of(cls, file: StoredFile) -> UploadedFile:
        """Return what the API shows of a stored file."""
        expires = datetime.fromtimestamp(min(file.expires, _LAST_SECOND), UTC)
        return cls(
            id=file.id,
            name=file.name,
            bytes=file.size,
            kind=file.kind,
            sha256=file.sha256,
            expires_at=expires.strftime("%Y-%m-%dT%H:%M:%SZ"),
        )


class UploadedFiles(BaseModel):
    """Several files."""

    files: list[UploadedFile]


files_api = APIRouter(prefix="/v1/files", dependencies=[Depends(guard)], responses=_ERRORS, tags=["files"])


@files_api.post("", summary="Upload files", response_model=UploadedFiles, openapi_extra=_UPLOAD_BODY)
async def upload(request: Request) -> Response:
    """Store the parts named `file` and return their ids in order; if one is refused, none is stored."""
    boundary = boundary_of(request.headers)
    service = service_of(request)
    store = _store_of(service)
    batch = store.begin()
    try:
        await receive_upload(
            request.receive,
            request.headers,
            UploadParser(batch, boundary),
            service.in_worker,
            limit=min(MAX_FILES * store.max_bytes, store.quota_bytes) + MAX_FILES * MAX_HEAD,
            idle_seconds=service.settings.body_timeout_s,
        )
        stored = await service.in_worker(batch.commit)
    finally:
        # Shielded: it waits for a worker that still writes, and must happen also if this is cancelled.
        await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, batch.close))
    return _list_of(stored)


@files_api.get("", summary="List the files", response_model=UploadedFiles)
async def list_files(request: Request) -> Response:
    """List at most 1000 files, the newest first."""
    service = service_of(request)
    return _list_of(await service.in_worker(partial(_store_of(service).list, MAX_LISTED)))


@files_api.get("/{id}", summary="Show one file", response_model=UploadedFile)
async def get_file(request: Request, id: str) -> Response:
    """Show what is known about a file; its content is not given out."""
    service = service_of(request)
    try:
        file = await service.in_worker(partial(_store_of(service).get, id))
    except KeyError:
        raise _no_file() from None
    return JSONResponse(UploadedFile.of(file).model_dump())


@files_api.delete("/{id}", summary="Remove a file", status_code=204, response_class=Response)
async def delete_file(request: Request, id: str) -> Response:
    """Remove a file for everybody who uploaded it."""
    service = service_of(request)
    try:
        await service.in_worker(partial(_store_of(service).delete, id))
    except KeyError:
        raise _no_file() from None
    return Response(status_code=204)


def _store_of(service: Service) -> FileStore:
    if not isinstance(service.files, FileStore):
        raise ServerError("This server takes no uploads", status=503, error_type="storage_unavailable")
    return service.files


def _list_of(files: list[StoredFile]) -> Response:
    return JSONResponse(UploadedFiles(files=[UploadedFile.of(file) for file in files]).model_dump())


def _no_file() -> NotFoundError:
    return NotFoundError("There is no file with this id; it may have expired")
