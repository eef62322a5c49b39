"""The reference: the engine's prompts and canvases through Hugging Face transformers in fp32."""

from __future__ import annotations

import jev._before_torch  # noqa: F401 - before torch
from jev.backends.base import fingerprint_of
from jev.backends.reading import CanvasBackend, Planner, Work, context_of
from jev.backends.reference import Reference
from jev.model import embedded
from jev.model.read import Reading
from jev.model.weights.identity import weights_digest
from jev.model.weights.safetensors import TensorFiles
from jev.plan import Unit
from jev.settings import Settings


class TransformersBackend(CanvasBackend):
    """Canvases read one by one by `jev.backends.reference`, always on the CPU; text only.

    Args:
        settings: which model, and how attachments are read; None = from the environment.
        name: what reports call it.

    Raises:
        CheckpointError: the checkpoint cannot be used.
    """

    def __init__(self, settings: Settings | None = None, *, name: str = "transformers") -> None:
        settings = settings or Settings.load()
        folder = settings.model or embedded.path()
        context, found = context_of(folder, settings.max_context)
        model = settings.name or found
        has_vision = settings.vision is not None or TensorFiles(folder).has_vision
        super().__init__(
            Planner("transformers", context, model, settings, has_vision=has_vision),
            model=model,
            name=name,
            fingerprint=fingerprint_of(weights_digest(folder), settings),
        )
        self._reference = Reference(folder)

    def read(self, work: Work) -> list[Reading]:
        """See `CanvasBackend`."""
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
