"""The HTTP clients: `Jev` and `AsyncJev`, the same words with and without await.

with Jev("http://127.0.0.1:8000") as jev:
    decision = jev.decide("My card was charged twice!", {"angry": Noul("Is the customer angry?")})
    decision.nouls["angry"].noul
"""

from __future__ import annotations

import copy
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack, overload

import anyio
import httpx
from anyio import to_thread

from jev._attachments import Attachable, load
from jev._batch import AsyncBatches, Batches, Pause, in_threads
from jev._batch_jobs import AsyncBatchJobs, BatchJobs
from jev._batch_rows import Item, Job, RowResult
from jev._body import DEFAULT_MODEL, DecideOptions, Questions, State
from jev._draft import Draft
from jev._transport import (
    Attempts,
    Request,
    Settings,
    decide_request,
    decision_from,
    get_request,
    health_from,
    models_from,
    upload_from,
    upload_request,
)
from jev.results import Decision, TypedDecision, typed_of
from jev.retry import RetryPolicy
from jev.schemas import ModelInfo, UploadedFile

T = TypeVar("T")


class Jev(Batches):
    """Client of a jev server. Threads may share one client.

    Args:
        base_url: the server's root; by default JEV_BASE_URL, else http://127.0.0.1:8000.
        api_key: sent as a bearer token; by default JEV_API_KEY, else none.
        model: the model to ask.
        timeout: seconds that each try waits to connect, and then for the answer; None for no limit.
        retry: when to try again.
        headers: sent with every request; they win over the client's own.
        transport: an httpx transport to use instead of the network.
        compression: whether to send bodies of 1 KiB and more as gzip.

    Raises:
        ValueError: for an address that is not http(s), or a key that no header can carry.
    """

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        model: str = DEFAULT_MODEL,
        timeout: float | None = 60.0,
        retry: RetryPolicy = RetryPolicy(),  # noqa: B008 - it is frozen
        headers: Mapping[str, str] | None = None,
        transport: httpx.BaseTransport | None = None,
        compression: bool = False,
    ) -> None:
        self._settings = Settings.read(base_url, api_key, headers, timeout, compression)
        self._model = model
        self._retry = retry
        self._sleep: Callable[[float], None] = time.sleep
        self._clock: Callable[[], float] = time.monotonic
        self._http = httpx.Client(
            base_url=self._settings.base_url, headers=self._settings.headers, transport=transport
        )

    def __repr__(self) -> str:
        return f"Jev({self._settings.shown_url!r}, model={self._model!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    @overload
    def decide(
        self, state: State, questions: type[T], **options: Unpack[DecideOptions]
    ) -> TypedDecision[T]: ...
    @overload
    def decide(self, state: State, questions: Questions, **options: Unpack[DecideOptions]) -> Decision: ...
    def decide(
        self, state: State, questions: Questions | type[Any], **options: Unpack[DecideOptions]
    ) -> Decision:
        """Ask questions about a state.

        Args:
            state: text, or anything that becomes a JSON object or array.
            questions: questions by id, or a typed class (see `jev.typed`).
            options: see `DecideOptions`.

        Returns:
            A `Decision`; for a typed class a `TypedDecision` with an instance of it.

        Raises:
            TypeError: for questions that cannot be asked or attachments that are no files; nothing is sent.
            OSError: for an attachment that cannot be read; nothing is sent.
            APIError: what the server refused, as one of its subclasses.
            ConnectionError: when the server cannot be reached (`TimeoutError`: in time).
            ResponseError: when its answer is not what this API sends.
        """
        draft = Draft.of(state, questions, options, model=self._model)
        uploaded: list[UploadedFile] = []
        for file in draft.too_large:
            with draft.naming(file):
                sent = self._send(upload_request(self._settings, file, options))
                uploaded.append(upload_from(sent, file.name))
        request = decide_request(self._settings, draft.complete(uploaded), options)
        decision = decision_from(request, self._send(request))
        return typed_of(questions, decision) if isinstance(questions, type) else decision

    def upload(self, file: Attachable, name: str | None = None) -> UploadedFile:
        """Send a file that several decisions are about, once; what it returns may stand in `attachments`.

        Args:
            file: a path, bytes, a file object or a PIL image.
            name: its name, instead of the one that it has.

        Raises:
            TypeError: for what is not a file; nothing is sent.
            OSError: for a file that cannot be read; nothing is sent.
            APIError: what the server refused, as one of its subclasses; others as in `decide`.
        """
        if isinstance(file, UploadedFile):
            return file
        loaded = load(file, name)
        return upload_from(self._send(upload_request(self._settings, loaded)), loaded.name)

    def models(self) -> list[ModelInfo]:
        """Return the models that the server offers; errors as in `decide`."""
        return models_from(self._send(get_request(self._settings, "/v1/models")))

    @property
    def batches(self) -> BatchJobs:
        """Batches that the server runs by itself."""
        return BatchJobs(self._settings, self._send, self.upload, self._sleep)

    def health(self) -> dict[str, Any]:
        """Return what the server says of its health; errors as in `decide`."""
        return health_from(self._send(get_request(self._settings, "/health")))

    def _decide_rows(self, job: Job, items: Iterator[Item]) -> Iterator[RowResult[Any]]:
        client = copy.copy(self)
        client._retry = job.patient(self._retry)
        pause = Pause()
        if client._sleep is time.sleep:
            client._sleep = pause

        def decide(item: Item) -> Decision:
            return client.decide(item.state, item.questions or job.questions, **job.options_of(item))

        return in_threads(job, items, decide, pause)

    def _send(self, request: Request) -> httpx.Response:
        attempts = Attempts(self._retry, self._settings.shown_url, clock=self._clock)
        while True:
            try:
                with request.arguments() as arguments:
                    response = self._http.request(**arguments)
            except httpx.HTTPError as failure:
                wait = attempts.after_failure(failure, request.timeout, repeatable=request.repeatable)
            else:
                wait = attempts.after_response(response, repeatable=request.repeatable)
                if wait is None:
                    return response
            self._sleep(wait)


