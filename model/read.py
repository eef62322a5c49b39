"""The structured read: one denoising step on seeded canvases, looked at through label rows only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from jev.model.cache import LayerKV, PrefixKV
from jev.model.diffusion_gemma import DiffusionGemma
from jev.model.packed import Block, ImageSpan, forward


@dataclass(frozen=True)
class Canvas:
    """A seeded canvas.

    Attributes:
        ids: token ids of all rows, noise in place.
        slots: rows that are read.
        labels: for each slot the token ids it is read over.
    """

    ids: tuple[int, ...]
    slots: tuple[int, ...]
    labels: tuple[tuple[int, ...], ...]


@dataclass
class Branch:
    """Encoder rows behind a cached prefix; after a read that keeps them, their keys and values."""

    prefix: PrefixKV
    tokens: tuple[int, ...] = ()
    images: tuple[ImageSpan, ...] = ()
    kv: list[LayerKV] | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Reading:
    """What one canvas said: for each slot the soft-capped logits of its labels, fp32 in value.

    `log_mass` holds, where asked for, each slot's log of the probability that all labels together
    have under the softmax over the whole vocabulary.
    """

    logits: tuple[tuple[float, ...], ...]
    log_mass: tuple[float, ...] | None = None


@torch.inference_mode()
def read(
    model: DiffusionGemma,
    work: Sequence[tuple[Branch, Sequence[Canvas]]],
    *,
    keep: bool = False,
    mass: bool = False,
) -> list[list[Reading]]:
    """Read the canvases of all branches in one forward.

    A branch that was kept by an earlier read runs its canvas rows only. Results depend on the
    other branches by no more than the rounding of differently shaped matmuls.

    Args:
        model: the model.
        work: branches, each with the canvases to lay behind it.
        keep: store each branch's keys and values in it, for later reads.
        mass: also project on the whole vocabulary, for `Reading.log_mass`.
    """
    blocks = [
        Block(
            branch.prefix,
            tokens=() if branch.kv is not None else branch.tokens,
            branch=branch.kv,
            canvases=[canvas.ids for canvas in canvases],
            slots=[canvas.slots for canvas in canvases],
            images=() if branch.kv is not None else branch.images,
        )
        for branch, canvases in work
    ]
    hidden, encoded = forward(model.text, blocks, rule=model.image_rule)
    if keep:
        for (branch, _), kv in zip(work, encoded, strict=True):
            if branch.kv is None:
                branch.kv = kv
    flat = [canvas for _, canvases in work for canvas in canvases]
    readings = iter(_project(model, hidden, flat, mass))
    return [[next(readings) for _ in canvases] for _, canvases in work]


def _project(
    model: DiffusionGemma, hidden: torch.Tensor, canvases: list[Canvas], mass: bool
) -> list[Reading]:
    """Project slot rows [S, hidden] on the union of their labels and hand each slot its own."""
    union = sorted({label for canvas in canvases for labels in canvas.labels for label in labels})
    column = {label: index for index, label in enumerate(union)}
    logits = model.text.project(hidden, torch.tensor(union, device=model.device))
    total = model.text.project(hidden).logsumexp(-1).tolist() if mass else []
    readings = []
    row = 0
    for canvas in canvases:
        slots, masses = [], []
        for labels in canvas.labels:
            chosen = logits[row, [column[label] for label in labels]]
            slots.append(tuple(chosen.tolist()))
            if mass:
                masses.append(chosen.logsumexp(-1).item() - total[row])
            row += 1
        readings.append(Reading(tuple(slots), tuple(masses) if mass else None))
    return readings
