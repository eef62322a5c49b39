"""4-bit weights in the layout of torch's own int4 product (tinygemm), which is fast at few rows on GPUs.

A group of 32 weights has a scale and a zero in bfloat16: w = (q - 8) * scale + zero. Activations are bfloat16
too.
"""

from __future__ import annotations

from typing import TypeGuard, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from jev.model.moe import mix
from jev.model.quant.blocks import BLOCKS, Blocks, q4_k_parts
from jev.model.quant.modules import PackedExperts, PackedLinear
from jev.model.quant.packed import Packed
from jev.model.weights.int8 import GROUP

_TILES = (8, 4, 2)
"""Tiles of 16 columns that the CUDA kernel's layout keeps together, the fastest first."""


def suits(weight: nn.Module) -> TypeGuard[Packed | Blocks]:
    """Whether the kernel takes a weight [..., out, in]: 4 bits in groups of 32 along `in`, `out` in eights.

    Of the types of GGUF files that is Q4_K, whose groups have a scale and a minimum.
    """
    if isinstance(weight, Blocks):
        return weight.kind == "Q4_K" and weight.raw is not None and weight.shape[-2] % 8 == 0
    if not isinstance(weight, Packed) or weight.bits != 4:
        return False
    return weight.width % GROUP == 0 and weight.values.shape[-2] % 8 == 0


class Tiled(nn.Module):
    """One or several weights [..., out, in] of the same shape in that layout.

    Attributes:
        values: packed, as torch lays it out on this kind of device.
        scales: bfloat16 [..., in / 32, out, 2], scales and zeros.
    """

    values: Tensor
    scales: Tensor

    def __init__(self, weight: Packed | Blocks) -> None:
        """Lay out a weight that `suits`, on the device where it is, one matrix at a time."""
        super().__init__()
        parts = _packed_parts if isinstance(weight, Packed) else _block_parts
        whole = len(weight.values.shape if isinstance(weight, Packed) else weight.shape) == 2
        numbers = [None] if whole else range(len(weight))
        stacks = [_tiled(*parts(weight, number)) for number in numbers]  # type: ignore[arg-type]
        values, scales = (torch.stack(column) for column in zip(*stacks, strict=True))
        self.register_buffer("values", values[0] if whole else values)
        self.register_buffer("scales", scales[0] if whole else scales)

    def __len__(self) -> int:
        """Length of the first dimension of `values`."""
        return len(self.values)


def _packed_parts(packed: Packed, number: int | None) -> tuple[Tensor, Tensor, Tensor]:
    """Values 0..15 [out, in], scales and zeros fp32 [out, groups] of the weight, or of one of several."""
    values, scale, offset = (
        part if number is None else part[number]
        for part in (packed.values, packed.scale, cast(Tensor, packed.offset))
    )
    columns = torch.cat((values & 15, (values >> 4) & 15), dim=-1)[..., : packed.width]
    return columns, scale.float(), offset.float() + 8 * scale.float()


def _block_parts(blocks: Blocks, number: int | None) -> tuple[Tensor, Tensor, Tensor]:
    """The same of Q4_K blocks, where w = q * scale - minimum."""
    raw = cast(Tensor, blocks.raw)
    raw = raw if number is None else raw[number]
    columns, scale, minimum = q4_k_parts(raw.reshape(-1, BLOCKS["Q4_K"][1]))
    columns = columns.view(len(raw), -1)
    scale, minimum = scale.view(len(raw), -1), minimum.view(len(raw), -1)
    return columns, scale, 8 * scale - minimum


def _tiled(columns: Tensor, scale: Tensor, zero: Tensor) -> tuple[Tensor, Tensor]:
    """Values and scales of one weight as the kernel takes them; see `_packed_parts`."""
    scales = torch.stack((scale, zero), dim=-1).transpose(0, 1).contiguous().bfloat16()
    if columns.is_cuda:
        pairs = (columns[:, ::2] << 4 | columns[:, 1::2]).to(torch.uint8).contiguous()
        tiles = next(tiles for tiles in _TILES if columns.shape[1] % (tiles * 16) == 0)
        return torch.ops.aten._convert_weight_to_int4pack(pairs, tiles), scales
    # The same product for CPUs, by which everything but the CUDA kernel is tested.
    laid = torch.ops.aten._convert_weight_to_int4pack_for_cpu(columns.int().contiguous(), 1)
    return laid, scales


def linear(x: Tensor, values: Tensor, scales: Tensor) -> Tensor:
    """Multiply x [N, in] by the transpose of one tiled weight: [N, out] like x."""
    if not len(x):
        return x.new_empty(0, scales.shape[-2])
    ops = torch.ops.aten
    product = ops._weight_int4pack_mm if x.is_cuda else ops._weight_int4pack_mm_for_cpu
    return product(x.bfloat16().contiguous(), values, GROUP, scales).to(x.dtype)


class TiledLinear(nn.Module):
    """`nn.Linear` without bias over a tiled weight."""

    def __init__(self, weight: Tiled) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, x: Tensor) -> Tensor:
        """Map x [N, in] to [N, out]."""
        return linear(x, self.weight.values, self.weight.scales)


class TiledExperts(nn.Module):
    """`jev.model.moe.Experts` over weights of which one at least is tiled, one product after another."""

    def __init__(self, gate_up_proj: Tiled | Packed | Blocks, down_proj: Tiled | Packed | Blocks) -> None:
        super().__init__()
        self.gate_up_proj = gate_up_proj
        self.down_proj = down_proj

    def forward(self, x: Tensor, weights: Tensor, index: Tensor) -> Tensor:
        """Mix the chosen experts: x [N, hidden], weights and index [N, k] -> [N, hidden]."""

        def expert(number: int, rows: Tensor) -> Tensor:
            gate, up = _product(rows, self.gate_up_proj, number).chunk(2, dim=-1)
            return _product(F.gelu(gate, approximate="tanh") * up, self.down_proj, number)

        return mix(x, weights, index, len(self.gate_up_proj), expert)


def _product(x: Tensor, weight: Tiled | Packed | Blocks, number: int) -> Tensor:
    """Multiply x [N, in] by the transpose of one of several weights."""
    if isinstance(weight, Tiled):
        return linear(x, weight.values[number], weight.scales[number])
    return F.linear(x, weight.decode(number, x.dtype))


def tiled(module: PackedLinear | PackedExperts) -> nn.Module:
    """The module over tiled weights, or itself where the kernel does not take any of them."""
    if isinstance(module, PackedLinear):
        return TiledLinear(Tiled(module.weight)) if suits(module.weight) else module
    both = module.gate_up_proj, module.down_proj
    if not any(map(suits, both)):
        return module
    first, second = (Tiled(weight) if suits(weight) else weight for weight in both)
    return TiledExperts(first, second)
