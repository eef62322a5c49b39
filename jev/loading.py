"""From settings to a loaded engine."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from jev.settings import Settings

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    from jev.engine import Engine


def load_engine(settings: Settings) -> Engine:
    """Load the model that the settings name; slow.

    Raises:
        CalibrationError: a calibration file cannot be used.
        CheckpointError: the checkpoint or an adapter cannot be used.
    """
    from jev.adapters import load_adapters  # noqa: PLC0415 - as the engine
    from jev.calibration.apply import mismatch, other_precision  # noqa: PLC0415 - as the engine
    from jev.calibration.file import load_calibrations  # noqa: PLC0415 - as the engine
    from jev.engine import Engine  # noqa: PLC0415 - seconds, and not needed to answer /health

    if settings.threads is not None:
        import torch  # noqa: PLC0415

        torch.set_num_threads(settings.threads)
    calibrations = load_calibrations(settings.calibrations)
    adapters = load_adapters(settings.adapters, settings.model)
    engine = Engine.load(
        settings.model,
        device=settings.device,
        dtype=settings.dtype,
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
    )
    for name, calibration in engine.calibrations.items():
        reasons = [mismatch(calibration, identity) for identity in engine.identities]
        if None not in reasons:
            logger.warning("calibration %r %s; requests that name it are refused", name, reasons[0])
        elif (other := other_precision(calibration, engine.identity)) is not None:
            logger.warning("calibration %r %s; its probabilities may be off", name, other)
    return engine
