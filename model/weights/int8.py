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


def quantize_for(weight: Tensor, hessian: Tensor, damp: float = 0.01) -> tuple[Tensor, Tensor]:
    """Round a matrix [out, in] so that its products change little for inputs like those seen.

    Columns are rounded one after another, and what each one's rounding did to the products is made
    good in the columns that are left (GPTQ, Frantar et al. 2022, with the scales fixed beforehand).

    Args:
        weight: [out, in].
        hessian: sum of x x^T over the inputs x of the layer: [in, in] fp32 or fp64.
        damp: share of the mean diagonal that is added to the diagonal.
    """
    scale = group_scales(weight)
    width = weight.shape[1]
    per_column = scale.float().repeat_interleave(width // scale.shape[-1], dim=-1)
    hessian = hessian.double().clone()
    diagonal = torch.arange(width)
    hessian[diagonal, diagonal] += damp * hessian.diagonal().mean() + 1e-12
    inverse = torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(hessian)), upper=True)
    inverse = inverse.float()
    left = weight.float().clone()
    values = torch.empty_like(left)
    for column in range(width):
        step = per_column[:, column]
        values[:, column] = (left[:, column] / step).round().clamp(-127, 127)
        error = (left[:, column] - values[:, column] * step) / inverse[column, column]
        left[:, column + 1 :] -= error[:, None] * inverse[column, column + 1 :]
    return values.to(torch.int8), scale
