"""Linears, experts and embedding over GGUF blocks: by compiled kernels, or decoded in torch without them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from jev.model import native
from jev.model.layers import Gate, GatedMLP
from jev.model.moe import Experts, Router
from jev.model.quant.blocks import Blocks
from jev.model.quant.modules import PackedEmbedding, PackedExperts, PackedLinear, linear
from jev.model.text import TextModel


class BlockLinear(PackedLinear):
    """`nn.Linear` without bias over blocks [out, in]."""

    weight: Blocks

    def forward(self, x: Tensor) -> Tensor:
        """Map x [N, in] to [N, out]."""
        if self.weight.kernels is not None and native.takes(x):
            return self.weight.kernels.linear(x).to(x.dtype)
        return linear(x, self.weight)


class BlockExperts(PackedExperts):
    """`jev.model.moe.Experts` over blocks [experts, out, in]."""

    gate_up_proj: Blocks
    down_proj: Blocks

    def forward(self, x: Tensor, weights: Tensor, index: Tensor) -> Tensor:
        """Mix the chosen experts: x [N, hidden], weights and index [N, k] -> [N, hidden]."""
        gate_up, down = self.gate_up_proj.kernels, self.down_proj.kernels
        if gate_up is not None and down is not None and native.takes(x):
            return native.experts(x, weights, index, gate_up, down).to(x.dtype)
        return super().forward(x, weights, index)


class BlockEmbedding(PackedEmbedding):
    """`nn.Embedding` over blocks [vocab, hidden], whose rows are decoded and come out as `dtype`."""

    table: Blocks

    def unembed(self, x: Tensor, ids: Tensor | None = None) -> Tensor:
        """Project x [N, hidden] on the rows `ids` [U], or on all: [N, U] or [N, vocab]."""
        if self.table.kernels is None or not native.takes(x):
            return super().unembed(x, ids)
        found = self.table.kernels.linear(x) if ids is None else native.dense(x, self(ids))
        return found.to(x.dtype)


class DenseLinear(nn.Module):
    """`nn.Linear` without bias over fp32 weights, by a kernel whose rows do not depend on each other."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.detach(), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map x [N, in] to [N, out]."""
        return native.dense(x, self.weight) if native.takes(x) else F.linear(x, self.weight)


class KernelGate(Gate):
    """`jev.model.layers.Gate` by a kernel: torch's gelu depends on where in memory a value stands."""

    def forward(self, gates: Tensor, up: Tensor) -> Tensor:
        """Gate `up` [..., intermediate]."""
        if native.takes(gates) and native.takes(up):
            return native.gate(gates, up).to(up.dtype)
        return super().forward(gates, up)


def use_row_kernels(text: TextModel) -> None:
    """Make a model row-invariant whose matrices all have kernels, on a CPU in fp32; others stay as they are.

    What torch would do with rows together is done by kernels too: routers, gates, and attention (see
    `jev.model.packed`). Norms, softmax and rotation are the same bits for each row already.
    """
    if text.norm.weight.dtype != torch.float32 or not all(map(_in_kernels, _matrices(text))):
        return
    for module in text.modules():
        if isinstance(module, Router):
            module.add_module("proj", DenseLinear(module.proj.weight))
        elif isinstance(module, GatedMLP):
            module.gate = KernelGate()
    text.row_invariant = True


def _matrices(text: TextModel) -> Iterator[nn.Module]:
    """Everything that a read multiplies with, but routers."""
    yield text.embed_tokens
    for path, module in text.layers.named_modules():
        experts = isinstance(module, Experts | PackedExperts)
        if experts or (isinstance(module, nn.Linear | PackedLinear) and not path.endswith("router.proj")):
            yield module


def _in_kernels(module: nn.Module) -> bool:
    """Whether all weights of a linear, of experts or of an embedding have kernels."""
    blocks = [child for child in module.children() if isinstance(child, Blocks)]
    return bool(blocks) and all(one.kernels is not None for one in blocks)
