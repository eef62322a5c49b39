"""What of a model fits where, before anything of it is loaded (docs/models.md)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias, cast

from jev.errors import JevError
from jev.machine import memory
from jev.model import embedded
from jev.model.memory import ITEM_BYTES, Precision, Sizes, Weights, kv_bytes, workspace_bytes
from jev.settings import Settings

logger = logging.getLogger(__name__)

Verdict: TypeAlias = Literal["fits", "tight", "no", "unknown"]
"""Fits with the longest prompt and full caches; fits only with short prompts; does not fit."""

SHORT_TOKENS = 1024
"""Prompt that must fit in any case."""

SPARE = 0.05
"""Part of the free memory that is left alone: allocators do not fill it to the last byte."""

ON_CPU: tuple[str, ...] = ("float32", "bfloat16", "int8", "int4")
ON_GPU: tuple[str, ...] = ("bfloat16", "float8", "int8", "int4")
"""Precisions from the best to the smallest, of checkpoints that are not quantised already."""


class MemoryShortageError(JevError, MemoryError):
    """The model needs more memory than is free; the message has both numbers."""


@dataclass(frozen=True)
class Machine:
    """Free memory in bytes: of the host (None = it does not say), and of each GPU by its torch name."""

    host: int | None
    gpus: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def here(cls, device: str | None = None) -> Machine:
        """The machine that this runs on, as it is now, with all GPUs or at most the one that is `device`.

        Asking a GPU takes a few hundred megabytes of it for as long as this process lives.
        """
        if device is not None and not device.startswith("cuda"):
            return cls(memory()[1])
        import torch  # noqa: PLC0415 - seconds

        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        wanted = range(count) if device is None else [torch.device(device).index or 0]
        gpus = {f"cuda:{index}": torch.cuda.mem_get_info(index)[0] for index in wanted if index < count}
        return cls(memory()[1], gpus)

    def free(self, device: str) -> int | None:
        """Free memory of a torch device; None = not known."""
        kind, _, number = device.partition(":")
        if kind == "cuda":
            return self.gpus.get(f"cuda:{number or 0}")
        return self.host if kind in ("cpu", "mps") else None


@dataclass(frozen=True)
class Choice:
    """One way to load a model, and what it takes.

    Attributes:
        device: where it runs.
        dtype: as the setting takes it.
        stored: whether quantised weights stay as the file has them.
        weights: bytes by layer.
        kv: bytes of keys and values of the longest prompt.
        short_kv: the same of a prompt of `SHORT_TOKENS`.
        workspace: bytes of a forward.
        caches: bytes that the caches may grow to.
        free: bytes that the device has; None = not known.
        host_free: bytes that the host has, for layers that stay there.
        offloaded: layers that stay in the host's memory.
    """

    device: str
    dtype: str
    stored: bool
    weights: Weights
    kv: int
    short_kv: int
    workspace: int
    caches: int
    free: int | None
    host_free: int | None
    offloaded: int = 0

    @property
    def resident(self) -> int:
        """Bytes of weights on the device: with layers on the host, room for two of them on their way."""
        if not self.offloaded:
            return self.weights.total
        staging = 2 * max(self.weights.layers)
        return self.weights.total - self.hosted + staging

    @property
    def hosted(self) -> int:
        """Bytes of weights on the host. The last layer is never there (`jev.model.offload`)."""
        return sum(self.weights.layers[: self.offloaded])

    @property
    def needed(self) -> int:
        """Bytes on the device with the longest prompt and full caches."""
        # Twice: a longer prefix is made beside the shorter one.
        return self.resident + 2 * self.kv + self.workspace + self.caches

    @property
    def least(self) -> int:
        """Bytes on the device with short prompts and empty caches."""
        return self.resident + 2 * self.short_kv + self.workspace

    @property
    def verdict(self) -> Verdict:
        """Whether it fits."""
        if self.free is None:
            return "unknown"
        usable = self.free * (1 - SPARE)
        if self.least > usable or (self.host_free is not None and self.hosted > self.host_free * (1 - SPARE)):
            return "no"
        return "fits" if self.needed <= usable else "tight"


@dataclass(frozen=True)
class Plan:
    """All ways to load a model on a machine.

    Attributes:
        context: tokens of the longest prompt.
        layers: of the text model.
        choices: from the best to the smallest on each device.
        recommended: the best that fits, on a GPU before the CPU; else the best that is tight; None = none.
    """

    context: int
    layers: int
    choices: tuple[Choice, ...]
    recommended: Choice | None


def plan(settings: Settings, machine: Machine) -> Plan:
    """Weigh every precision on every device; where no GPU is, on one of unknown size too.

    Raises:
        CheckpointError: the config or a header cannot be read.
    """
    model = _Model(settings)
    choices = [
        _offloaded(model.choice(device, dtype, machine), settings)
        for device in (*(machine.gpus or ("cuda",)), "cpu")
        for dtype in model.dtypes(device)
    ]
    here = [choice for choice in choices if machine.gpus or choice.device == "cpu"]
    usable = [choice for choice in here if choice.verdict != "no"]
    return Plan(model.context, model.layers, tuple(choices), min(usable, key=_rank, default=None))


def settle(settings: Settings, machine: Machine) -> Choice:
    """Decide what the settings leave open, `dtype` and `offload_layers`, and refuse what does not fit.

    Raises:
        CheckpointError: the config or a header cannot be read.
        MemoryShortageError: it does not fit, and `check_memory` says that this matters.
    """
    model = _Model(settings)
    wanted = model.dtypes(settings.device) if settings.dtype == "auto" else (settings.dtype,)
    choices = [_offloaded(model.choice(settings.device, one, machine), settings) for one in wanted]
    choice = min(choices, key=_rank)
    if choice.verdict == "no" and settings.check_memory:
        raise MemoryShortageError(_shortage(choice))
    if choice.verdict == "tight":
        logger.warning(
            "the longest prompt of %d tokens and full caches would need %s, %s are free on %s: "
            "lower max_context or cache_bytes",
            model.context,
            gigabytes(choice.needed),
            gigabytes(choice.free or 0),
            choice.device,
        )
    return choice


def gigabytes(count: int) -> str:
    """Bytes as gigabytes of 10^9, as file sizes and graphics cards are told, or megabytes."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def _shortage(choice: Choice) -> str:
    again = "check_memory = false (JEV_CHECK_MEMORY=false) loads it all the same"
    how = "as stored" if choice.stored else choice.dtype
    if choice.hosted and choice.host_free is not None and choice.hosted > choice.host_free * (1 - SPARE):
        return (
            f"the model as {how} needs {gigabytes(choice.hosted)} for {choice.offloaded} layers on the host, "
            f"but only {gigabytes(choice.host_free)} of memory is free; {again}"
        )
    where = "memory is free" if choice.device == "cpu" else f"memory is free on {choice.device}"
    return (
        f"the model as {how} needs {gigabytes(choice.least)}, but only {gigabytes(choice.free or 0)} of "
        f"{where}; {again}"
    )


