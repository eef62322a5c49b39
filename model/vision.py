"""The vision tower: patches of an image -> soft tokens in the text model's embedding space."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from jev.model.attention import attend_parts
from jev.model.layers import GatedMLP, RMSNorm, rms_norm, rotate
from jev.model.pixels import Patches
from jev.model.vision_config import VisionConfig


class PatchEmbedder(nn.Module):
    """Linear projection of pixels in -1..1 plus learned column and row embeddings."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.input_proj = nn.Linear(3 * config.patch_size**2, config.hidden_size, bias=False)
        self.position_embedding_table = nn.Parameter(
            torch.empty(2, config.position_embedding_size, config.hidden_size)
        )

    def forward(self, values: Tensor, positions: Tensor) -> Tensor:
        """Embed patches [n, 3 p^2] at positions [n, 2] (column, row): [n, hidden]."""
        pixels = (2 * (values - 0.5)).to(self.input_proj.weight.dtype)
        columns, rows = self.position_embedding_table
        return self.input_proj(pixels) + columns[positions[:, 0]] + rows[positions[:, 1]]


class VisionAttention(nn.Module):
    """Bidirectional attention over the patches of one image, scale 1, axial rotary embedding."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        hidden, dim = config.hidden_size, config.head_dim
        self.dim, self.eps = dim, config.rms_norm_eps
        self.q_proj = nn.Linear(hidden, config.num_attention_heads * dim, bias=False)
        self.k_proj = nn.Linear(hidden, config.num_key_value_heads * dim, bias=False)
        self.v_proj = nn.Linear(hidden, config.num_key_value_heads * dim, bias=False)
        self.o_proj = nn.Linear(config.num_attention_heads * dim, hidden, bias=False)
        self.q_norm = RMSNorm(dim, self.eps)
        self.k_norm = RMSNorm(dim, self.eps)

    def forward(self, h: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
        """Attend among rows h [n, hidden]."""
        q = self.q_norm(self.q_proj(h).view(len(h), -1, self.dim))
        k = self.k_norm(self.k_proj(h).view(len(h), -1, self.dim))
        v = rms_norm(self.v_proj(h).view(len(h), -1, self.dim), None, self.eps)
        return self.o_proj(attend_parts(_rotate_axes(q, rope), [(_rotate_axes(k, rope), v, None)]))


def axial_tables(positions: Tensor, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines fp32 [n, 1, head_dim] for positions [n, 2]: half the head turns by the
    column, half by the row, each half with its own NeoX pairs.
    """
    half = head_dim // 2
    exponent = torch.arange(0, half, 2, dtype=torch.float32, device=positions.device) / half
    angle = positions.float()[:, :, None] / theta**exponent
    angle = torch.cat((angle, angle), dim=-1).flatten(1)[:, None]
    return angle.cos(), angle.sin()


def _rotate_axes(x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    cos, sin = (table.chunk(2, dim=-1) for table in rope)
    halves = x.chunk(2, dim=-1)
    return torch.cat([rotate(part, c, s) for part, c, s in zip(halves, cos, sin, strict=True)], dim=-1)


class VisionLayer(nn.Module):
    """Attention and MLP, each between two norms."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = RMSNorm(hidden, eps)
        self.self_attn = VisionAttention(config)
        self.post_attention_layernorm = RMSNorm(hidden, eps)
        self.pre_feedforward_layernorm = RMSNorm(hidden, eps)
        self.mlp = GatedMLP(hidden, config.intermediate_size)
        self.post_feedforward_layernorm = RMSNorm(hidden, eps)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
        """One layer over rows x [n, hidden]."""
        x = x + self.post_attention_layernorm(self.self_attn(self.input_layernorm(x), rope))
        return x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))


class VisionTower(nn.Module):
    """Patch embedding, layers, pooling, standardisation and the projector."""

    def __init__(self, config: VisionConfig, text_hidden: int) -> None:
        super().__init__()
        self.config = config
        self.patch_embedder = PatchEmbedder(config)
        self.layers = nn.ModuleList(VisionLayer(config) for _ in range(config.num_hidden_layers))
        if config.standardize:
            self.std_bias = nn.Parameter(torch.empty(config.hidden_size))
            self.std_scale = nn.Parameter(torch.empty(config.hidden_size))
        self.embedding_projection = nn.Linear(config.hidden_size, text_hidden, bias=False)

    def pooled(self, patches: Patches) -> Tensor:
        """Standardised soft tokens before the projector: [tokens, vision hidden]."""
        weight = self.patch_embedder.input_proj.weight
        positions = patches.positions.to(weight.device)
        x = self.patch_embedder(patches.values.to(weight.device), positions)
        rope = axial_tables(positions, self.config.head_dim, self.config.rope_theta)
        for layer in self.layers:
            x = layer(x, rope)
        # A soft token is the mean of its pooling x pooling patches, scaled up; all in fp32.
        k = self.config.pooling_kernel_size
        columns = int(patches.positions[:, 0].max()) + 1
        cell = positions[:, 0] // k + columns // k * (positions[:, 1] // k)
        share = F.one_hot(cell, patches.tokens).float() / k**2
        soft = (share.T @ x.float()).to(x.dtype).float() * math.sqrt(self.config.hidden_size)
        if self.config.standardize:
            soft = (soft - self.std_bias.float()) * self.std_scale.float()
        return soft.to(x.dtype)

    @torch.inference_mode()
    def forward(self, patches: Patches) -> Tensor:
        """Soft tokens of one image: [tokens, text hidden]."""
        return self.embedding_projection(rms_norm(self.pooled(patches), None, self.config.rms_norm_eps))
