"""A checkpoint as transformers runs it: eager, fp32, one sequence; what agreement is measured against."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jev._before_torch  # noqa: F401 - before torch

import torch  # isort: skip
from torch import Tensor
from transformers import DiffusionGemmaConfig, DiffusionGemmaForBlockDiffusion, DynamicCache
from transformers.utils import logging

from jev.model.errors import CheckpointError
from jev.model.weights.int8 import SCALE_SUFFIX
from jev.model.weights.safetensors import VISION, TensorFiles

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
"""The tower of a folder whose config has none: without it transformers builds one of 16 layers."""


class Reference:
    """`DiffusionGemmaForBlockDiffusion` over ids alone; of this package only the int8 decoder is used.

    Args:
        folder: the checkpoint. Weights that are stored as int8 groups, which transformers cannot
            read, are handed to it decoded; all others it reads itself.

    Raises:
        CheckpointError: transformers misses a tensor of the text model, or finds one that it has no
            place for.
    """

    def __init__(self, folder: Path) -> None:
        raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        raw.setdefault("vision_config", _SMALL_VISION)
        files = TensorFiles(folder)
        decoded = None
        if any(name.endswith(SCALE_SUFFIX) for name in files):
            names = [name for name in files if not name.endswith(SCALE_SUFFIX)]
            decoded = {name: files.tensor(name, torch.float32, "cpu") for name in names}
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        loaded: Any = DiffusionGemmaForBlockDiffusion.from_pretrained(
            folder if decoded is None else None,
            config=DiffusionGemmaConfig.from_dict(raw),
            state_dict=decoded,
            dtype=torch.float32,
            attn_implementation="eager",
            experts_implementation="eager",
            output_loading_info=True,
        )
        self.model, loading = loaded[0].eval(), loaded[1]
        unknown = {str(name) for key in ("unexpected_keys", "mismatched_keys") for name in loading[key]}
        missing = set(loading["missing_keys"])
        if not files.has_vision:
            missing = {name for name in missing if not name.startswith(VISION)}
        if unknown or missing:
            raise CheckpointError(
                f"transformers cannot load {folder}: tensors without a place {sorted(unknown)[:3]}, "
                f"missing {sorted(missing)[:3]}"
            )

    @torch.no_grad()
    def prefill(self, ids: Sequence[int] | Tensor, cache: DynamicCache | None = None) -> DynamicCache:
        """Encode ids [n] behind `cache`, which stays as it is, and return the longer cache."""
        # Only a cache that knows the config crops its sliding layers to window - 1 rows; a static
        # cache cannot be used at all (its decoder masks are wrong once the window is full).
        new = DynamicCache(config=self.model.config.text_config) if cache is None else copy.deepcopy(cache)
        return self.model.model.encoder(input_ids=torch.as_tensor(ids)[None], cache=new).cache

    @torch.no_grad()
    def decode(
        self, canvas: Sequence[int] | Tensor, cache: DynamicCache, *, previous: Tensor | None = None
    ) -> Tensor:
        """Logits [C, V] of one step; `previous` is the last step's logits over its temperature."""
        logits = self.model(
            decoder_input_ids=torch.as_tensor(canvas)[None],
            cache=cache,
            self_conditioning_logits=None if previous is None else previous[None],
        ).logits
        return logits[0]

    def probabilities(
        self, prompt: Sequence[int], canvas: Sequence[int], slot: int, labels: Sequence[int]
    ) -> list[float]:
        """Softmax (float64, temperature 1) over `labels` at row `slot` of `canvas` after `prompt`."""
        logits = self.decode(canvas, self.prefill(prompt))
        return logits[slot, list(labels)].double().softmax(-1).tolist()
