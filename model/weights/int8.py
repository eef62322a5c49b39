"""Symmetric int8 per row: a float tensor [..., in] as int8 values and one fp32 scale per row.

On disk a quantised tensor NAME is stored as NAME (int8) and NAME + ".int8_scale" (fp32 [...]).
"""

from __future__ import annotations

import torch
from torch import Tensor

SCALE_SUFFIX = ".int8_scale"


def quantize_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return int8 values of weight's shape and fp32 scales of its shape without the last dimension.

    scale = max|row| / 127 (1 for a row of zeros); values are rounded to nearest.
    """
    weight = weight.float()
    scale = weight.abs().amax(-1) / 127
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)
    return (weight / scale[..., None]).round().clamp(-127, 127).to(torch.int8), scale


def dequantize_rows(values: Tensor, scale: Tensor) -> Tensor:
    """Return values * scale as fp32, of the values' shape."""
    return values.float() * scale[..., None]
