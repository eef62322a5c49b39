"""The router and the experts of a layer."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from jev.model.config import TextConfig
from jev.model.layers import rms_norm


class Router(nn.Module):
    """Chooses top-k experts a row from the raw residual stream."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.proj = nn.Linear(config.hidden_size, config.num_experts, bias=False)
        self.scale = nn.Parameter(torch.empty(config.hidden_size))
        self.per_expert_scale = nn.Parameter(torch.empty(config.num_experts))
        self.top_k = config.top_k_experts
        self.eps = config.rms_norm_eps
        self.root = config.hidden_size**-0.5

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return weights [N, k] fp32 and expert indices [N, k] int64 for rows x [N, hidden].

        The weights are renormalised over the chosen k and then scaled per expert, so they need
        not add up to one.
        """
        routed = rms_norm(x, None, self.eps) * self.scale * self.root
        probabilities = F.softmax(self.proj(routed), dim=-1, dtype=torch.float32)
        weights, index = probabilities.topk(self.top_k, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        return weights * self.per_expert_scale.float()[index], index


class Experts(nn.Module):
    """Gated MLPs of which each row passes k; parameters are [experts, out, in], gate rows first."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        experts, hidden, inner = config.num_experts, config.hidden_size, config.moe_intermediate_size
        self.gate_up_proj = nn.Parameter(torch.empty(experts, 2 * inner, hidden))
        self.down_proj = nn.Parameter(torch.empty(experts, hidden, inner))

    def forward(self, x: Tensor, weights: Tensor, index: Tensor) -> Tensor:
        """Mix the chosen experts: x [N, hidden], weights and index [N, k] -> [N, hidden]."""
        if can_group(x, self.gate_up_proj):
            return mix_grouped(x, weights, index, self.gate_up_proj, self.down_proj)

        def expert(number: int, rows: Tensor) -> Tensor:
            return gated(rows, self.gate_up_proj[number], self.down_proj[number])

        return mix(x, weights, index, len(self.gate_up_proj), expert)


def can_group(x: Tensor, gate_up: Tensor) -> bool:
    """Whether torch has one kernel for the matmuls of all experts on rows like x [N, hidden].

    It takes bfloat16 on CUDA devices of compute capability 8.0 on, with rows that begin at multiples of 16
    bytes (torch 2.13, `torch.nn.functional.grouped_mm`). On a CPU it is a loop as well.
    """
    if not (x.is_cuda and len(x) and x.dtype == gate_up.dtype == torch.bfloat16):
        return False
    _, two_inner, hidden = gate_up.shape
    aligned = hidden % 8 == 0 and two_inner % 16 == 0
    return aligned and torch.cuda.get_device_capability(x.device) >= (8, 0)


def mix_grouped(x: Tensor, weights: Tensor, index: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """Mix gated MLPs of rows x [N, hidden] by weights and index [N, k] -> [N, hidden], without a loop.

    gate_up is [experts, 2 * inner, hidden], gate rows first, down [experts, hidden, inner]. Nothing in it
    waits for the device: how many rows each expert has stays there. Sums are as in `mix`.
    """
    chosen, order = index.flatten().sort(stable=True)
    numbers = torch.arange(len(gate_up), device=x.device)
    ends = torch.searchsorted(chosen, numbers, right=True, out_int32=True)
    rows = x[order // index.shape[1]]
    gate, up = F.grouped_mm(rows, gate_up.transpose(1, 2), offs=ends).chunk(2, dim=-1)
    inner = F.gelu(gate, approximate="tanh") * up
    return _summed(F.grouped_mm(inner, down.transpose(1, 2), offs=ends), order, weights, x.dtype)


def gated(x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """One expert on x [N, hidden]; gate_up is [2 * inner, hidden], gate rows first, down [hidden, inner]."""
    gate, up = F.linear(x, gate_up).chunk(2, dim=-1)
    return F.linear(F.gelu(gate, approximate="tanh") * up, down)


def mix(
    x: Tensor, weights: Tensor, index: Tensor, experts: int, expert: Callable[[int, Tensor], Tensor]
) -> Tensor:
    """Mix `expert(number, rows)` of rows x [N, hidden] by weights and index [N, k] -> [N, hidden].

    Rows are sorted by expert so that each expert is one matmul over its rows; products are summed in
    fp32 and cast once.
    """
    order = index.flatten().argsort(stable=True)
    rows = x[order // index.shape[1]]
    sizes = torch.bincount(index.flatten(), minlength=experts).tolist()
    outputs = [expert(number, part) for number, part in enumerate(rows.split(sizes)) if len(part)]
    return _summed(torch.cat(outputs), order, weights, x.dtype)


def _summed(outputs: Tensor, order: Tensor, weights: Tensor, dtype: torch.dtype) -> Tensor:
    """Sum each row's products by its weights [N, k] in fp32; they lie at `order` [N * k] -> [N, hidden]."""
    count, k = weights.shape
    mixed = torch.empty(count * k, outputs.shape[-1], dtype=torch.float32, device=outputs.device)
    mixed[order] = outputs.float()
    return torch.einsum("nkh,nk->nh", mixed.view(count, k, -1), weights).to(dtype)
