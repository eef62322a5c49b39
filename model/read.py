"""The structured read: one denoising step on seeded canvases, looked at through label rows only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

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
        mass: whether the whole vocabulary is projected too, for `Reading.log_mass`.
    """

    ids: tuple[int, ...]
    slots: tuple[int, ...]
    labels: tuple[tuple[int, ...], ...]
    mass: bool = False


@dataclass(frozen=True)
class Prefill:
    """Encoder rows to append to a cached prefix."""

    prefix: PrefixKV
    tokens: Sequence[int]
    images: Sequence[ImageSpan] = ()


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
def step(
    model: DiffusionGemma,
    prefills: Sequence[Prefill] = (),
    reads: Sequence[tuple[Branch, Sequence[Canvas]]] = (),
    *,
    keep: bool = True,
) -> tuple[list[PrefixKV], list[list[Reading]]]:
    """Encode prompt rows and read canvases, for any number of requests, in one forward.

    A branch that was kept by an earlier read runs its canvas rows only. What comes back depends on
    the other rows by no more than the rounding of differently shaped matmuls; where the model is
    row-invariant, by no bit.

    Args:
        model: the model.
        prefills: rows to encode, each behind its own prefix.
        reads: branches, each with the canvases to lay behind it.
        keep: store each branch's keys and values in it, for later reads.

    Returns:
        The longer prefix of each prefill, and the readings of each branch's canvases.
    """
    blocks = [Block(one.prefix, tokens=one.tokens, images=one.images) for one in prefills]
    blocks += [
        Block(
            branch.prefix,
            tokens=() if branch.kv is not None else branch.tokens,
            branch=branch.kv,
            canvases=[canvas.ids for canvas in canvases],
            slots=[canvas.slots for canvas in canvases],
            images=() if branch.kv is not None else branch.images,
        )
        for branch, canvases in reads
    ]
    hidden, encoded = forward(model.text, blocks, rule=model.image_rule)
    longer = [
        one.prefix.extended(model.config.text, rows) for one, rows in zip(prefills, encoded, strict=False)
    ]
    if keep:
        for (branch, _), rows in zip(reads, encoded[len(prefills) :], strict=True):
            if branch.kv is None:
                # Copies: a view would hold the rows of everyone else in this forward.
                branch.kv = [LayerKV(one.k.clone(), one.v.clone()) for one in rows]
    readings = iter(_project(model, hidden, [canvas for _, canvases in reads for canvas in canvases]))
    return longer, [[next(readings) for _ in canvases] for _, canvases in reads]


def read(
    model: DiffusionGemma,
    work: Sequence[tuple[Branch, Sequence[Canvas]]],
    *,
    keep: bool = False,
    mass: bool = False,
) -> list[list[Reading]]:
    """Read the canvases of all branches in one forward, as `step` does.

    `mass` asks for `Reading.log_mass` of every canvas.
    """
    if mass:
        work = [(branch, [replace(canvas, mass=True) for canvas in canvases]) for branch, canvases in work]
    return step(model, reads=work, keep=keep)[1]


def _project(model: DiffusionGemma, hidden: torch.Tensor, canvases: list[Canvas]) -> list[Reading]:
    """Project slot rows [S, hidden] on the union of their labels and hand each slot its own."""
    union = sorted({label for canvas in canvases for labels in canvas.labels for label in labels})
    if not union:
        return []
    column = {label: index for index, label in enumerate(union)}
    # One transfer: each slot's own would wait for the device once more.
    logits = model.text.project(hidden, torch.tensor(union, device=model.device)).cpu()
    weighed = [row for row, mass in enumerate(c.mass for c in canvases for _ in c.slots) if mass]
    total = dict(zip(weighed, _log_sums(model, hidden[weighed]), strict=True))
    readings = []
    row = 0
    for canvas in canvases:
        slots, masses = [], []
        for labels in canvas.labels:
            chosen = logits[row, [column[label] for label in labels]]
            slots.append(tuple(chosen.tolist()))
            if canvas.mass:
                masses.append(chosen.logsumexp(-1).item() - total[row])
            row += 1
        readings.append(Reading(tuple(slots), tuple(masses) if canvas.mass else None))
    return readings


def _log_sums(model: DiffusionGemma, hidden: torch.Tensor) -> list[float]:
    """Log of the sum of exp of all logits of each row [S, hidden]."""
    if not len(hidden):
        return []
    return torch.stack([log_sum(row) for row in model.text.project(hidden)]).tolist()


def log_sum(row: torch.Tensor) -> torch.Tensor:
    """Log of the sum of exp of a row [N] of any length, the same bits whatever the number of threads.

    Torch cuts a sum in parts by how many rows there are, and from 2^15 numbers on by how many threads.
    """
    return torch.stack([part.logsumexp(-1) for part in row.split(2**14)]).logsumexp(-1)