def _rank(choice: Choice) -> tuple[int, int, int]:
    """Lower is better: what fits, on a GPU, with long prompts; equals are in the order of precision."""
    if choice.device == "cpu":
        place = 2
    elif 2 * choice.offloaded > len(choice.weights.layers):
        place = 3  # each forward waits for most of the weights to come from the host
    else:
        place = bool(choice.offloaded)
    return (choice.verdict == "no", place, choice.verdict == "tight")


def _offloaded(choice: Choice, settings: Settings) -> Choice:
    """The choice with the layers on the host that the settings say, or as few as make it fit.

    Room for the longest prompt counts only where someone has said how long that is: layers on the host make
    every prompt slow.
    """
    if not choice.device.startswith("cuda"):
        return choice
    most = len(choice.weights.layers) - 1
    if settings.offload_layers is not None:
        return replace(choice, offloaded=min(settings.offload_layers, most))
    ways = [choice, *(replace(choice, offloaded=count) for count in range(1, most + 1))]
    enough = (("fits",), ("fits", "tight")) if settings.max_context else (("fits", "tight"),)
    for verdicts in enough:
        for way in ways:
            if way.verdict in verdicts:
                return way
    return choice


class _Model:
    """The settings' model, weighed."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._sizes = Sizes.of(settings.model or embedded.path(), settings.vision)
        self._config = self._sizes.config
        most = self._config.text.max_position_embeddings
        self.context = min(settings.max_context or most, most)
        self.layers = len(self._config.text.layers)
        self.stored = self._sizes.blocks is not None

    def dtypes(self, device: str) -> tuple[str, ...]:
        """The precisions that are open on a device, from the best on."""
        cpu = device == "cpu"
        if self.stored:
            return ("float32",) if cpu else ("bfloat16",)
        if cpu:
            return ON_CPU
        return ON_GPU if device.startswith("cuda") else tuple(one for one in ON_GPU if one != "float8")

    def choice(self, device: str, dtype: str, machine: Machine) -> Choice:
        """What the model takes in one precision on one device, with all layers there."""
        settings, text = self._settings, self._config.text
        arithmetic = dtype if dtype in ITEM_BYTES else "float32" if device == "cpu" else "bfloat16"
        item = ITEM_BYTES[arithmetic]
        weights = self._sizes.weights(cast(Precision, dtype), arithmetic, gpu=device.startswith("cuda"))
        rows = min(settings.step_rows, self.context)
        return Choice(
            device=device,
            dtype=dtype,
            stored=self.stored,
            weights=weights,
            kv=kv_bytes(text, self.context, item),
            short_kv=kv_bytes(text, min(SHORT_TOKENS, self.context), item),
            workspace=workspace_bytes(
                text, rows, min(SHORT_TOKENS, self.context), item, self._config.canvas_length
            ),
            caches=settings.cache_bytes + (settings.vision_cache_bytes if weights.vision else 0),
            free=machine.free(device),
            host_free=machine.host,
        )
