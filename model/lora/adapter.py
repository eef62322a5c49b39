"""What an adapter is: for some linears of the text model a product of two thin matrices that is added.

Hu et al. 2021, section 4.1: y = W x + (alpha / r) B A x.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import torch
from torch import Tensor, nn

from jev.model.config import TextConfig
from jev.model.text import TextModel

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""What can be adapted: attention and the dense MLP of every layer; not router, experts and embedding."""

MAX_RANK = 1024

Pair: TypeAlias = tuple[Tensor, Tensor]
"""A [r, in] and B [out, r] of one linear, fp32."""


@dataclass(frozen=True)
class LoraConfig:
    """Shape and strength of an adapter.

    Attributes:
        rank: inner width r, the same for all linears; 1 to 1024.
        alpha: the update is scaled by alpha / rank.
        targets: some of `PROJECTIONS`; kept in that order.

    Raises:
        ValueError: one sentence that names the value.
    """

    rank: int
    alpha: float
    targets: tuple[str, ...] = PROJECTIONS

    def __post_init__(self) -> None:
        if isinstance(self.rank, bool) or not isinstance(self.rank, int) or not 1 <= self.rank <= MAX_RANK:
            raise ValueError(f"rank must be a whole number from 1 to {MAX_RANK}, got {self.rank!r}")
        number = isinstance(self.alpha, (int, float)) and not isinstance(self.alpha, bool)
        # Not math.isfinite: it cannot take an int that no float can hold.
        if not number or not 0 < self.alpha <= sys.float_info.max:
            raise ValueError(f"alpha must be a finite number above 0, got {repr(self.alpha)[:200]}")
        for target in self.targets:
            if target not in PROJECTIONS:
                raise ValueError(f"target {target!r} is not one of {', '.join(PROJECTIONS)}")
        if not self.targets:
            raise ValueError(f"targets must name at least one of {', '.join(PROJECTIONS)}")
        object.__setattr__(self, "targets", tuple(name for name in PROJECTIONS if name in self.targets))

    @property
    def scale(self) -> float:
        """What the product is multiplied by."""
        return self.alpha / self.rank


@dataclass(frozen=True, eq=False)
class Adapter:
    """The matrices of an adapter.

    Attributes:
        config: shape and strength.
        tensors: A and B by name of the linear in `TextModel`, such as "layers.0.self_attn.q_proj".
        base_name: name of the checkpoint it was trained on; "" if not known.
        base_fingerprint: digest of that checkpoint (`jev.model.weights.identity`); "" if not known.
    """

    config: LoraConfig
    tensors: Mapping[str, Pair]
    base_name: str = ""
    base_fingerprint: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes of all matrices."""
        return sum(part.nbytes for pair in self.tensors.values() for part in pair)

    @property
    def parameters(self) -> int:
        """Numbers in all matrices."""
        return sum(part.numel() for pair in self.tensors.values() for part in pair)

    @cached_property
    def digest(self) -> str:
        """SHA-256 in hex of all that decides what it does: strength, names and every number."""
        digest = hashlib.sha256(repr((self.config.rank, float(self.config.alpha))).encode())
        for name in sorted(self.tensors):
            digest.update(name.encode())
            for part in self.tensors[name]:
                plain = part.detach().to("cpu", torch.float32).contiguous()
                digest.update(repr(tuple(plain.shape)).encode() + plain.numpy().tobytes())
        return digest.hexdigest()


def target_shapes(config: TextConfig, targets: tuple[str, ...] = PROJECTIONS) -> dict[str, tuple[int, int]]:
    """The linears that can be adapted, by name in `TextModel`: (out, in) of each.

    Full attention layers have no v_proj, so it is in none of theirs.
    """
    with torch.device("meta"):
        text = TextModel(config)
    return {
        name: (module.out_features, module.in_features)
        for name, module in text.named_modules()
        if isinstance(module, nn.Linear) and is_target(name, targets)
    }


def is_target(name: str, targets: tuple[str, ...]) -> bool:
    """Whether a module of `TextModel` is one that these targets mean."""
    parts = name.split(".")
    return (
        len(parts) == 4 and parts[0] == "layers" and parts[2] in ("self_attn", "mlp") and parts[3] in targets
    )
