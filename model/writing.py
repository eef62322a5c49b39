"""How text is written: the options of the block loop, checked, with the checkpoint's own defaults."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self, get_args

from jev.model.config import ModelConfig
from jev.model.errors import CheckpointError

Sampler = Literal["entropy-bound", "confidence-threshold"]

MAX_STEPS = 1000
MAX_SEED = 2**63 - 1

_FROM_FILE = {
    "max_tokens": "max_new_tokens",
    "max_denoising_steps": "max_denoising_steps",
    "t_min": "t_min",
    "t_max": "t_max",
    "stability": "stability_threshold",
    "confidence": "confidence_threshold",
}
"""Options by their names in `generation_config.json`."""


@dataclass(frozen=True)
class Options:
    """How one text is written; `Options.of` has a checkpoint's defaults and checks against its limits.

    Attributes:
        max_tokens: most tokens of the text, at least 1. Canvases are whole, so the model may write
            more, which is cut off.
        max_denoising_steps: most steps of a canvas, 1 to 1000.
        sampler: `entropy-bound` keeps the surest tokens of a step while their entropies, the last
            one not counted, add up to at most `entropy_bound`, and draws all others anew;
            `confidence-threshold` keeps for good what has a probability of at least `threshold`, one
            token a step at the least.
        threshold: of the confidence-threshold sampler, 0 to 1.
        entropy_bound: of the entropy-bound sampler, in nats, over 0.
        t_min: temperature that the last step comes close to, at least 0.
        t_max: temperature of the first step, over `t_min`.
        stability: how many steps before must have predicted the same canvas for it to be final early; 0 =
            none.
        confidence: mean entropy in nats under which a canvas may be final early, over 0.
        max_canvas: width of a canvas, 1 to the checkpoint's.
        full_canvas: whether the last canvas is as wide as the others however few tokens are left.
        min_canvas: least width of a last canvas that is not full, at least 1; `max_canvas` if that is less.
        blocks: most canvases; None = as many as `max_tokens` takes.
        self_conditioning: whether a step is told what the one before predicted.
        seed: decides every draw, 0 to 2^63 - 1.
    """

    max_tokens: int = 256
    max_denoising_steps: int = 48
    sampler: Sampler = "entropy-bound"
    threshold: float = 0.9
    entropy_bound: float = 0.1
    t_min: float = 0.4
    t_max: float = 0.8
    stability: int = 1
    confidence: float = 0.005
    max_canvas: int = 256
    full_canvas: bool = True
    min_canvas: int = 64
    blocks: int | None = None
    self_conditioning: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        """Check every option.

        Raises:
            ValueError: one sentence naming the option and its limits.
        """
        _whole("max_tokens", self.max_tokens, 1)
        _whole("max_denoising_steps", self.max_denoising_steps, 1, MAX_STEPS)
        if self.sampler not in get_args(Sampler):
            raise ValueError(f"sampler must be {' or '.join(get_args(Sampler))}, not {self.sampler!r}")
        _number("threshold", self.threshold, 0, 1)
        _number("entropy_bound", self.entropy_bound, 0, over=True)
        _number("t_min", self.t_min, 0)
        _number("t_max", self.t_max, self.t_min, over=True, limit=f"t_min ({self.t_min:g})")
        _whole("stability", self.stability, 0, MAX_STEPS)
        _number("confidence", self.confidence, 0, over=True)
        _whole("max_canvas", self.max_canvas, 1)
        _whole("min_canvas", self.min_canvas, 1)
        if self.blocks is not None:
            _whole("blocks", self.blocks, 1)
        _whole("seed", self.seed, 0, MAX_SEED)
        for name in ("full_canvas", "self_conditioning"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} must be true or false, not {getattr(self, name)!r}")

    @classmethod
    def of(cls, config: ModelConfig, **given: Any) -> Self:
        """The checkpoint's defaults, with what is given (and not None) on top.

        Raises:
            ValueError: one sentence naming the option and its limits.
            CheckpointError: the same of a default in `generation_config.json`.
        """
        defaults = _defaults(config)
        try:
            cls(**defaults)
        except ValueError as error:
            raise CheckpointError(f"generation_config.json: {error}") from None
        chosen = defaults | {name: value for name, value in given.items() if value is not None}
        _whole("max_canvas", chosen["max_canvas"], 1, config.canvas_length, limit="the checkpoint's canvas")
        return cls(**chosen)

    @property
    def canvases(self) -> int:
        """Most canvases."""
        count = math.ceil(self.max_tokens / self.max_canvas)
        return count if self.blocks is None else min(count, self.blocks)

    def width(self, number: int) -> int:
        """Tokens of a canvas by its number, from 0."""
        left = self.max_tokens - number * self.max_canvas
        return self.max_canvas if self.full_canvas else min(self.max_canvas, max(left, self.min_canvas))

    @property
    def rows(self) -> int:
        """Tokens of all canvases, if nothing ends the text early."""
        return (self.canvases - 1) * self.max_canvas + self.width(self.canvases - 1)


def _defaults(config: ModelConfig) -> dict[str, Any]:
    """What the checkpoint says itself; null and what is missing are left to `Options`."""
    file = config.generation
    found = {name: file[key] for name, key in _FROM_FILE.items() if file.get(key) is not None}
    sampler = file.get("sampler_config") or {}
    if not isinstance(sampler, Mapping):
        raise CheckpointError(f"generation_config.json: sampler_config must be an object, not {sampler!r}")
    kind = sampler.get("_cls_name", "EntropyBoundSamplerConfig")
    if kind != "EntropyBoundSamplerConfig":
        raise CheckpointError(f"generation_config.json: the sampler {kind!r} is not supported")
    if sampler.get("entropy_bound") is not None:
        found["entropy_bound"] = sampler["entropy_bound"]
    return {**found, "max_canvas": config.canvas_length}


def _whole(name: str, value: Any, least: int, most: int | None = None, *, limit: str = "") -> None:
    right = isinstance(value, int) and not isinstance(value, bool)
    if not right or value < least or (most is not None and value > most):
        end = f" and at most {f'{limit} ({most})' if limit else most}" if most is not None else ""
        raise ValueError(f"{name} must be a whole number of at least {least}{end}, not {value!r}")


def _number(
    name: str, value: Any, least: float, most: float = math.inf, *, over: bool = False, limit: str = ""
) -> None:
    right = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not right or value < least or (over and value == least) or value > most:
        start = f"over {limit or f'{least:g}'}" if over else f"of at least {least:g}"
        end = f" and at most {most:g}" if most < math.inf else ""
        raise ValueError(f"{name} must be a number {start}{end}, not {value!r}")
