"""Modules that stand in for a layer's linears and experts and for the embedding.

Torch's own kernels for packed weights are not used: on CPUs they take one scale a row or bf16 activations
only, and from about thirty rows on they are slower than decoding a block and multiplying it in fp32.
"""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from jev.model.moe import gated, mix
from jev.model.quant.blocks import Blocks
from jev.model.quant.packed import Packed

BLOCK = 2**20
"""Weights decoded at once: 4 MiB in fp32, which stays in a core's cache."""


class PackedLinear(nn.Module):
    """`nn.Linear` without bias over a packed weight [out, in]."""

    def __init__(self, weight: Packed | Blocks) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, x: Tensor) -> Tensor:
        """Map x [N, in] to [N, out]."""
        return linear(x, self.weight)


class PackedEmbedding(nn.Module):
    """`nn.Embedding` over a packed table [vocab, hidden], whose rows come out as `dtype`."""

    def __init__(self, table: Packed | Blocks, dtype: torch.dtype) -> None:
        super().__init__()
        self.table = table
        self.dtype = dtype

    @property
    def weight(self) -> Tensor:
        """The whole table, decoded for the caller."""
        return self.table.decode(slice(None), self.dtype)

    def forward(self, ids: Tensor) -> Tensor:
        """Rows [N, hidden] of int64 ids [N]."""
        return self.table.decode(ids, self.dtype)

    def unembed(self, x: Tensor, ids: Tensor | None = None) -> Tensor:
        """Project x [N, hidden] on the rows `ids` [U], or on all: [N, U] or [N, vocab]."""
        return linear(x, self.table) if ids is None else F.linear(x, self(ids))

    def mix(self, weights: Tensor) -> Tensor:
        """Sum all rows by weights [N, vocab]: [N, hidden], decoded a block of rows at a time."""
        step = max(1, BLOCK // self.table.width)
        parts = (
            weights[:, start : start + step] @ self.table.decode(slice(start, start + step), self.dtype)
            for start in range(0, len(self.table), step)
        )
        return functools.reduce(torch.add, parts)


class PackedExperts(nn.Module):
    """`jev.model.moe.Experts` over packed weights; only the experts that rows chose are decoded."""

    def __init__(self, gate_up_proj: Packed | Blocks, down_proj: Packed | Blocks) -> None:
        super().__init__()
        self.gate_up_proj = gate_up_proj
        self.down_proj = down_proj

    def forward(self, x: Tensor, weights: Tensor, index: Tensor) -> Tensor:
        """Mix the chosen experts: x [N, hidden], weights and index [N, k] -> [N, hidden]."""

        def expert(number: int, rows: Tensor) -> Tensor:
            return gated(
                rows,
                self.gate_up_proj.decode(number, rows.dtype),
                self.down_proj.decode(number, rows.dtype),
            )

        return mix(x, weights, index, len(self.gate_up_proj), expert)


def linear(x: Tensor, weight: Packed | Blocks) -> Tensor:
    """Multiply x [N, in] by the transpose of a packed [out, in], decoded a block of rows at a time."""
    step = max(1, BLOCK // weight.width)
    parts = [
        F.linear(x, weight.decode(slice(start, start + step), x.dtype))
        for start in range(0, len(weight), step)
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)
