"""DiffusionGemma as transformers runs it: eager, fp32, one sequence; what parity is measured against."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import DiffusionGemmaConfig, DiffusionGemmaForBlockDiffusion, DynamicCache
from transformers.utils import logging

# A folder without a vision tower gets this one, so that the default of 16 layers is not built.
_SMALL_VISION = {
    "model_type": "gemma4_vision",
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "position_embedding_size": 8,
    "standardize": True,
}
_VISION = ("model.encoder.vision_tower.", "model.encoder.embed_vision.")


class Reference:
    """A checkpoint folder in transformers, with the calls of `jev.model`: prefill, then decode."""

    def __init__(self, folder: Path) -> None:
        raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        has_vision = raw.get("vision_config") is not None
        raw.setdefault("vision_config", _SMALL_VISION)
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        loaded: Any = DiffusionGemmaForBlockDiffusion.from_pretrained(
            folder,
            config=DiffusionGemmaConfig.from_dict(raw),
            dtype=torch.float32,
            attn_implementation="eager",
            experts_implementation="eager",
            output_loading_info=True,
        )
        self.model, loading = loaded[0].eval(), loaded[1]
        unknown = {name for key in ("unexpected_keys", "mismatched_keys") for name in loading[key]}
        missing = set(loading["missing_keys"])
        if not has_vision:
            missing = {name for name in missing if not name.startswith(_VISION)}
        if unknown or missing:
            raise AssertionError(f"transformers: unexpected {unknown}, missing {missing} in {folder}")

    @torch.no_grad()
    def prefill(self, ids: Tensor, cache: DynamicCache | None = None) -> DynamicCache:
        """Encode ids [n] behind `cache`, which stays as it is, and return the longer cache."""
        # Only a cache that knows the config crops its sliding layers to window - 1 rows; a static
        # cache cannot be used at all (its decoder masks are wrong once the window is full).
        new = DynamicCache(config=self.model.config.text_config) if cache is None else copy.deepcopy(cache)
        return self.model.model.encoder(input_ids=ids[None], cache=new).cache

    @torch.no_grad()
    def decode(self, canvas: Tensor, cache: DynamicCache, *, previous: Tensor | None = None) -> Tensor:
        """Logits [C, V] of one step; `previous` is the last step's logits over its temperature."""
        logits = self.model(
            decoder_input_ids=canvas[None],
            cache=cache,
            self_conditioning_logits=None if previous is None else previous[None],
        ).logits
        return logits[0]

    def swap_layer_scalars(self) -> None:
        """Exchange the encoder's scalars with the decoder's."""
        encoder = self.model.model.encoder.language_model.layers
        decoder = self.model.model.decoder.layers
        with torch.no_grad():
            for one, other in zip(encoder, decoder, strict=True):
                kept = one.layer_scalar.clone()
                one.layer_scalar.copy_(other.layer_scalar)
                other.layer_scalar.copy_(kept)
