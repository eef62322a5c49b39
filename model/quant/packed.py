"""Matrices in 8 or 4 bits a weight, in groups of 32 along a row.

int8 is symmetric: w = q * scale, q in -127..127, one fp16 scale a group (8.5 bits a weight). int4 is affine:
w = q * scale + offset, q in 0..15, an fp16 scale and offset a group (5 bits a weight).
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from jev.model.weights.int8 import GROUP, quantize

Bits: TypeAlias = Literal[4, 8]

CHUNK = 2**16
"""Weights quantised at once: few enough that the steps between stay in a core's cache."""


class Packed(nn.Module):
    """A quantised tensor [..., in], decoded where it is needed.

    Attributes:
        width: `in`.
        rounded: whether decoded values are rounded to bfloat16, the precision they had once.
    """

    values: Tensor
    scale: Tensor
    offset: Tensor | None

    def __init__(
        self,
        values: Tensor,
        scale: Tensor,
        offset: Tensor | None = None,
        *,
        width: int | None = None,
        rounded: bool = False,
    ) -> None:
        """Hold int8 `values` [..., in] with `scale` [..., groups], or with `offset` two values a byte.

        In a byte the low half belongs to column j, the high half to column j + ceil(in / 2).
        """
        super().__init__()
        self.register_buffer("values", values)
        self.register_buffer("scale", scale)
        self.register_buffer("offset", offset)
        self.width = width or values.shape[-1]
        self.rounded = rounded

    def __len__(self) -> int:
        """Length of the first dimension."""
        return len(self.values)

    @property
    def bits(self) -> Bits:
        """Bits of a value."""
        return 8 if self.offset is None else 4

    def decode(self, index: int | slice | Tensor, dtype: torch.dtype) -> Tensor:
        """The weights at `index` of the first dimension, as `dtype`; the arithmetic is fp32."""
        values = self.values[index]
        scale = self.scale[index].float()[..., None]
        out = torch.empty(*values.shape[:-1], self.width, dtype=torch.float32, device=values.device)
        if self.offset is None:
            out.copy_(values)
        else:
            half = values.shape[-1]
            out[..., :half].copy_(values & 15)
            out[..., half:].copy_(((values >> 4) & 15)[..., : self.width - half])
        groups = out.view(*scale.shape[:-1], -1).mul_(scale)
        if self.offset is not None:
            groups.add_(self.offset[index].float()[..., None])
        return (out.bfloat16() if self.rounded else out).to(dtype)


def pack(weight: Tensor, bits: Bits) -> Packed:
    """Quantise a float tensor [..., in], rounding to nearest.

    Rows that 32 does not divide are one group each.
    """
    flat = weight.reshape(-1, weight.shape[-1])
    quantise = _int8 if bits == 8 else _int4
    whole: list[Tensor] = []
    start = 0
    for rows in flat.split(max(1, CHUNK // flat.shape[-1])):
        parts = [part for part in quantise(rows) if part is not None]
        # Made before the next steps' intermediates, so that these can be given back behind it.
        whole = whole or [part.new_empty(len(flat), *part.shape[1:]) for part in parts]
        for target, part in zip(whole, parts, strict=True):
            target[start : start + len(rows)] = part
        start += len(rows)
    values, scale, *offset = (part.unflatten(0, weight.shape[:-1]) for part in whole)
    return Packed(values, scale, *offset, width=weight.shape[-1])


def _int8(weight: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    return *quantize(weight), None


def _int4(weight: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    width = weight.shape[-1]
    groups = weight.float().unflatten(-1, (-1, GROUP if width % GROUP == 0 else width))
    offset = groups.amin(-1).half()
    scale = ((groups.amax(-1) - offset.float()) / 15).half()
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    values = (groups - offset.float()[..., None]) / scale.float()[..., None]
    values = values.round().clamp(0, 15).to(torch.int8).flatten(-2)
    half = (width + 1) // 2
    high = torch.zeros_like(values[..., :half])
    high[..., : width - half] = values[..., half:]
    return values[..., :half] | (high << 4), scale, offset
