"""Random GGUF blocks with scales as files have them."""

from __future__ import annotations

import numpy as np
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from torch import Tensor

from jev.model.native import BLOCKS

HALVES = {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q5_1": (0, 2), "Q6_K": (208,), "Q5_0": (0,), "Q8_0": (0,)}
"""Where a block has fp16 numbers."""


def random_blocks(kind: str, *shape: int, seed: int = 0) -> Tensor:
    """Raw blocks uint8 [..., row bytes] of weights [..., width]; all quants and small scales occur."""
    values, size = BLOCKS[kind]
    generator = np.random.default_rng(seed)
    blocks = generator.integers(0, 256, (*shape[:-1], shape[-1] // values, size), dtype=np.uint8)
    for start in HALVES[kind]:
        scale = generator.normal(0, 0.01, blocks.shape[:-1]).astype(np.float16)
        blocks[..., start : start + 2] = scale[..., None].view(np.uint8)
    return torch.from_numpy(blocks.reshape(*shape[:-1], -1))


def decoded(kind: str, raw: Tensor) -> Tensor:
    """Weights fp32 of raw blocks, by the `gguf` package."""
    return torch.from_numpy(dequantize(raw.numpy(), GGMLQuantizationType[kind]).astype(np.float32))


def rounded(x: Tensor) -> Tensor:
    """Rows fp64 [N, width] as the kernels round them: int8 with one scale for each 32 values."""
    groups = x.reshape(len(x), -1, 32)
    largest = groups.abs().amax(-1, keepdim=True)
    inverse = torch.where(largest > 0, 127 / largest, 0)
    return ((groups * inverse).round().double() * (largest / 127).double()).flatten(1)
