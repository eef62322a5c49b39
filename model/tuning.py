"""The structured read with gradients: what `jev.model.read` serves, as a differentiable forward."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from jev.model.cache import PrefixKV
from jev.model.diffusion_gemma import DiffusionGemma
from jev.model.packed import Block, ImageSpan, forward
from jev.model.read import Canvas


@dataclass(frozen=True)
class Prompt:
    """A prefix and everything that is read behind it.

    Attributes:
        prefix: ids that all branches see.
        branches: ids of each branch, with the canvases that are laid behind it.
        images: images among the prefix's ids.
        branch_images: images among each branch's ids; empty = none anywhere.
    """

    prefix: Sequence[int]
    branches: Sequence[tuple[Sequence[int], Sequence[Canvas]]]
    images: Sequence[ImageSpan] = ()
    branch_images: Sequence[Sequence[ImageSpan]] = ()

    @property
    def rows(self) -> int:
        """Rows that it runs."""
        behind = sum(
            len(branch) + sum(len(canvas.ids) for canvas in canvases) for branch, canvases in self.branches
        )
        return len(self.prefix) + behind


def label_logits(model: DiffusionGemma, prompts: Sequence[Prompt], *, share: bool = True) -> list[Tensor]:
    """Soft-capped label logits of every slot, fp32 [labels], with gradients to whatever requires them.

    What all prefixes begin with is encoded once, the rest of them in one forward behind it, and all
    branches and canvases in another one that sees their keys and values, so gradients reach a state
    through each of its questions. Nothing is cut or masked that a served read would see; the numbers
    are those of `jev.model.read.step`.

    Args:
        model: the model.
        prompts: what is read.
        share: False = encode what prefixes have in common with each of them, so that any prompts take
            two forwards: processes that share weights must run equally many.

    Returns:
        One tensor a slot: prompts, branches, canvases and slots in the order given.
    """
    blocks: list[Block] = []
    canvases: list[Canvas] = []
    for one, prefix in zip(prompts, _prefixes(model, prompts, share), strict=True):
        for index, (branch, laid) in enumerate(one.branches):
            blocks.append(
                Block(
                    prefix,
                    tokens=branch,
                    canvases=[canvas.ids for canvas in laid],
                    slots=[canvas.slots for canvas in laid],
                    images=one.branch_images[index] if one.branch_images else (),
                )
            )
            canvases += laid
    hidden, _ = forward(model.text, blocks, rule=model.image_rule)
    labels = [ids for canvas in canvases for ids in canvas.labels]
    union = sorted({label for ids in labels for label in ids})
    column = {label: index for index, label in enumerate(union)}
    with torch.autocast(hidden.device.type, enabled=False):  # a bf16 logit of 20 is a sixteenth off
        logits = model.text.project(hidden, torch.tensor(union, device=model.device))
    return [logits[row, [column[label] for label in ids]] for row, ids in enumerate(labels)]


def _prefixes(model: DiffusionGemma, prompts: Sequence[Prompt], share: bool) -> list[PrefixKV]:
    """Keys and values of every prefix."""
    config = model.config.text
    pictures = [image.start for one in prompts for image in one.images]
    shared = len(os.path.commonprefix([list(one.prefix) for one in prompts]))  # noqa: RUF071 - ids, no paths
    shortest = min(len(one.prefix) for one in prompts)
    if any(len(one.prefix) > shortest for one in prompts):
        shared = min(shared, max(shortest - 1, 0))  # so that every block has rows
    shared = min([shared, *pictures])
    common = model.empty_prefix()
    if share and len(prompts) > 1 and shared:
        _, (rows,) = forward(model.text, [Block(common, tokens=prompts[0].prefix[:shared])])
        common = common.extended(config, rows)
    else:
        shared = 0
    blocks = [
        Block(
            common,
            tokens=one.prefix[shared:],
            images=[ImageSpan(image.start - shared, image.embeddings) for image in one.images],
        )
        for one in prompts
    ]
    if not any(block.rows for block in blocks):
        return [common] * len(prompts)
    _, encoded = forward(model.text, blocks, rule=model.image_rule)
    return [common.extended(config, rows) for rows in encoded]
