"""The vision tower's part of `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jev.model.errors import CheckpointError

SOFT_TOKENS = (70, 140, 280, 560, 1120)
"""Budgets of soft tokens an image that the model family knows."""


@dataclass(frozen=True)
class VisionConfig:
    """The Gemma-4 vision tower (names of `vision_config`)."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    patch_size: int
    pooling_kernel_size: int
    position_embedding_size: int
    rms_norm_eps: float
    rope_theta: float
    standardize: bool
    soft_tokens: int

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> VisionConfig:
        """Read the tower from the whole decoded `config.json`.

        Raises:
            CheckpointError: when there is none, or one that this model cannot run.
        """
        vision = raw.get("vision_config")
        if not isinstance(vision, Mapping):
            raise CheckpointError("config.json: vision_config is missing")
        if vision.get("use_clipped_linears"):
            raise CheckpointError("config.json: vision_config.use_clipped_linears is not supported")
        if vision.get("hidden_activation", "gelu_pytorch_tanh") != "gelu_pytorch_tanh":
            raise CheckpointError("config.json: vision_config.hidden_activation is not gelu_pytorch_tanh")
        try:
            heads = int(vision["num_attention_heads"])
            return cls(
                hidden_size=int(vision["hidden_size"]),
                intermediate_size=int(vision["intermediate_size"]),
                num_hidden_layers=int(vision["num_hidden_layers"]),
                num_attention_heads=heads,
                num_key_value_heads=int(vision.get("num_key_value_heads", heads)),
                head_dim=int(vision.get("head_dim") or int(vision["hidden_size"]) // heads),
                patch_size=int(vision.get("patch_size", 16)),
                pooling_kernel_size=int(vision.get("pooling_kernel_size", 3)),
                position_embedding_size=int(vision.get("position_embedding_size", 10240)),
                rms_norm_eps=float(vision.get("rms_norm_eps", 1e-6)),
                rope_theta=float((vision.get("rope_parameters") or {}).get("rope_theta", 100.0)),
                standardize=bool(vision.get("standardize", False)),
                soft_tokens=int(raw.get("vision_soft_tokens_per_image") or 280),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"config.json: vision_config cannot be used: {error!r}") from None
