"""One layer's attention: projections and norms; who sees whom is the caller's `attend`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor, nn

from jev.model.config import LayerConfig, TextConfig
from jev.model.layers import RMSNorm, rms_norm, rotate

Attend: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(q [S, heads, d], k [N, kv, d], v [N, kv, d]) -> [S, heads * d]; S = rows that ask."""

MAX_SCORES = 2**24
"""Most attention scores held at once (64 MiB in fp32); longer queries go in parts."""


class Attention(nn.Module):
    """Grouped-query attention with normed q, k and v, scale 1 and no biases.

    Full layers have no v_proj: their values are the keys before norm and rotation.
    """

    def __init__(self, config: TextConfig, layer: LayerConfig) -> None:
        super().__init__()
        hidden, heads, dim = config.hidden_size, config.num_attention_heads, layer.head_dim
        self.heads, self.kv_heads, self.dim = heads, layer.num_key_value_heads, dim
        self.eps = config.rms_norm_eps
        self.q_proj = nn.Linear(hidden, heads * dim, bias=False)
        self.k_proj = nn.Linear(hidden, self.kv_heads * dim, bias=False)
        self.v_proj = nn.Linear(hidden, self.kv_heads * dim, bias=False) if layer.sliding else None
        self.o_proj = nn.Linear(heads * dim, hidden, bias=False)
        self.q_norm = RMSNorm(dim, self.eps)
        self.k_norm = RMSNorm(dim, self.eps)

    def keys_values(self, h: Tensor, rope: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Keys (normed, rotated) and values (normed) [N, kv, d] of rows h [N, hidden]."""
        k_raw = self.k_proj(h).view(-1, self.kv_heads, self.dim)
        v_raw = k_raw if self.v_proj is None else self.v_proj(h).view(-1, self.kv_heads, self.dim)
        return rotate(self.k_norm(k_raw), *rope), rms_norm(v_raw, None, self.eps)

    def forward(
        self, h: Tensor, rope: tuple[Tensor, Tensor], attend: Attend, rows: Tensor | None = None
    ) -> Tensor:
        """Attend from `rows` (int64 [S]; None = all) of h [N, hidden] to whatever `attend` shows.

        `rope` is the cosines and sines [N, 1, d] of the N positions. Returns [S, hidden].
        """
        k, v = self.keys_values(h, rope)
        cos, sin = rope
        if rows is not None:
            h, cos, sin = h[rows], cos[rows], sin[rows]
        q = rotate(self.q_norm(self.q_proj(h).view(-1, self.heads, self.dim)), cos, sin)
        return self.o_proj(attend(q, k, v))


Part: TypeAlias = tuple[Tensor, Tensor, Tensor | None]
"""Keys and values [M, kv, d] with a bias [S, M] fp32 of 0 and -inf (None = all are seen)."""


def attend_parts(q: Tensor, parts: list[Part]) -> Tensor:
    """Softmax attention of q [S, heads, d] over keys that lie in several places, without joining them.

    Returns [S, heads * d]; scores and softmax are fp32.
    """
    keys = sum(len(k) for k, _, _ in parts)
    step = max(1, MAX_SCORES // (q.shape[1] * max(1, keys)))
    if len(q) <= step:
        return _attend(q, parts)
    outputs = []
    for start in range(0, len(q), step):
        rows = slice(start, start + step)
        outputs.append(_attend(q[rows], [(k, v, b if b is None else b[rows]) for k, v, b in parts]))
    return torch.cat(outputs)


def _attend(q: Tensor, parts: list[Part]) -> Tensor:
    rows, heads, dim = q.shape
    kv_heads = parts[0][0].shape[1]
    group = heads // kv_heads
    # [kv, group * S, d]: the query heads that share a key/value head are rows of one matmul.
    queries = q.view(rows, kv_heads, group, dim).permute(1, 2, 0, 3).reshape(kv_heads, group * rows, dim)
    scores = []
    for k, _, bias in parts:
        part = torch.matmul(queries, k.permute(1, 2, 0)).float().view(kv_heads, group, rows, -1)
        scores.append(part if bias is None else part + bias)
    weights = torch.softmax(scores[0] if len(scores) == 1 else torch.cat(scores, dim=-1), dim=-1)
    weights = weights.view(kv_heads, group * rows, -1).to(q.dtype)
    mixed: Tensor | None = None
    start = 0
    for _, v, _ in parts:
        part = torch.matmul(weights[..., start : start + len(v)], v.transpose(0, 1))
        mixed = part if mixed is None else mixed + part
        start += len(v)
    assert mixed is not None
    return mixed.view(kv_heads, group, rows, dim).permute(2, 0, 1, 3).reshape(rows, heads * dim)
