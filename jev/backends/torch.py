"""The model in this process: many calls at once, packed by the scheduler."""

from __future__ import annotations

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from jev.backends.base import fingerprint_of
from jev.backends.material import MaterialReader
from jev.errors import ModelUnavailableError
from jev.loading import load_engine
from jev.scheduler import Scheduler
from jev.schemas import SystemOneRequest, SystemOneResponse
from jev.settings import Settings

if TYPE_CHECKING:
    from jev.engine import Engine

CONCURRENCY = 64
"""Calls in flight that fill a step of short requests."""

PREPARE_THREADS = 2
"""Requests tokenised at once; more would only take turns with the model for the interpreter."""


class TorchBackend:
    """An engine behind a scheduler without admission limits: it never answers "overloaded".

    Args:
        engine: a loaded engine; None loads the one that the settings name, which takes a while.
        settings: which model, and how attachments are read; None = from the environment.
        name: what reports call it.
        concurrency: how many calls of `decide` callers should have in flight.
        adapter: one of the engine's, which answers requests whose model names none; None = none.

    Raises:
        CheckpointError: the checkpoint or an adapter cannot be used.
        SettingsError: the environment has a setting that cannot be used.
    """

    def __init__(
        self,
        engine: Engine | None = None,
        settings: Settings | None = None,
        *,
        name: str = "torch",
        concurrency: int = CONCURRENCY,
        adapter: str | None = None,
    ) -> None:
        settings = settings or Settings.load()
        self.engine = engine or load_engine(settings)
        self.name = name
        self.model = self.engine.name if adapter is None else f"{self.engine.name}+{adapter}"
        known = settings.model_copy(update={"dtype": self.engine.precision or settings.dtype})
        self.fingerprint = fingerprint_of(self.engine.fingerprint, known, self.engine.adapters, adapter)
        self._prepare = partial(self.engine.prepare, adapter=adapter)
        self.concurrency = concurrency
        self._material = MaterialReader(settings, has_vision=self.engine.has_vision)
        self._scheduler = Scheduler(self.engine, max_requests=sys.maxsize, max_tokens=sys.maxsize)
        self._workers = ThreadPoolExecutor(PREPARE_THREADS, thread_name_prefix="jev-prepare")
        self._closed = False

    async def decide(self, request: SystemOneRequest) -> SystemOneResponse:
        """Answer a request; errors as in `Backend`."""
        if self._closed:
            raise ModelUnavailableError("The backend is closed")
        material = await self._material.of(request)
        loop = asyncio.get_running_loop()
        plan = await loop.run_in_executor(self._workers, self._prepare, request, material)
        response, _ = await self._scheduler.submit(plan)
        return response

    async def aclose(self) -> None:
        """End the model's thread and the processes that read attachments; pending calls fail."""
        self._closed = True
        await asyncio.to_thread(self._scheduler.close)
        self._workers.shutdown(wait=False, cancel_futures=True)
        await self._material.aclose()
