"""Norm, gated MLP and rotary embedding: the parts that every layer is made of."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from jev.model.config import RopeConfig


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """RMSNorm in fp32 with one cast back at the end: x * (mean(x^2) + eps)^(-1/2) * w.

    The weight multiplies as it is (not 1 + w); None is the scaleless form.
    """
    y = x.float()
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps)
    if weight is not None:
        y = y * weight.float()
    return y.to(x.dtype)


class RMSNorm(nn.Module):
    """`rms_norm` over the last dimension with a weight of [dim]."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x [..., dim]."""
        return rms_norm(x, self.weight, self.eps)


class Gate(nn.Module):
    """gelu_tanh(gates) * up, of two tensors of one shape."""

    def forward(self, gates: Tensor, up: Tensor) -> Tensor:
        """Gate `up` [..., intermediate]."""
        return F.gelu(gates, approximate="tanh") * up


class GatedMLP(nn.Module):
    """(gelu_tanh(x Wg^T) * (x Wu^T)) Wd^T; [N, hidden] -> [N, hidden]."""

    def __init__(self, hidden: int, intermediate: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, intermediate, bias=False)
        self.up_proj = nn.Linear(hidden, intermediate, bias=False)
        self.down_proj = nn.Linear(intermediate, hidden, bias=False)
        self.gate = Gate()

    def forward(self, x: Tensor) -> Tensor:
        """Map x [N, hidden] to [N, hidden]."""
        return self.down_proj(self.gate(self.gate_proj(x), self.up_proj(x)))


def rope_tables(positions: Tensor, head_dim: int, rope: RopeConfig) -> tuple[Tensor, Tensor]:
    """Cosines and sines for int64 `positions` [N]: two fp32 tensors [N, 1, head_dim].

    Pair j turns by position * theta^(-2j / head_dim). Of the head_dim / 2 pairs only the first
    `fraction` turn (the proportional form); the exponent's denominator stays the whole head.
    """
    pairs = head_dim // 2
    rotated = int(rope.fraction * pairs)
    exponent = torch.arange(rotated, dtype=torch.float32, device=positions.device) * 2 / head_dim
    frequency = F.pad(1.0 / rope.theta**exponent, (0, pairs - rotated))
    angle = positions.float()[:, None, None] * frequency
    angle = torch.cat((angle, angle), dim=-1)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary embedding to [N, heads, head_dim]; pairs are (j, j + head_dim / 2)."""
    first, second = x.chunk(2, dim=-1)
    return x * cos.to(x.dtype) + torch.cat((-second, first), dim=-1) * sin.to(x.dtype)
