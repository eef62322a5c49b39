"""Symmetric int8 in groups: a float tensor [..., in] as int8 values and one fp16 scale per 32 of a row.

On disk a quantised tensor NAME is stored as NAME (int8) and NAME + ".int8_scale" (fp16 [..., groups]).
"""

from __future__ import annotations

import torch
from torch import Tensor

SCALE_SUFFIX = ".int8_scale"
GROUP = 32


def group_scales(weight: Tensor, group: int = GROUP) -> Tensor:
    """One scale per group, max|group| / 127 (1 for a group of zeros): fp16 [..., in / group].

    Rows that `group` does not divide are one group each.
    """
    width = weight.shape[-1]
    group = group if width % group == 0 else width
    scale = (weight.float().unflatten(-1, (-1, group)).abs().amax(-1) / 127).half()
    return torch.where(scale == 0, torch.ones_like(scale), scale)


def quantize(weight: Tensor, scale: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Round to nearest: int8 values of weight's shape and fp16 scales [..., groups]."""
    scale = group_scales(weight) if scale is None else scale
    groups = weight.float().unflatten(-1, (scale.shape[-1], -1))
    values = (groups / scale.float()[..., None]).round().clamp(-127, 127)
    return values.flatten(-2).to(torch.int8), scale


def dequantize(values: Tensor, scale: Tensor) -> Tensor:
    """Return values * scale as fp32, of the values' shape."""
    groups = values.float().unflatten(-1, (scale.shape[-1], -1))
    return (groups * scale.float()[..., None]).flatten(-2)


def fit(weight: Tensor, source: torch.dtype, group: int = GROUP, chunk: int = 2**17) -> tuple[Tensor, Tensor]:
    """Quantise with the scales that give the values back best, once rounded to `source` again.

    A weight that was on a coarse grid before (one that came from a quantised file) is found on it:
    for each group the largest magnitude may be any of the levels 1 to 127, the scale is refined by
    least squares for each, and the level with the least squared error wins. Slow, for making files.

    Returns:
        int8 values of weight's shape and fp16 scales [..., groups].
    """
    width = weight.shape[-1]
    group = group if width % group == 0 else width
    flat = weight.float().reshape(-1, group)
    values = torch.empty(flat.shape, dtype=torch.int8)
    scales = torch.ones(len(flat), 1, dtype=torch.float16)
    for start in range(0, len(flat), chunk):
        rows = flat[start : start + chunk]
        most = rows.abs().amax(-1, keepdim=True)
        least = torch.full_like(most, torch.inf)
        for level in range(127, 0, -1):
            levels = (rows / (most / level).clamp_min(1e-12)).round()
            weights = levels.square().sum(-1, keepdim=True).clamp_min(1e-30)
            scale = ((rows * levels).sum(-1, keepdim=True) / weights).half()
            back = (levels * scale.float()).to(source).float()
            error = (back - rows).square().sum(-1, keepdim=True)
            # A hair's breadth better is no reason to leave the finer grid.
            better = error < least * 0.999
            least = torch.where(better, error, least)
            part = slice(start, start + len(rows))
            values[part] = torch.where(better, levels.to(torch.int8), values[part])
            scales[part] = torch.where(better, scale, scales[part])
    return values.view(weight.shape), scales.view(*weight.shape[:-1], -1)
