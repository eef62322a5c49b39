"""What the routes share: the settings, the engine once it is loaded, and its scheduler."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from starlette.requests import Request

from jev.attachments import Files, NoFiles, Reader, reader_of
from jev.errors import ModelUnavailableError
from jev.loading import load_engine
from jev.scheduler import Scheduler
from jev.server.auth import Authenticator
from jev.server.body import BodyBudget, Lease, receive_body
from jev.server.files import FileStore
from jev.server.ratelimit import RateLimiter
from jev.server.tracing import Tracing
from jev.settings import Settings, SettingsError, evidence_limits
from jev.texts import TextLimits

if TYPE_CHECKING:
    from jev.engine import Engine

logger = logging.getLogger(__name__)

T = TypeVar("T")

BODIES_IN_MEMORY = 8
"""Full-size request bodies that may be in memory at once."""

PREPARE_THREADS = min(4, (os.cpu_count() or 1) + 1)
"""Bodies that are decompressed, parsed and tokenised at once."""


class Service:
    """Holds the state of one app from its start to its end.

    Args:
        settings: the deployment's settings.
        engine: a loaded engine; None loads the one that the settings name, in the background.
    """

    def __init__(self, settings: Settings, engine: Engine | None = None) -> None:
        self.settings = settings
        self.authenticator = Authenticator(key.get_secret_value() for key in settings.api_keys)
        self.rate_limiter = RateLimiter(settings.rate_limit_rpm)
        self.bodies = BodyBudget(BODIES_IN_MEMORY * settings.max_body_bytes)
        self.tracing = Tracing(settings.trace_url, content=settings.trace_content)
        self.loaded: Future[Engine] = Future()
        if engine is not None:
            self.loaded.set_result(engine)
        self.limits = evidence_limits(settings.limits)
        self.files: Files = NoFiles()
        self._reader: Reader | None = None
        self.ready = asyncio.Event()
        self._serving: tuple[Engine, Scheduler] | None = None
        self._workers: ThreadPoolExecutor | None = None
        self._watcher: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to serve: at once with an engine, otherwise as soon as one has been loaded.

        Raises:
            SettingsError: the folder for uploads cannot be used. Without an engine it is kept in
                `loaded`, as is all else that comes between here and serving.
        """
        self._workers = ThreadPoolExecutor(PREPARE_THREADS, thread_name_prefix="jev-prepare")
        try:
            self.files = await asyncio.to_thread(_open_files, self.settings)
        except SettingsError as error:
            if self.loaded.done():
                raise
            self.loaded.set_exception(error)
            return
        if self.loaded.done():
            self._serve(self.loaded.result())
            return
        self.loaded.set_running_or_notify_cancel()  # from here on no waiter can cancel it
        threading.Thread(target=self._load, name="jev-load", daemon=True).start()
        self._watcher = asyncio.create_task(self._serve_when_loaded())

    async def stop(self) -> None:
        """Cancel what still runs and end the threads."""
        if self._watcher is not None:
            self._watcher.cancel()
        if self._serving is not None:
            scheduler = self._serving[1]
            self._serving = None
            await asyncio.to_thread(scheduler.close)
        if self._reader is not None:
            await asyncio.to_thread(self._reader.close)
        if self._workers is not None:
            self._workers.shutdown(wait=False, cancel_futures=True)
        if isinstance(self.files, FileStore):
            await asyncio.to_thread(self.files.close)
        await asyncio.to_thread(self.tracing.close)

    def serving(self) -> tuple[Engine, Scheduler]:
        """Return the engine and its scheduler.

        Raises:
            ModelUnavailableError: the model is still loading, could not be loaded, or is gone.
        """
        if self._serving is None:
            if not self.loaded.done():
                raise ModelUnavailableError("The model is loading", retry_after=1)
            failed = self.loaded.exception() is not None
            raise ModelUnavailableError(
                "The model could not be loaded" if failed else "The server is shutting down"
            )
        return self._serving

    def reader(self) -> Reader:
        """Return what reads attachments for the model that is served."""
        engine, _ = self.serving()
        if self._reader is None:
            self._reader = reader_of(self.settings, has_vision=engine.has_vision)
        return self._reader

    def pending(self) -> tuple[int, int]:
        """Requests and tokens that are waiting or running."""
        return self._serving[1].pending if self._serving is not None else (0, 0)

    def pending_texts(self) -> tuple[int, int]:
        """Texts that wait or are being written, and rows that they may take."""
        return self._serving[1].pending_texts if self._serving is not None else (0, 0)

    def stats(self) -> dict[str, float]:
        """The engine's cumulative numbers; empty while there is no engine."""
        return self._serving[0].stats() if self._serving is not None else {}

    def stored_bytes(self) -> int:
        """Bytes of all uploads."""
        return self.files.stored_bytes if isinstance(self.files, FileStore) else 0

    async def receive(self, request: Request, lease: Lease, *, limit: int | None = None) -> bytes:
        """Read a request's body as it was sent, within the limits of the settings; see `receive_body`.

        `limit` is the most bytes if it is not the settings' own.
        """
        return await receive_body(
            request.receive,
            request.headers,
            lease,
            limit=self.settings.max_body_bytes if limit is None else limit,
            seconds=self.settings.body_timeout_s,
        )

    async def in_worker(self, work: Callable[[], T]) -> T:
        """Run slow Python off the event loop, a few at once.

        A worker thread cannot be stopped: when the caller is cancelled, work that has not begun is
        dropped and the result of work that has is ignored, but its place stays taken until it ends.
        """
        assert self._workers is not None, "the app has not started"
        return await asyncio.get_running_loop().run_in_executor(self._workers, work)

    def _load(self) -> None:
        try:
            self.loaded.set_result(load_engine(self.settings))
        except BaseException as error:  # whoever waits for `loaded` must hear of it, whatever it is
            self.loaded.set_exception(error)

    async def _serve_when_loaded(self) -> None:
        try:
            self._serve(await asyncio.wrap_future(self.loaded))
        except Exception as error:
            logger.error("the model could not be loaded: %s", error)

    def _serve(self, engine: Engine) -> None:
        scheduler = Scheduler(
            engine,
            self.settings.max_pending_requests,
            self.settings.max_pending_tokens,
            self.settings.max_wait_s,
            self.settings.step_rows,
            texts=TextLimits(
                texts=self.settings.max_texts,
                live=self.settings.live_texts,
                tokens=self.settings.max_pending_tokens,
                batch=self.settings.text_batch,
            ),
            text_share=self.settings.text_share,
        )
        self._serving = (engine, scheduler)
        self.ready.set()


def _open_files(settings: Settings) -> FileStore:
    return FileStore(
        settings.files_dir,
        quota_bytes=settings.files_quota_bytes,
        ttl_s=settings.files_ttl_s,
        max_bytes=settings.max_upload_bytes,
    )
