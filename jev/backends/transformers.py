"""The reference: the engine's prompts and canvases through Hugging Face transformers in fp32."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import jev._openmp  # noqa: F401 - before torch
from jev.backends.base import fingerprint_of
from jev.backends.reading import Planner, Work, answer, context_of
from jev.backends.reference import Reference
from jev.model import embedded
from jev.model.read import Reading
from jev.model.weights.identity import weights_digest
from jev.model.weights.safetensors import TensorFiles
from jev.plan import Unit
from jev.schemas import SystemOneRequest, SystemOneResponse
from jev.settings import Settings


class TransformersBackend:
    """Canvases read one by one by `jev.backends.reference`, always on the CPU; text only.

    Args:
        settings: which model, and how attachments are read; None = from the environment.
        name: what reports call it.

    Raises:
        CheckpointError: the checkpoint cannot be used.
    """

    concurrency = 2

    def __init__(self, settings: Settings | None = None, *, name: str = "transformers") -> None:
        settings = settings or Settings.load()
        folder = settings.model or embedded.path()
        context, found = context_of(folder, settings.max_context)
        self.name = name
        self.model = settings.name or found
        self.fingerprint = fingerprint_of(weights_digest(folder), settings)
        has_vision = settings.vision is not None or TensorFiles(folder).has_vision
        self._planner = Planner("transformers", context, self.model, settings, has_vision=has_vision)
        self._reference = Reference(folder)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="jev-transformers")

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
        numbers: dict[int, tuple[Unit, list[int]]] = {}
        for unit, number in work:
            numbers.setdefault(id(unit), (unit, []))[1].append(number)
        found = {
            (key, number): reading
            for key, (unit, wanted) in numbers.items()
            for number, reading in zip(wanted, self._read_unit(unit, wanted), strict=True)
        }
        return [found[id(unit), number] for unit, number in work]

    def _read_unit(self, unit: Unit, numbers: list[int]) -> list[Reading]:
        """Read a unit's canvases behind its prompt, which is encoded once."""
        cache = self._reference.prefill((*unit.prefix, *unit.branch))
        readings = []
        for number in numbers:
            canvas = unit.seeded(number)
            rows = self._reference.decode(canvas.ids, cache)[list(canvas.slots)].double()
            chosen = [row[list(labels)] for row, labels in zip(rows, canvas.labels, strict=True)]
            readings.append(
                Reading(
                    tuple(tuple(row.tolist()) for row in chosen),
                    tuple(
                        (part.logsumexp(-1) - row.logsumexp(-1)).item()
                        for part, row in zip(chosen, rows, strict=True)
                    ),
                )
            )
        return readings
