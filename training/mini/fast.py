"""The read's forward over a whole pack, in bfloat16 with fp32 residuals, norms and softmax.

The numbers are those of `jev.model.tuning.label_logits` up to rounding. Matmuls run on bf16 copies of fp32
weights; everything between two matmuls is one compiled kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from packs import Pack
from torch import Tensor

from jev.model.diffusion_gemma import DiffusionGemma
from jev.model.layers import rms_norm, rope_tables, rotate
from jev.model.text import Layer


def _norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    y = x.float()
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps)
    return y if weight is None else y * weight


def enter(x: Tensor, weight: Tensor, eps: float, like: Tensor) -> Tensor:
    """Norm before attention."""
    return _norm(x, weight, eps).to(like.dtype)


def turn(x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, eps: float) -> Tensor:
    """Norm and rotary embedding of queries or keys [N, heads, d]."""
    return rotate(_norm(x, weight, eps), cos, sin).to(x.dtype)


def level(x: Tensor, eps: float) -> Tensor:
    """Norm of values."""
    return _norm(x, None, eps).to(x.dtype)


def between(x: Tensor, attended: Tensor, after: Tensor, before: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The residual after attention, and what the MLP sees."""
    x = x + _norm(attended, after, eps)
    return x, _norm(x, before, eps).to(attended.dtype)


def gate(left: Tensor, right: Tensor) -> Tensor:
    """The gate of the MLP."""
    return (F.gelu(left.float(), approximate="tanh") * right.float()).to(left.dtype)


def leave(x: Tensor, mixed: Tensor, first: Tensor, after: Tensor, scalar: Tensor, eps: float) -> Tensor:
    """The residual after the MLP of a layer whose experts are silent."""
    return (x + _norm(_norm(mixed, first, eps), after, eps)) * scalar


def spread(scores: Tensor, bias: Tensor) -> Tensor:
    """Attention weights of scores [B, Q, heads, K] with bias [B, Q, K]."""
    return torch.softmax(scores.float() + bias[:, :, None], dim=-1).to(scores.dtype)


@dataclass(frozen=True)
class Result:
    """What a forward gives.

    Attributes:
        logits: soft-capped fp32 [S, most labels], -inf where there is no label.
        hidden: the rows [N, hidden] after the layers that were asked for.
        queries: of the last layer, at the slots [S, heads, d].
        keys: of the last layer [N, kv, d].
    """

    logits: Tensor
    hidden: dict[int, Tensor]
    queries: Tensor
    keys: Tensor


