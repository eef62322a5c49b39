"""The model as one object: prefill a prompt, take a denoising step on a canvas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from jev.model.cache import PrefixKV
from jev.model.config import ModelConfig
from jev.model.masks import ImageRule
from jev.model.packed import Block, ImageSpan, forward, pieces
from jev.model.text import TextModel
from jev.model.vision import VisionTower

if TYPE_CHECKING:
    from jev.model.lora.live import Adapters

PREFILL_ROWS = 512
"""Encoder rows a prefill step: enough to fill a matmul, few enough to stop between steps."""


class DiffusionGemma(nn.Module):
    """A DiffusionGemma checkpoint: the text backbone and, where it is loaded, the vision tower.

    Attributes:
        adapters: what `jev.model.lora` has put on it; None = nothing.
    """

    def __init__(self, config: ModelConfig, *, image_rule: ImageRule = "diffusion_gemma") -> None:
        super().__init__()
        self.config = config
        self.image_rule: ImageRule = image_rule
        self.text = TextModel(config.text)
        self.vision: VisionTower | None = None
        self.adapters: Adapters | None = None

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.text.norm.weight.device

    @property
    def row_invariant(self) -> bool:
        """Whether no bit of what is read depends on what else is in the forward, nor on the threads.

        So it is where every product runs in kernels (`jev.model.quant.block_modules.use_row_kernels`) and no
        adapter is on.
        """
        return self.text.row_invariant and (self.adapters is None or self.adapters.on is None)

    def empty_prefix(self) -> PrefixKV:
        """The cache of no tokens."""
        return PrefixKV.empty(self.config.text, self.text.norm.weight)

    def prefill_steps(
        self,
        ids: Sequence[int],
        kv: PrefixKV | None = None,
        *,
        chunk: int = PREFILL_ROWS,
        images: Sequence[ImageSpan] = (),
    ) -> Iterator[PrefixKV]:
        """Encode `ids` behind `kv`, `chunk` rows at a time, yielding the prefix after each step.

        An image's rows are never split over steps, so a step may be as long as an image.
        """
        kv = kv or self.empty_prefix()
        for tokens, within in pieces(ids, images, chunk):
            with torch.inference_mode():
                block = Block(kv, tokens=tokens, images=within)
                _, (rows,) = forward(self.text, [block], rule=self.image_rule)
                kv = kv.extended(self.config.text, rows)
            yield kv

    def prefill(
        self,
        ids: Sequence[int] | Tensor,
        kv: PrefixKV | None = None,
        *,
        chunk: int | None = None,
        images: Sequence[ImageSpan] = (),
    ) -> PrefixKV:
        """Encode ids [n] causally behind `kv` and return the longer prefix; `kv` stays as it is."""
        ids = ids.tolist() if isinstance(ids, Tensor) else ids
        kv = kv or self.empty_prefix()
        for longer in self.prefill_steps(ids, kv, chunk=chunk or max(1, len(ids)), images=images):
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
        soft = None
        if previous is not None:
            # The reference hands logits on in the weights' type.
            rounded = previous.to(self.text.norm.weight.dtype).float()
            soft = self.text.soften(torch.softmax(rounded, dim=-1))
        block = Block(kv, canvases=[ids], slots=[range(len(ids))], soft=[soft])
        hidden, _ = forward(self.text, [block])
        return self.text.project(hidden)
