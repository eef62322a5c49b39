"""A checkpoint folder as transformers runs it: eager, fp32, one prompt and one canvas at a time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import DiffusionGemmaForBlockDiffusion, DynamicCache
from transformers.utils import logging


class Reference:
    """`DiffusionGemmaForBlockDiffusion` over ids alone; nothing of jev is used."""

    def __init__(self, folder: Path) -> None:
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        loaded: Any = DiffusionGemmaForBlockDiffusion.from_pretrained(
            folder,
            dtype=torch.float32,
            attn_implementation="eager",
            experts_implementation="eager",
        )
        self.model = loaded.eval()

    @torch.no_grad()
    def probabilities(
        self, prompt: Sequence[int], canvas: Sequence[int], slot: int, labels: Sequence[int]
    ) -> list[float]:
        """Softmax (float64, temperature 1) over `labels` at row `slot` of `canvas` after `prompt`."""
        # The cache must know the config: sliding layers keep window - 1 rows of it.
        cache = DynamicCache(config=self.model.config.text_config)
        cache = self.model.model.encoder(input_ids=torch.tensor([list(prompt)]), cache=cache).cache
        logits = self.model(decoder_input_ids=torch.tensor([list(canvas)]), cache=cache).logits
        return logits[0, slot, list(labels)].double().softmax(-1).tolist()
