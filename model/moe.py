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

        def expert(number: int, rows: Tensor) -> Tensor:
            return gated(rows, self.gate_up_proj[number], self.down_proj[number])

        return mix(x, weights, index, len(self.gate_up_proj), expert)


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
    count, k = index.shape
    order = index.flatten().argsort(stable=True)
    rows = x[order // k]
    sizes = torch.bincount(index.flatten(), minlength=experts).tolist()
    outputs = [expert(number, part) for number, part in enumerate(rows.split(sizes)) if len(part)]
    mixed = torch.empty(count * k, x.shape[-1], dtype=torch.float32, device=x.device)
    mixed[order] = torch.cat(outputs).float()
    return torch.einsum("nkh,nk->nh", mixed.view(count, k, -1), weights).to(x.dtype)
