"""GGUF's quantised blocks as they lie in the file, decoded where they are needed, and the modules over them.

A row of a weight is a row of blocks; a block is 32 or 256 weights with their scales. Decoding follows
`gguf.quants` operation by operation in fp32, so it gives the same bits. Layouts: ggml's `ggml-common.h`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from jev.model import native

BLOCKS: dict[str, tuple[int, int]] = {
    "F32": (1, 4),
    "F16": (1, 2),
    "BF16": (1, 2),
    "Q8_0": (32, 34),
    "Q5_0": (32, 22),
    "Q5_1": (32, 24),
    "Q4_K": (256, 144),
    "Q5_K": (256, 176),
    "Q6_K": (256, 210),
}
"""Weights and bytes of a block by type."""

CHUNK = 2**18
"""Weights decoded at once: few enough that the steps between stay in a core's cache."""


class Blocks(nn.Module):
    """A weight [..., in] in blocks.

    Attributes:
        raw: uint8 [..., row bytes].
        kind: one of `BLOCKS`.
        width: `in`.
        shape: of the weight.
        kernels: the weight as compiled kernels take it, in place of `raw`; None = it has none.
    """

    raw: Tensor | None

    def __init__(self, raw: Tensor, kind: str) -> None:
        super().__init__()
        values, size = BLOCKS[kind]
        assert raw.dtype == torch.uint8
        assert raw.shape[-1] % size == 0
        self.register_buffer("raw", raw)
        self.kind = kind
        self.width = raw.shape[-1] // size * values
        self.shape = torch.Size((*raw.shape[:-1], self.width))
        self.kernels: native.Weights | None = None

    def __len__(self) -> int:
        """Length of the first dimension."""
        return self.shape[0]

    def use_kernels(self) -> bool:
        """Hand the blocks to compiled kernels, where there are some for the type, and let go of them here."""
        if self.raw is None or not native.available() or not native.supports(self.kind):
            return False
        self.kernels = native.prepare(self.kind, self.raw, self.width)
        self.raw = None
        return True

    def decode(self, index: int | slice | Tensor, dtype: torch.dtype) -> Tensor:
        """The weights at `index` of the first dimension, as `dtype`; the arithmetic is fp32."""
        if self.raw is not None:
            return decode(self.raw[index], self.kind, dtype)
        assert self.kernels is not None
        numbers = torch.arange(len(self))[index]
        if len(self.shape) == 2:
            rows = self.kernels.rows(numbers.flatten())
        else:
            every = torch.arange(self.shape[1])
            rows = torch.cat([self.kernels.rows(every, one) for one in numbers.flatten().tolist()])
        return rows.view(*numbers.shape, *self.shape[1:]).to(dtype)


def decode(raw: Tensor, type: str, dtype: torch.dtype = torch.float32) -> Tensor:
    """Decode rows of blocks, uint8 [..., row bytes], to weights [..., in] of `dtype`."""
    values, size = BLOCKS[type]
    width = raw.shape[-1] // size * values
    blocks = raw.reshape(-1, size)
    out = torch.empty(len(blocks), values, dtype=dtype, device=raw.device)
    step = max(1, CHUNK // values)
    for start in range(0, len(blocks), step):
        out[start : start + step] = _DECODERS[type](blocks[start : start + step])
    return out.view(*raw.shape[:-1], width)


def _half(blocks: Tensor, start: int) -> Tensor:
    """The fp16 at a byte of every block, fp32 [blocks, 1]."""
    return blocks[:, start : start + 2].contiguous().view(torch.float16).float()


def _nibbles(packed: Tensor, run: int) -> Tensor:
    """Split bytes [blocks, n] into their halves: of every `run` bytes first the low ones, then the high."""
    parts = packed.reshape(len(packed), -1, 1, run)
    return torch.cat((parts & 15, parts >> 4), dim=2).reshape(len(packed), -1)


def _float(dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    return lambda blocks: blocks.contiguous().view(dtype).float()


def _q8_0(blocks: Tensor) -> Tensor:
    return _half(blocks, 0) * blocks[:, 2:].view(torch.int8).float()


def _fifth_bits(packed: Tensor) -> Tensor:
    """The bits of 4 little-endian bytes [blocks, 4], uint8 [blocks, 32] of 0 and 16."""
    shifts = torch.arange(8, dtype=torch.uint8, device=packed.device)
    return ((packed[..., None] >> shifts & 1) << 4).reshape(len(packed), 32)


def _q5_0(blocks: Tensor) -> Tensor:
    values = (_nibbles(blocks[:, 6:], 16) | _fifth_bits(blocks[:, 2:6])).view(torch.int8) - 16
    return _half(blocks, 0) * values.float()


def _q5_1(blocks: Tensor) -> Tensor:
    values = _nibbles(blocks[:, 8:], 16) | _fifth_bits(blocks[:, 4:8])
    return _half(blocks, 0) * values.float() + _half(blocks, 2)


def _scales_and_minima(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Scale and minimum of the 8 parts of 32 weights, fp32 [blocks, 8, 1]: 6 bits each in 12 bytes."""
    low, high, rest = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scale = torch.cat((low & 63, rest & 15 | low >> 2 & 48), dim=1)
    minimum = torch.cat((high & 63, rest >> 4 | high >> 2 & 48), dim=1)
    return (_half(blocks, 0) * scale.float())[..., None], (_half(blocks, 2) * minimum.float())[..., None]


def q4_k_parts(blocks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Values 0..15 [blocks, 8, 32], scales and minima fp32 [blocks, 8, 1] of Q4_K blocks [blocks, 144]."""
    return _nibbles(blocks[:, 16:], 32).view(-1, 8, 32), *_scales_and_minima(blocks)


def _q4_k(blocks: Tensor) -> Tensor:
    values, scale, minimum = q4_k_parts(blocks)
    return (scale * values.float() - minimum).flatten(1)


def _q5_k(blocks: Tensor) -> Tensor:
    scale, minimum = _scales_and_minima(blocks)
    shifts = torch.arange(8, dtype=torch.uint8, device=blocks.device)[:, None]
    high = (blocks[:, None, 16:48] >> shifts & 1) << 4
    values = _nibbles(blocks[:, 48:], 32).view(-1, 8, 32) | high
    return (scale * values.float() - minimum).flatten(1)


def _q6_k(blocks: Tensor) -> Tensor:
    scale = _half(blocks, 208) * blocks[:, 192:208].view(torch.int8).float()
    shifts = torch.arange(0, 8, 2, dtype=torch.uint8, device=blocks.device)[:, None]
    high = (blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts & 3) << 4
    values = (_nibbles(blocks[:, :128], 64) | high.reshape(-1, 256)).view(torch.int8) - 32
    return (scale[..., None] * values.view(-1, 16, 16).float()).flatten(1)


_DECODERS: dict[str, Callable[[Tensor], Tensor]] = {
    "F32": _float(torch.float32),
    "F16": _float(torch.float16),
    "BF16": _float(torch.bfloat16),
    "Q8_0": _q8_0,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
