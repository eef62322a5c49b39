"""Every read as one plain forward over prompt and canvas, without cache and packing: slow and simple."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from jev.backends.base import fingerprint_of
from jev.backends.reading import Planner, Work, answer
from jev.loading import load_engine
from jev.model.read import Reading
from jev.model.unified import read_unified
from jev.schemas import SystemOneRequest, SystemOneResponse
from jev.settings import Settings

if TYPE_CHECKING:
    from jev.engine import Engine


class UnifiedBackend:
    """The engine's prompts and canvases through `jev.model.unified`; text only.

    Args:
        engine: a loaded engine, of which only the model and the prompts are used; None loads the one
            that the settings name.
        settings: which model, and how attachments are read; None = from the environment.
        name: what reports call it.

    Raises:
        CheckpointError: the checkpoint cannot be used.
    """

    concurrency = 2

    def __init__(
        self, engine: Engine | None = None, settings: Settings | None = None, *, name: str = "unified"
    ) -> None:
        settings = settings or Settings.load()
        engine = engine or load_engine(settings)
        self.name = name
        self.model = engine.name
        self.fingerprint = fingerprint_of(engine.fingerprint, settings)
        self._weights = engine.model
        self._planner = Planner(
            "unified", engine.context, engine.name, settings, has_vision=engine.has_vision
        )
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="jev-unified")

    async def decide(self, request: SystemOneRequest) -> SystemOneResponse:
        """Answer a request; errors as in `Backend`."""
        return await answer(await self._planner.plan(request), self.model, self._read)

    async def aclose(self) -> None:
        """End the thread and the processes that read attachments; pending calls fail."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        await self._planner.aclose()

    async def _read(self, work: Work) -> list[Reading]:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._read_now, work)

    def _read_now(self, work: Work) -> list[Reading]:
        return [
            read_unified(self._weights, unit.prefix, unit.branch, unit.seeded(number))
            for unit, number in work
        ]
