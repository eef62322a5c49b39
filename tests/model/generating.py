"""Text from transformers' `generate()`, and the draws that it makes for a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from reference import Reference
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.models.diffusion_gemma.generation_diffusion_gemma import (
    DiffusionGemmaGenerationConfig,
    EntropyBoundSamplerConfig,
)

from jev.model.sampling import Noise
from jev.model.weights.safetensors import SINGLE
from jev.model.writing import Options


def generated(
    reference: Reference, ids: Tensor, options: Options, eos: Sequence[int] = (1, 106, 50), **inputs: Any
) -> tuple[list[list[int]], list[float]]:
    """What `generate()` appends to prompts ids [B, P], and its tokens per forward, by row."""
    config = DiffusionGemmaGenerationConfig(
        max_new_tokens=options.max_tokens,
        max_denoising_steps=options.max_denoising_steps,
        sampler_config=EntropyBoundSamplerConfig(options.entropy_bound),
        t_min=options.t_min,
        t_max=options.t_max,
        stability_threshold=options.stability,
        confidence_threshold=options.confidence,
        eos_token_id=list(eos),
        pad_token_id=0,
    )
    torch.manual_seed(options.seed)
    found = reference.model.generate(ids, generation_config=config, **inputs)
    return found.sequences[:, ids.shape[1] :].tolist(), found.tokens_per_forward.tolist()


class Joint:
    """The draws that the reference makes for all rows of a batch at once."""

    def __init__(self, seed: int, rows: int, vocab: int) -> None:
        self.rows, self.vocab = rows, vocab
        self.generator = torch.Generator().manual_seed(seed)
        self.drawn: list[Tensor] = []

    def at(self, index: int, draw: Callable[[], Tensor]) -> Tensor:
        """The draw of this number, made when the first row gets to it."""
        assert index <= len(self.drawn)
        if index == len(self.drawn):
            self.drawn.append(draw())
        return self.drawn[index]


class Row(Noise):
    """One row's part of them."""

    def __init__(self, joint: Joint, row: int) -> None:
        self.joint, self.row, self.next = joint, row, 0

    def start_block(self) -> None:
        """Go to where the row is that took most steps."""
        self.next = len(self.joint.drawn)

    def ids(self, count: int) -> Tensor:
        size = (self.joint.rows, count)
        return self._mine(lambda: torch.randint(0, self.joint.vocab, size, generator=self.joint.generator))

    def pick(self, probabilities: Tensor, wanted: Tensor) -> Tensor:
        size = (self.joint.rows, *probabilities.shape)
        q = self._mine(lambda: torch.empty(size).exponential_(generator=self.joint.generator))
        return (probabilities / q).argmax(-1)

    def _mine(self, draw: Callable[[], Tensor]) -> Tensor:
        found = self.joint.at(self.next, draw)[self.row]
        self.next += 1
        return found


def settle(folder: Path, *, post: float, final: float, conditioning: float) -> Path:
    """Change a tiny checkpoint's weights so that canvases settle, and rounding does not grow.

    A canvas row keeps more of its own token (`post` scales what layers add), logits are further apart
    (`final`), and the last step counts for less (`conditioning`).
    """
    tensors = load_file(folder / SINGLE)
    for name, tensor in tensors.items():
        if name.endswith(("post_attention_layernorm.weight", "post_feedforward_layernorm.weight")):
            tensor *= post
        elif name == "model.decoder.norm.weight":
            tensor *= final
        elif name == "model.decoder.self_conditioning.down_proj.weight":
            tensor *= conditioning
    save_file(tensors, folder / SINGLE, metadata={"format": "pt"})
    return folder
