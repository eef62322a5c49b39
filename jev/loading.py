"""From settings to a loaded engine."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from jev.model.errors import CheckpointError
from jev.pull import missing_sentence, place
from jev.settings import Settings

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    from jev.engine import Engine
    from jev.model.weights import Progress

LARGE = 2**30
"""Bytes of a model that takes long enough to load for the log to say how far it is."""


def check_pulled(settings: Settings) -> None:
    """Find out whether what the settings take from a model hub is here.

    Raises:
        CheckpointError: it is not; says how to get it.
    """
    for use, source in settings.pull.items():
        try:
            said = missing_sentence(source) if getattr(settings, use) == place(source) else None
        except OSError as error:  # a cache that may not be entered, a name that is too long for any file
            raise CheckpointError(f"{error.filename} cannot be read: {error.strerror}") from None
        if said is not None:
            raise CheckpointError(said)


def load_engine(settings: Settings, progress: Progress | None = None) -> Engine:
    """Load the model that the settings name; slow.

    Args:
        settings: the model and how to load it.
        progress: told the bytes loaded so far and in all; None = the log says how far a large model is.

    Raises:
        CalibrationError: a calibration file cannot be used.
        CheckpointError: the checkpoint or an adapter cannot be used.
        MemoryShortageError: free memory cannot hold the model.
    """
    from jev.adapters import load_adapters  # noqa: PLC0415 - as the engine
    from jev.calibration.apply import mismatch, other_precision  # noqa: PLC0415 - as the engine
    from jev.calibration.file import load_calibrations  # noqa: PLC0415 - as the engine
    from jev.engine import Engine  # noqa: PLC0415 - seconds, and not needed to answer /health
    from jev.planner import Machine, settle  # noqa: PLC0415 - as the engine

    if settings.threads is not None:
        import torch  # noqa: PLC0415

        torch.set_num_threads(settings.threads)
    check_pulled(settings)
    choice = settle(settings, Machine.here(settings.device))
    calibrations = load_calibrations(settings.calibrations)
    adapters = load_adapters(settings.adapters, settings.model)
    engine = Engine.load(
        settings.model,
        device=settings.device,
        dtype=choice.dtype,
        offload_layers=choice.offloaded,
        max_context=settings.max_context,
        cache_bytes=settings.cache_bytes,
        vision_cache_bytes=settings.vision_cache_bytes,
        step_rows=settings.step_rows,
        prefill_rows=settings.prefill_rows,
        vision=settings.vision,
        image_rule=settings.image_rule,
        soft_tokens=settings.soft_tokens,
        name=settings.name,
        calibrations=calibrations,
        adapters=adapters,
        text_tile=settings.text_tile,
        max_text_tokens=settings.max_text_tokens,
        progress=progress or _Logged(),
    )
    for name, calibration in engine.calibrations.items():
        reasons = [mismatch(calibration, identity) for identity in engine.identities]
        if None not in reasons:
            logger.warning("calibration %r %s; requests that name it are refused", name, reasons[0])
        elif (other := other_precision(calibration, engine.identity)) is not None:
            logger.warning("calibration %r %s; its probabilities may be off", name, other)
    return engine


class _Logged:
    """Logs every tenth part of a large model."""

    def __init__(self) -> None:
        self._tenths = 0

    def __call__(self, done: int, total: int) -> None:
        tenths = 10 * done // total
        if total >= LARGE and tenths > self._tenths:
            self._tenths = tenths
            logger.info("loading the model: %d0 %% of %.1f GiB", tenths, total / 2**30)