class AsyncJev(AsyncBatches):
    """Client of a jev server for async code. Tasks may share one client.

    Args:
        base_url: the server's root; by default JEV_BASE_URL, else http://127.0.0.1:8000.
        api_key: sent as a bearer token; by default JEV_API_KEY, else none.
        model: the model to ask.
        timeout: seconds that each try waits to connect, and then for the answer; None for no limit.
        retry: when to try again.
        headers: sent with every request; they win over the client's own.
        transport: an httpx transport to use instead of the network.
        compression: whether to send bodies of 1 KiB and more as gzip.

    Raises:
        ValueError: for an address that is not http(s), or a key that no header can carry.
    """

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        model: str = DEFAULT_MODEL,
        timeout: float | None = 60.0,
        retry: RetryPolicy = RetryPolicy(),  # noqa: B008 - it is frozen
        headers: Mapping[str, str] | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        compression: bool = False,
    ) -> None:
        self._settings = Settings.read(base_url, api_key, headers, timeout, compression)
        self._model = model
        self._retry = retry
        self._sleep: Callable[[float], Awaitable[None]] = anyio.sleep
        self._clock: Callable[[], float] = time.monotonic
        self._http = httpx.AsyncClient(
            base_url=self._settings.base_url, headers=self._settings.headers, transport=transport
        )

    def __repr__(self) -> str:
        return f"AsyncJev({self._settings.shown_url!r}, model={self._model!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    @overload
    async def decide(
        self, state: State, questions: type[T], **options: Unpack[DecideOptions]
    ) -> TypedDecision[T]: ...
    @overload
    async def decide(
        self, state: State, questions: Questions, **options: Unpack[DecideOptions]
    ) -> Decision: ...
    async def decide(
        self, state: State, questions: Questions | type[Any], **options: Unpack[DecideOptions]
    ) -> Decision:
        """Ask questions about a state.

        Args:
            state: text, or anything that becomes a JSON object or array.
            questions: questions by id, or a typed class (see `jev.typed`).
            options: see `DecideOptions`.

        Returns:
            A `Decision`; for a typed class a `TypedDecision` with an instance of it.

        Raises:
            TypeError: for questions that cannot be asked or attachments that are no files; nothing is sent.
            OSError: for an attachment that cannot be read; nothing is sent.
            APIError: what the server refused, as one of its subclasses.
            ConnectionError: when the server cannot be reached (`TimeoutError`: in time).
            ResponseError: when its answer is not what this API sends.
        """
        work = partial(Draft.of, state, questions, options, model=self._model)
        draft = await to_thread.run_sync(work) if options.get("attachments") else work()
        uploaded: list[UploadedFile] = []
        for file in draft.too_large:
            with draft.naming(file):
                sent = await self._send(upload_request(self._settings, file, options))
                uploaded.append(upload_from(sent, file.name))
        request = decide_request(self._settings, draft.complete(uploaded), options)
        decision = decision_from(request, await self._send(request))
        return typed_of(questions, decision) if isinstance(questions, type) else decision

    async def upload(self, file: Attachable, name: str | None = None) -> UploadedFile:
        """Send a file that several decisions are about, once; what it returns may stand in `attachments`.

        Args:
            file: a path, bytes, a file object or a PIL image.
            name: its name, instead of the one that it has.

        Raises:
            TypeError: for what is not a file; nothing is sent.
            OSError: for a file that cannot be read; nothing is sent.
            APIError: what the server refused, as one of its subclasses; others as in `decide`.
        """
        if isinstance(file, UploadedFile):
            return file
        loaded = await to_thread.run_sync(load, file, name)
        return upload_from(await self._send(upload_request(self._settings, loaded)), loaded.name)

    async def models(self) -> list[ModelInfo]:
        """Return the models that the server offers; errors as in `decide`."""
        return models_from(await self._send(get_request(self._settings, "/v1/models")))

    @property
    def batches(self) -> AsyncBatchJobs:
        """Batches that the server runs by itself."""
        return AsyncBatchJobs(self._settings, self._send, self.upload, self._sleep)

    async def health(self) -> dict[str, Any]:
        """Return what the server says of its health; errors as in `decide`."""
        return health_from(await self._send(get_request(self._settings, "/health")))

    async def _decide_row(self, job: Job, item: Item) -> Decision:
        client = copy.copy(self)
        client._retry = job.patient(self._retry)
        return await client.decide(item.state, item.questions or job.questions, **job.options_of(item))

    async def _send(self, request: Request) -> httpx.Response:
        attempts = Attempts(self._retry, self._settings.shown_url, clock=self._clock)
        while True:
            try:
                with request.arguments() as arguments:
                    response = await self._http.request(**arguments)
            except httpx.HTTPError as failure:
                wait = attempts.after_failure(failure, request.timeout, repeatable=request.repeatable)
            else:
                wait = attempts.after_response(response, repeatable=request.repeatable)
                if wait is None:
                    return response
            await self._sleep(wait)
