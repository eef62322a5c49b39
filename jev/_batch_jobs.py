"""`client.batches`: batches that a server runs by itself, as `POST /v1/batches` starts them."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from time import monotonic
from typing import Any, TypeAlias, TypeVar, Unpack, cast

import httpx
from pydantic import BaseModel, ValidationError

from jev._attachments import Attachable
from jev._body import DEFAULT_MODEL, DecideOptions, Questions, State, encode
from jev._draft import Draft
from jev._transport import Request, Settings, get_request
from jev.errors import ResponseError, TimeoutError
from jev.results import first_error
from jev.schemas import UploadedFile
from jev.schemas.batches import ENDPOINT, Batch, BatchList, BatchResult

M = TypeVar("M", bound=BaseModel)

Lines: TypeAlias = "os.PathLike[str] | bytes | UploadedFile | Iterable[Mapping[str, Any]]"
"""Input of a batch: a file of JSON lines, its bytes, an upload, or the lines (see `batch_line`)."""

INPUT_NAME = "batch.jsonl"


def batch_line(
    custom_id: str,
    state: State,
    questions: Questions | type[Any],
    *,
    default_model: str = DEFAULT_MODEL,
    **options: Unpack[DecideOptions],
) -> dict[str, Any]:
    """Return one line of a batch's input: the arguments of `decide` under a name of the caller's.

    Args:
        custom_id: what its result is known by; each only once in a batch.
        state: see `decide`.
        questions: see `decide`.
        default_model: the model to ask where the options name none.
        options: see `DecideOptions`; attachments go inside the line.

    Raises:
        TypeError, OSError, InvalidRequestError: as in `decide`.
    """
    body = Draft.of(state, questions, options, model=default_model).complete()
    return {"custom_id": custom_id, "method": "POST", "url": ENDPOINT, "body": body}


class BatchJobs:
    """Batches of one server.

    Args:
        settings: of the client.
        send: sends a request.
        upload: uploads a file.
        sleep: waits.
    """

    def __init__(
        self,
        settings: Settings,
        send: Callable[[Request], httpx.Response],
        upload: Callable[[Attachable, str | None], UploadedFile],
        sleep: Callable[[float], None],
    ) -> None:
        self._settings = settings
        self._send = send
        self._upload = upload
        self._sleep = sleep

    def create(
        self, lines: Lines, *, completion_window: str = "24h", metadata: Mapping[str, str] | None = None
    ) -> Batch:
        """Upload the lines and start a batch; errors as in `Jev.decide`.

        Args:
            lines: its input, see `batch_line`.
            completion_window: hours after which what is not done is given up: "1h" to "168h".
            metadata: up to 16 strings to remember with it.
        """
        given = _input_of(lines)
        file = given if isinstance(given, UploadedFile) else self._upload(given, INPUT_NAME)
        return _read(Batch, self._send(_create(self._settings, file, completion_window, metadata)))

    def get(self, id: str) -> Batch:
        """Return how far a batch is; NotFoundError if there is none."""
        return _read(Batch, self._send(get_request(self._settings, f"/v1/batches/{_checked(id)}")))

    def list(self, *, limit: int = 20, after: str | None = None) -> BatchList:
        """Return batches, the newest first; `after` is the `last_id` of the page before."""
        return _read(BatchList, self._send(get_request(self._settings, _page(limit, after))))

    def cancel(self, id: str) -> Batch:
        """Have a batch end soon; one that has ended stays as it is."""
        return _read(Batch, self._send(_cancel(self._settings, id)))

    def wait(self, id: str, *, poll: float = 2.0, timeout: float | None = None) -> Batch:
        """Return a batch once it has ended.

        Args:
            id: the batch's.
            poll: seconds between two looks.
            timeout: most seconds to wait; then TimeoutError.
        """
        began = monotonic()
        while not (batch := self.get(id)).ended:
            _check_time(batch, began, timeout)
            self._sleep(poll)
        return batch

    def results(self, id: str) -> list[BatchResult]:
        """Return the results of a batch that has ended, in the order of its lines."""
        path = f"/v1/batches/{_checked(id)}/results"
        return _results(self._send(get_request(self._settings, path)))


class AsyncBatchJobs:
    """Batches of one server, for async code; see `BatchJobs`."""

    def __init__(
        self,
        settings: Settings,
        send: Callable[[Request], Awaitable[httpx.Response]],
        upload: Callable[[Attachable, str | None], Awaitable[UploadedFile]],
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self._settings = settings
        self._send = send
        self._upload = upload
        self._sleep = sleep

    async def create(
        self, lines: Lines, *, completion_window: str = "24h", metadata: Mapping[str, str] | None = None
    ) -> Batch:
        """Upload the lines and start a batch; see `BatchJobs.create`."""
        given = _input_of(lines)
        file = given if isinstance(given, UploadedFile) else await self._upload(given, INPUT_NAME)
        return _read(Batch, await self._send(_create(self._settings, file, completion_window, metadata)))

    async def get(self, id: str) -> Batch:
        """Return how far a batch is; NotFoundError if there is none."""
        return _read(Batch, await self._send(get_request(self._settings, f"/v1/batches/{_checked(id)}")))

    async def list(self, *, limit: int = 20, after: str | None = None) -> BatchList:
        """Return batches, the newest first; `after` is the `last_id` of the page before."""
        return _read(BatchList, await self._send(get_request(self._settings, _page(limit, after))))

    async def cancel(self, id: str) -> Batch:
        """Have a batch end soon; one that has ended stays as it is."""
        return _read(Batch, await self._send(_cancel(self._settings, id)))

    async def wait(
        self,
        id: str,
        *,
        poll: float = 2.0,
        timeout: float | None = None,  # noqa: ASYNC109 - as in `BatchJobs.wait`
    ) -> Batch:
        """Return a batch once it has ended; see `BatchJobs.wait`."""
        began = monotonic()
        while not (batch := await self.get(id)).ended:
            _check_time(batch, began, timeout)
            await self._sleep(poll)
        return batch

    async def results(self, id: str) -> list[BatchResult]:
        """Return the results of a batch that has ended, in the order of its lines."""
        path = f"/v1/batches/{_checked(id)}/results"
        return _results(await self._send(get_request(self._settings, path)))


def _input_of(lines: Lines) -> Path | bytes | UploadedFile:
    if isinstance(lines, (bytes, UploadedFile)):
        return lines
    if isinstance(lines, os.PathLike):
        return Path(lines)
    if isinstance(lines, (str, Mapping)):
        raise TypeError(
            f"lines must be a path, bytes or an iterable of lines, got {type(cast(object, lines)).__name__}"
        )
    return b"".join(encode(line) + b"\n" for line in lines)


def _create(
    settings: Settings, file: UploadedFile, window: str, metadata: Mapping[str, str] | None
) -> Request:
    body = {"input_file_id": file.id, "endpoint": ENDPOINT, "completion_window": window, "metadata": metadata}
    return Request(
        method="POST",
        path="/v1/batches",
        content=encode(body),
        headers={"content-type": "application/json"},
        timeout=settings.timeout,
        repeatable=False,
    )


def _cancel(settings: Settings, id: str) -> Request:
    return Request(method="POST", path=f"/v1/batches/{_checked(id)}/cancel", timeout=settings.timeout)


def _page(limit: int, after: str | None) -> str:
    return f"/v1/batches?{httpx.QueryParams({'limit': limit, **({'after': after} if after else {})})}"


def _checked(id: str) -> str:
    """An id that may stand in a path."""
    if not id or not all(character.isalnum() or character in "_-" for character in id) or not id.isascii():
        raise ValueError(f"{id!r} is not the id of a batch")
    return id


def _check_time(batch: Batch, began: float, timeout: float | None) -> None:
    if timeout is not None and monotonic() - began >= timeout:
        raise TimeoutError(f"The batch is {batch.status} after {timeout:g} s")


def _read(model: type[M], response: httpx.Response) -> M:
    try:
        return model.model_validate_json(response.content, strict=True)
    except ValidationError as error:
        raise ResponseError(first_error(error)) from None


def _results(response: httpx.Response) -> list[BatchResult]:
    try:
        return [BatchResult.model_validate_json(line) for line in response.content.split(b"\n") if line]
    except ValidationError as error:
        raise ResponseError(first_error(error)) from None
