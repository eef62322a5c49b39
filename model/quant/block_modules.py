"""Linears, experts and embedding over GGUF blocks: by compiled kernels, or decoded in torch without them."""

from __future__ import annotations

import torch
from torch import Tensor

from jev.model import native
from jev.model.quant.blocks import Blocks
from jev.model.quant.modules import PackedEmbedding, PackedExperts, PackedLinear, linear


class BlockLinear(PackedLinear):
    """`nn.Linear` without bias over blocks [out, in]."""

    weight: Blocks

    def forward(self, x: Tensor) -> Tensor:
        """Map x [N, in] to [N, out]."""
        if self.weight.kernels is not None and _plain(x):
            return self.weight.kernels.linear(x).to(x.dtype)
        return linear(x, self.weight)


class BlockExperts(PackedExperts):
    """`jev.model.moe.Experts` over blocks [experts, out, in]."""

    gate_up_proj: Blocks
    down_proj: Blocks

    def forward(self, x: Tensor, weights: Tensor, index: Tensor) -> Tensor:
        """Mix the chosen experts: x [N, hidden], weights and index [N, k] -> [N, hidden]."""
        gate_up, down = self.gate_up_proj.kernels, self.down_proj.kernels
        if gate_up is not None and down is not None and _plain(x):
            return native.experts(x, weights, index, gate_up, down).to(x.dtype)
        return super().forward(x, weights, index)


class BlockEmbedding(PackedEmbedding):
    """`nn.Embedding` over blocks [vocab, hidden], whose rows are decoded and come out as `dtype`."""

    table: Blocks

    def unembed(self, x: Tensor) -> Tensor:
        """Project x [N, hidden] on all rows: [N, vocab]."""
        if self.table.kernels is not None and _plain(x):
            return self.table.kernels.linear(x).to(x.dtype)
        return super().unembed(x)


def _plain(x: Tensor) -> bool:
    """Whether kernels can take these rows: on the CPU, and without gradients."""
    return x.device.type == "cpu" and not (torch.is_grad_enabled() and x.requires_grad)
