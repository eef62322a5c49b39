"""The model as one object: prefill a prompt, take a denoising step on a canvas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from jev.model.cache import PrefixKV
from jev.model.config import ModelConfig
from jev.model.packed import Block, forward
from jev.model.text import TextModel

PREFILL_ROWS = 512
"""Encoder rows a prefill step: enough to fill a matmul, few enough to stop between steps."""


class DiffusionGemma(nn.Module):
    """The text part of a DiffusionGemma checkpoint."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.text = TextModel(config.text)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.text.embed_tokens.weight.device

    def empty_prefix(self) -> PrefixKV:
        """The cache of no tokens."""
        return PrefixKV.empty(self.config.text, self.text.embed_tokens.weight)

    def prefill_steps(
        self, ids: Sequence[int], kv: PrefixKV | None = None, *, chunk: int = PREFILL_ROWS
    ) -> Iterator[PrefixKV]:
        """Encode `ids` behind `kv`, `chunk` rows at a time, yielding the prefix after each step."""
        kv = kv or self.empty_prefix()
        for start in range(0, len(ids), chunk):
            with torch.inference_mode():
                _, (rows,) = forward(self.text, [Block(kv, tokens=ids[start : start + chunk])])
                kv = kv.extended(self.config.text, rows)
            yield kv

    def prefill(
        self, ids: Sequence[int] | Tensor, kv: PrefixKV | None = None, *, chunk: int | None = None
    ) -> PrefixKV:
        """Encode ids [n] causally behind `kv` and return the longer prefix; `kv` stays as it is."""
        ids = ids.tolist() if isinstance(ids, Tensor) else ids
        kv = kv or self.empty_prefix()
        for longer in self.prefill_steps(ids, kv, chunk=chunk or max(1, len(ids))):
            kv = longer
        return kv

    @torch.inference_mode()
    def decode(
        self, canvas: Sequence[int] | Tensor, kv: PrefixKV, *, previous: Tensor | None = None
    ) -> Tensor:
        """One denoising step on canvas ids [C] behind `kv`: logits [C, vocab] fp32, soft-capped.

        `previous` [C, vocab] is the last step's logits divided by its temperature; None on the
        first step of a canvas.
        """
        ids = canvas.tolist() if isinstance(canvas, Tensor) else list(canvas)
        block = Block(kv, canvases=[ids], slots=[range(len(ids))])
        hidden, _ = forward(self.text, [block], previous)
        return self.text.project(hidden)