class Fast:
    """Runs packs through a model.

    Args:
        model: its text part is fp32.
        dtype: of matmuls.
        compiled: compile what is between matmuls (needs a C++ compiler, takes a minute).
        frozen: layers that get no gradient.
    """

    def __init__(
        self,
        model: DiffusionGemma,
        dtype: torch.dtype = torch.bfloat16,
        *,
        compiled: bool = False,
        frozen: int = 0,
    ) -> None:
        self.model, self.text, self.dtype, self.frozen = model, model.text, dtype, frozen
        self.config = model.config.text
        self.eps = self.config.rms_norm_eps
        self.like = torch.empty(0, dtype=dtype)

        def made(function: Callable[..., Any]) -> Callable[..., Any]:
            return torch.compile(function, dynamic=True) if compiled else function

        self.enter, self.turn, self.level = made(enter), made(turn), made(level)
        self.between, self.gate, self.leave, self.spread = (
            made(between),
            made(gate),
            made(leave),
            made(spread),
        )

    def __call__(self, pack: Pack, keep: Sequence[int] = ()) -> Result:
        """Logits of every slot; `keep` names layers whose output is wanted too."""
        x = self.text.embed(pack.ids)
        if pack.canvas.any():
            x = torch.where(pack.canvas[:, None], rms_norm(x, None, self.eps), x)
        tables = {
            (layer.kind, layer.head_dim): rope_tables(
                pack.positions, layer.head_dim, self.config.rope[layer.kind]
            )
            for layer in self.config.layers
        }
        hidden: dict[int, Tensor] = {}
        for index, config in enumerate(self.config.layers[:-1]):
            with torch.set_grad_enabled(torch.is_grad_enabled() and index >= self.frozen):
                layer = cast(Layer, self.text.layers[index])
                x = self._layer(layer, x, tables[config.kind, config.head_dim], pack)
            if index in keep:
                hidden[index] = x
        config = self.config.layers[-1]
        x, q, k = self._last(x, tables[config.kind, config.head_dim], pack)
        x = rms_norm(x, self.text.norm.weight, self.eps)
        rows = self.text.embed_tokens(pack.labels)
        cap = self.config.final_logit_softcapping
        logits = cap * torch.tanh(torch.einsum("sh,slh->sl", x, rows) / cap)
        return Result(logits.masked_fill(~pack.known, -torch.inf), hidden, q, k)

    def _linear(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.linear(x, weight.to(self.dtype))

    def _keys_values(self, layer: Layer, h: Tensor, rope: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        a = layer.self_attn
        raw = self._linear(h, a.k_proj.weight).view(-1, a.kv_heads, a.dim)
        values = raw if a.v_proj is None else self._linear(h, a.v_proj.weight).view(-1, a.kv_heads, a.dim)
        return self.turn(raw, a.k_norm.weight, *rope, self.eps), self.level(values, self.eps)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, queries: Tensor, pack: Pack, bias: Tensor) -> Tensor:
        """Q [rows, heads, d], of which `queries` [B, Q] are asked for -> [B * Q, heads * d]."""
        (examples, asked), kv = queries.shape, k.shape[1]
        group = q.shape[1] // kv
        parts = []
        for head in range(kv):
            ask = q[:, head * group : (head + 1) * group].flatten(1)
            ask = ask.index_select(0, queries.flatten()).view(examples, asked * group, -1)
            key = k[:, head].index_select(0, pack.keys.flatten()).view(examples, pack.keys.shape[1], -1)
            value = v[:, head].index_select(0, pack.keys.flatten()).view(examples, pack.keys.shape[1], -1)
            scores = torch.bmm(ask, key.transpose(1, 2)).view(examples, asked, group, -1)
            weights = self.spread(scores, bias).view(examples, asked * group, -1)
            parts.append(torch.bmm(weights, value).view(examples * asked, -1))
        return parts[0] if kv == 1 else torch.cat(parts, -1)

    def _layer(self, layer: Layer, x: Tensor, rope: tuple[Tensor, Tensor], pack: Pack) -> Tensor:
        a = layer.self_attn
        h = self.enter(x, layer.input_layernorm.weight, self.eps, self.like)
        k, v = self._keys_values(layer, h, rope)
        q = self._linear(h, a.q_proj.weight).view(-1, a.heads, a.dim)
        q = self.turn(q, a.q_norm.weight, *rope, self.eps)
        mixed = self._attend(q, k, v, pack.queries, pack, pack.bias).index_select(0, pack.place)
        attended = self._linear(mixed, a.o_proj.weight)
        x, h = self.between(
            x,
            attended,
            layer.post_attention_layernorm.weight,
            layer.pre_feedforward_layernorm.weight,
            self.eps,
        )
        inner = self.gate(
            self._linear(h, layer.mlp.gate_proj.weight), self._linear(h, layer.mlp.up_proj.weight)
        )
        mixed = self._linear(inner, layer.mlp.down_proj.weight)
        scalar = torch.where(pack.canvas[:, None], layer.layer_scalar, layer.encoder_layer_scalar)
        if layer.silent_experts:
            first, after = layer.post_feedforward_layernorm_1.weight, layer.post_feedforward_layernorm.weight
            return self.leave(x, mixed, first, after, scalar, self.eps)
        both = _norm(mixed, layer.post_feedforward_layernorm_1.weight, self.eps) + self._experts(layer, x)
        return (x + layer.post_feedforward_layernorm(both)) * scalar

    def _experts(self, layer: Layer, x: Tensor) -> Tensor:
        experts = layer.experts(layer.pre_feedforward_layernorm_2(x), *layer.router(x))
        return layer.post_feedforward_layernorm_2(experts)

    def _last(self, x: Tensor, rope: tuple[Tensor, Tensor], pack: Pack) -> tuple[Tensor, Tensor, Tensor]:
        """The last layer at the slots [S, hidden] in fp32, its queries there, and its keys."""
        layer = cast(Layer, self.text.layers[-1])
        a = layer.self_attn
        h = self.enter(x, layer.input_layernorm.weight, self.eps, self.like)
        k, v = self._keys_values(layer, h, rope)
        asking = pack.slots
        q = self._linear(h[asking], a.q_proj.weight).view(-1, a.heads, a.dim)
        q = self.turn(q, a.q_norm.weight, rope[0][asking], rope[1][asking], self.eps)
        index = torch.zeros(pack.slot_queries.numel(), dtype=torch.int64)
        index[pack.slot_place] = torch.arange(len(asking))
        mixed = self._attend(q, k, v, index.view(pack.slot_queries.shape), pack, pack.slot_bias)
        attended = self._linear(mixed.index_select(0, pack.slot_place), a.o_proj.weight)
        x = x[asking] + layer.post_attention_layernorm(attended.float())
        mixed = layer.post_feedforward_layernorm_1(layer.mlp(layer.pre_feedforward_layernorm(x)))
        if not layer.silent_experts:
            mixed = mixed + self._experts(layer, x)
        y = x + layer.post_feedforward_layernorm(mixed)
        return y * layer.layer_scalar, q, k
