"""The DiffusionGemma text backbone: one stack of layers, run causally over a prompt (encoder) and
bidirectionally over a canvas (decoder). Both share every weight but one scalar per layer.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from jev.model.attention import Attend, Attention
from jev.model.config import LayerConfig, TextConfig
from jev.model.layers import GatedMLP, RMSNorm, rms_norm
from jev.model.moe import Experts, Router


class Layer(nn.Module):
    """Attention, then a dense MLP beside a mixture of experts, each between two norms."""

    def __init__(self, config: TextConfig, layer: LayerConfig) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = RMSNorm(hidden, eps)
        self.self_attn = Attention(config, layer)
        self.post_attention_layernorm = RMSNorm(hidden, eps)
        self.pre_feedforward_layernorm = RMSNorm(hidden, eps)
        self.mlp = GatedMLP(hidden, config.intermediate_size)
        self.post_feedforward_layernorm_1 = RMSNorm(hidden, eps)
        self.router = Router(config)
        self.pre_feedforward_layernorm_2 = RMSNorm(hidden, eps)
        self.experts = Experts(config)
        self.post_feedforward_layernorm_2 = RMSNorm(hidden, eps)
        self.post_feedforward_layernorm = RMSNorm(hidden, eps)
        self.silent_experts = False
        self.layer_scalar = nn.Parameter(torch.empty(1))
        self.encoder_layer_scalar = nn.Parameter(torch.empty(1))

    def forward(
        self,
        x: Tensor,
        canvas: Tensor,
        rope: tuple[Tensor, Tensor],
        attend: Attend,
        rows: Tensor | None = None,
    ) -> Tensor:
        """One layer over packed rows x [N, hidden]; `canvas` [N] bool marks decoder rows.

        With `rows` (int64 [S]) only those rows are computed past the keys and values, and the
        result is [S, hidden].
        """
        h = self.input_layernorm(x)
        attended = self.self_attn(h, rope, attend, rows)
        if rows is not None:
            x, canvas = x[rows], canvas[rows]
        x1 = x + self.post_attention_layernorm(attended)
        mixed = self.post_feedforward_layernorm_1(self.mlp(self.pre_feedforward_layernorm(x1)))
        if not self.silent_experts:
            experts = self.experts(self.pre_feedforward_layernorm_2(x1), *self.router(x1))
            mixed = mixed + self.post_feedforward_layernorm_2(experts)
        y = x1 + self.post_feedforward_layernorm(mixed)
        return y * torch.where(canvas[:, None], self.layer_scalar, self.encoder_layer_scalar)


class SelfConditioning(GatedMLP):
    """Turns the previous step's soft embedding [C, hidden] into a signal added to the canvas."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__(config.hidden_size, config.intermediate_size)
        self.pre_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        """Map soft embeddings [C, hidden] to the signal [C, hidden]."""
        return super().forward(self.pre_norm(x))


class TextModel(nn.Module):
    """Embedding, layers, final norm and the tied, soft-capped output projection.

    Attributes:
        row_invariant: whether no bit of a row's result depends on the rows that it is computed with, nor on
            the number of threads; whoever loads the weights knows.
    """

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.config = config
        # Empty: on the meta device the usual random start would import torch._dynamo, for a second and more.
        table = torch.empty(config.vocab_size, config.hidden_size)
        self.embed_tokens = nn.Embedding.from_pretrained(table, freeze=False)
        self.self_conditioning = SelfConditioning(config)
        self.layers = nn.ModuleList(Layer(config, layer) for layer in config.layers)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.row_invariant = False

    def skip_silent_experts(self, skip: bool = True) -> None:
        """Leave out router and experts where their output norm is all zeros: the same result, sooner.

        Take it back with `skip` False before weights are changed.
        """
        for layer in self.layers:
            assert isinstance(layer, Layer)
            layer.silent_experts = skip and not layer.post_feedforward_layernorm_2.weight.any()

    @property
    def embedding_scale(self) -> Tensor:
        """sqrt(hidden), rounded to the weights' dtype (53.0 in bf16 for hidden 2816)."""
        return torch.tensor(math.sqrt(self.config.hidden_size)).to(self.norm.weight)

    def embed(self, ids: Tensor) -> Tensor:
        """Prompt embeddings [N, hidden] of int64 ids [N]."""
        return self.embed_tokens(ids) * self.embedding_scale

    def soften(self, probabilities: Tensor) -> Tensor:
        """Soft embeddings [C, hidden]: all embeddings, mixed by probabilities fp32 [C, vocab]."""
        weights = probabilities.to(self.norm.weight.dtype)
        if isinstance(self.embed_tokens, nn.Embedding):
            mixed = weights @ self.embed_tokens.weight
        else:
            mixed = self.embed_tokens.mix(weights)  # packed: decoded a block at a time
        return mixed * self.embedding_scale

    def embed_canvas(self, ids: Tensor, soft: Tensor | None = None) -> Tensor:
        """Canvas embeddings [C, hidden] of int64 ids [C].

        `soft` [C, hidden] is what the last step predicted (see `soften`). Rows of zeros, and None
        (the first step), mean no signal at all, which is not the same as the soft embedding of
        all-zero logits. The scaleless norm applies either way.
        """
        x = self.embed(ids)
        if soft is not None:
            x = x + self.self_conditioning(soft)
        return rms_norm(x, None, self.config.rms_norm_eps)

    def project(self, hidden: Tensor, ids: Tensor | None = None) -> Tensor:
        """Logits fp32 of last-layer rows [S, hidden] over the rows `ids` [U] of the tied embedding.

        Returns [S, U], or [S, vocab] for ids None: cap * tanh(x / cap).
        """
        x, cap = self.norm(hidden), self.config.final_logit_softcapping
        if not isinstance(self.embed_tokens, nn.Embedding):
            logits = self.embed_tokens.unembed(x, ids)  # packed: decoded a block at a time
        else:
            table = self.embed_tokens.weight
            logits = F.linear(x, table if ids is None else self.embed_tokens(ids))
        return cap * torch.tanh(logits.float() / cap)
