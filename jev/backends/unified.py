"""Every read as one plain forward over prompt and canvas, without cache and packing: slow and simple."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jev.backends.base import fingerprint_of
from jev.backends.reading import CanvasBackend, Planner, Work
from jev.loading import load_engine
from jev.model.read import Reading
from jev.model.unified import read_unified
from jev.settings import Settings

if TYPE_CHECKING:
    from jev.engine import Engine


class UnifiedBackend(CanvasBackend):
    """The engine's prompts and canvases through `jev.model.unified`; text only.

    Args:
        engine: a loaded engine, of which only the model and the prompts are used; None loads the one
            that the settings name.
        settings: which model, and how attachments are read; None = from the environment.
        name: what reports call it.

    Raises:
        CheckpointError: the checkpoint cannot be used.
    """

    def __init__(
        self, engine: Engine | None = None, settings: Settings | None = None, *, name: str = "unified"
    ) -> None:
        settings = settings or Settings.load()
        engine = engine or load_engine(settings)
        known = settings.model_copy(update={"dtype": engine.precision or settings.dtype})
        super().__init__(
            Planner("unified", engine.context, engine.name, settings, has_vision=engine.has_vision),
            model=engine.name,
            name=name,
            fingerprint=fingerprint_of(engine.fingerprint, known),
        )
        self._weights = engine.model

    def read(self, work: Work) -> list[Reading]:
        """See `CanvasBackend`."""
        return [
            read_unified(self._weights, unit.prefix, unit.branch, unit.seeded(number))
            for unit, number in work
        ]
