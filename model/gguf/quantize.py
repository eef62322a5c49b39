"""Weights as GGUF blocks: by the `gguf` package's quantisers, and by least squares for the K types it lacks.

Meant for making files, not for speed. The fits follow the idea of ggml's `make_qkx2_quants` and
`make_qx_quants`: try scales around the plain one, solve for the best scale (and minimum) given the rounded
values, keep the least error.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from gguf import GGMLQuantizationType, quants
from torch import Tensor

from jev.model.quant.blocks import BLOCKS

CHUNK = 2**16
"""Weights quantised at once: few enough for a core's cache."""

_FALLBACK = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
"""What llama.cpp stores rows as that are no multiple of 256."""


def fitting_type(type: str, width: int) -> str:
    """The type that rows of `width` weights get where `type` is wanted, as llama.cpp chooses."""
    if width % BLOCKS[type][0]:
        type = _FALLBACK.get(type, type)
    return type if width % BLOCKS[type][0] == 0 else "F16"


def encode(weight: Tensor, type: str) -> Tensor:
    """Quantise a float tensor [..., in] on the CPU to uint8 [..., row bytes].

    Raises:
        ValueError: rows are no whole blocks of the type.
    """
    values, size = BLOCKS[type]
    if weight.shape[-1] % values:
        raise ValueError(f"rows of {weight.shape[-1]} weights are no whole {type} blocks of {values}")
    rows = weight.detach().reshape(-1, values)
    parts = [_ENCODERS[type](part.float()).flatten() for part in rows.split(max(1, CHUNK // values))]
    return torch.cat(parts).view(*weight.shape[:-1], weight.shape[-1] // values * size)


def _bytes_of(dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    return lambda blocks: blocks.to(dtype).contiguous().view(torch.uint8)


def _library(type: str) -> Callable[[Tensor], Tensor]:
    # As one row: the library takes sixteen rows at a time.
    return lambda blocks: torch.from_numpy(
        quants.quantize(np.asarray(blocks.reshape(1, -1)), GGMLQuantizationType[type])
    )


def _fp16(values: Tensor) -> tuple[Tensor, Tensor]:
    """Rounded to fp16: the bytes [blocks, 2] and what they decode to [blocks, 1, 1]."""
    half = values.half()
    return half.view(-1, 1).view(torch.uint8), half.float().view(-1, 1, 1)


def _divided(values: Tensor, by: Tensor) -> Tensor:
    return torch.where(by == 0, 0, values / torch.where(by == 0, 1, by))


def _affine(x: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Scale and minimum >= 0 [..., 1] such that x [..., n] is about scale * q - minimum, q in 0..most."""
    weights = x.square().mean(-1, keepdim=True).sqrt() + x.abs()
    low = x.amin(-1, keepdim=True).clamp_max(0)
    span = x.amax(-1, keepdim=True) - low
    best_scale, best_minimum = span / most, -low

    def error_of(scale: Tensor, minimum: Tensor, q: Tensor) -> Tensor:
        return (weights * (scale * q - minimum - x).square()).sum(-1, keepdim=True)

    least = error_of(best_scale, best_minimum, _divided(x - low, best_scale).round())
    sum_w, sum_x = weights.sum(-1, keepdim=True), (weights * x).sum(-1, keepdim=True)
    for step in range(-10, 11):
        q = _divided((x - low) * (most + 0.1 * step), span).round().clamp(0, most)
        sum_q, sum_q2 = (weights * q).sum(-1, keepdim=True), (weights * q * q).sum(-1, keepdim=True)
        sum_xq = (weights * x * q).sum(-1, keepdim=True)
        determinant = sum_w * sum_q2 - sum_q * sum_q
        scale = _divided(sum_w * sum_xq - sum_x * sum_q, determinant)
        minimum = -_divided(sum_q2 * sum_x - sum_q * sum_xq, determinant)
        # A minimum is only ever taken away.
        scale = torch.where(minimum < 0, _divided(sum_xq, sum_q2), scale)
        minimum = minimum.clamp_min(0)
        error = error_of(scale, minimum, q)
        better = (error < least) & (scale >= 0)
        least = torch.where(better, error, least)
        best_scale = torch.where(better, scale, best_scale)
        best_minimum = torch.where(better, minimum, best_minimum)
    return best_scale, best_minimum


def _k_affine(blocks: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """The first 16 bytes of Q4_K and Q5_K blocks, and the values 0..most [blocks, 8, 32]."""
    x = blocks.view(-1, 8, 32)
    scale, minimum = _affine(x, most)
    d_bytes, d = _fp16(scale.amax(1) / 63)
    m_bytes, dm = _fp16(minimum.amax(1) / 63)
    scales = _divided(scale, d).round().clamp(0, 63)
    minima = _divided(minimum, dm).round().clamp(0, 63)
    q = _divided(x + dm * minima, d * scales).round().clamp(0, most).to(torch.uint8)
    ls, lm = scales[..., 0].to(torch.uint8), minima[..., 0].to(torch.uint8)
    packed = (
        ls[:, :4] | ls[:, 4:] >> 4 << 6,
        lm[:, :4] | lm[:, 4:] >> 4 << 6,
        ls[:, 4:] & 15 | (lm[:, 4:] & 15) << 4,
    )
    return torch.cat((d_bytes, m_bytes, *packed), dim=1), q


def _nibbles(q: Tensor, run: int) -> Tensor:
    """Two values a byte: of every 2 * `run` the first half low, the second high."""
    parts = q.reshape(len(q), -1, 2, run)
    return (parts[:, :, 0] & 15 | (parts[:, :, 1] & 15) << 4).flatten(1)


def _q4_k(blocks: Tensor) -> Tensor:
    head, q = _k_affine(blocks, 15)
    return torch.cat((head, _nibbles(q, 32)), dim=1)


def _q5_k(blocks: Tensor) -> Tensor:
    head, q = _k_affine(blocks, 31)
    shifts = torch.arange(8, dtype=torch.uint8)[:, None]
    high = ((q >> 4) << shifts).sum(1, dtype=torch.uint8)
    return torch.cat((head, high, _nibbles(q, 32)), dim=1)


def _q6_k(blocks: Tensor) -> Tensor:
    x = blocks.view(-1, 16, 16)
    scale = _symmetric(x)
    largest = scale.gather(1, scale.abs().argmax(1, keepdim=True))
    d_bytes, d = _fp16(largest / -128)
    scales = _divided(scale, d).round().clamp(-128, 127)
    q = (_divided(x, d * scales).round().clamp(-32, 31) + 32).to(torch.uint8)
    quarters = (q.view(-1, 2, 4, 32) >> 4) << torch.arange(0, 8, 2, dtype=torch.uint8)[:, None]
    high = quarters.sum(2, dtype=torch.uint8).flatten(1)
    signed = scales[..., 0].to(torch.int8).view(torch.uint8)
    return torch.cat((_nibbles(q, 64), high, signed, d_bytes), dim=1)


def _symmetric(x: Tensor) -> Tensor:
    """A scale [..., 1], of either sign, such that x [..., n] is about scale * q, q in -32..31."""
    weights = x.square()
    peak = x.gather(-1, x.abs().argmax(-1, keepdim=True))
    best, most = peak / -32, torch.full_like(peak, -1.0)
    for step in range(-9, 10):
        q = _divided(x * -(32 + 0.1 * step), peak).round().clamp(-32, 31)
        sum_xq, sum_q2 = (weights * x * q).sum(-1, keepdim=True), (weights * q * q).sum(-1, keepdim=True)
        gain = _divided(sum_xq.square(), sum_q2)
        better = gain > most
        most = torch.where(better, gain, most)
        best = torch.where(better, _divided(sum_xq, sum_q2), best)
    return best


_ENCODERS: dict[str, Callable[[Tensor], Tensor]] = {
    "F32": _bytes_of(torch.float32),
    "F16": _bytes_of(torch.float16),
    "BF16": _bytes_of(torch.bfloat16),
    "Q8_0": _library("Q8_0"),
    "Q5_0": _library("Q5_0"),
    "Q5_1": _library("Q5_1"),
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
