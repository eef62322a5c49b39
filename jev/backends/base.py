"""What can answer a request: the one protocol that batch, quality, calibration and tuning are written to."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from jev.schemas import SystemOneRequest, SystemOneResponse

if TYPE_CHECKING:
    from jev.model.lora import Adapter
    from jev.settings import Settings


def fingerprint_of(
    weights: str,
    settings: Settings,
    adapters: Mapping[str, Adapter] | None = None,
    adapter: str | None = None,
) -> str:
    """What decides the answers of a model in this process, besides the request: weights and settings.

    Args:
        weights: digest of the checkpoint (`jev.model.weights.identity`).
        settings: as the model was opened with; `dtype` is not "auto" any more.
        adapters: those that requests may name.
        adapter: the one that answers requests which name none.

    Raises:
        CalibrationError: a calibration of the settings cannot be read.
    """
    facts = (settings.dtype, weights, settings.name, *_calibrations(settings))
    facts += tuple(f"{name}={value}" for name, value in reading_of(settings).items())
    named = [f"{name}={one.digest}" for name, one in sorted((adapters or {}).items())]
    default = [] if adapter is None else [f"+{adapter}"]
    return " ".join(map(str, (*facts, *named, *default)))


def reading_of(settings: Settings) -> dict[str, Any]:
    """Settings that decide what states and files become to a model, where they are not the usual ones."""
    given = {name: getattr(settings, name) for name in _READING}
    usual = {
        name: type(settings).model_fields[name].get_default(call_default_factory=True) for name in _READING
    }
    return {
        name: str(value) if isinstance(value, Path) else value
        for name, value in given.items()
        if value != usual[name]
    }


def _calibrations(settings: Settings) -> list[str]:
    if not settings.calibrations:
        return []
    from jev.calibration.file import load_calibrations  # noqa: PLC0415 - for those who have some

    loaded = load_calibrations(settings.calibrations)
    digests = {name: hashlib.sha256(one.model_dump_json().encode()) for name, one in sorted(loaded.items())}
    return [f"calibration {name}={one.hexdigest()[:32]}" for name, one in digests.items()]


_READING = (
    "vision",
    "image_rule",
    "soft_tokens",
    "ocr",
    "limits",
    "speech_model",
    "speech_compute_type",
    "speech_language",
    "speech_url",
    "speech_url_model",
)


class Backend(Protocol):
    """Something that answers requests. Attachments travel inside the request, as inline data.

    One that runs here also has a `fingerprint` (see `fingerprint_of`); a server does not say.

    Attributes:
        name: what reports call it, such as "torch:int8" or "systemone=http://127.0.0.1:8000".
        model: the resolved name of the model that answers.
        concurrency: how many calls of `decide` at once it makes use of.
    """

    name: str
    model: str
    concurrency: int

    async def decide(self, request: SystemOneRequest) -> SystemOneResponse:
        """Answer a request; many may be in flight at once.

        Raises:
            APIError: what `/v1/systemone` would refuse too, as one of its subclasses.
            ConnectionError: a remote backend could not be reached (`jev.errors.ConnectionError`).
        """
        ...

    async def aclose(self) -> None:
        """Free what it holds; pending calls fail."""
        ...
