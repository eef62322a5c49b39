"""The reference read: `[prefix | branch | canvas]` as one sequence, no cache, dense masks.

Slow and plain on purpose. It shares the layers with the packed read but nothing of how rows are
packed, cached or masked, so that the two can be held against each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from jev.model.attention import Attend
from jev.model.diffusion_gemma import DiffusionGemma
from jev.model.layers import rope_tables
from jev.model.read import Canvas, Reading
from jev.model.text import Layer


@torch.inference_mode()
def read_unified(
    model: DiffusionGemma, prefix: Sequence[int], branch: Sequence[int], canvas: Canvas
) -> Reading:
    """Read one canvas behind `prefix` and `branch` ids; every row is computed in every layer."""
    logits = unified_logits(model, prefix, branch, canvas)
    chosen = [row[list(labels)] for row, labels in zip(logits, canvas.labels, strict=True)]
    return Reading(
        tuple(tuple(row.tolist()) for row in chosen),
        tuple(
            (part.logsumexp(-1) - row.logsumexp(-1)).item() for part, row in zip(chosen, logits, strict=True)
        ),
    )


def unified_logits(
    model: DiffusionGemma, prefix: Sequence[int], branch: Sequence[int], canvas: Canvas
) -> Tensor:
    """Soft-capped logits [slots, vocab] fp32 of the canvas's slots, with gradients where they are on."""
    text, config, device = model.text, model.config.text, model.device
    prompt = [*prefix, *branch]
    length, total = len(prompt), len(prompt) + len(canvas.ids)
    ids = torch.tensor([*prompt, *canvas.ids], device=device)
    positions = torch.arange(total, device=device)
    is_canvas = positions >= length

    query, key = positions[:, None], positions[None, :]
    sees = torch.where(is_canvas[:, None], torch.ones_like(key, dtype=torch.bool), key <= query)
    # Encoder rows see `window` keys with themselves; canvas rows the prompt's last window - 1.
    lowest = torch.where(is_canvas, torch.tensor(length, device=device), positions + 1)[:, None]
    near = (key >= lowest - config.sliding_window + is_canvas[:, None].long()) | (key >= length)

    x = torch.cat((text.embed(ids[:length]), text.embed_canvas(ids[length:])))
    for layer, shape in zip(text.layers, config.layers, strict=True):
        rope = rope_tables(positions, shape.head_dim, config.rope[shape.kind])
        attend = _dense(sees & near if shape.sliding else sees)
        x = cast(Layer, layer)(x, is_canvas, rope, attend)

    slots = x[length:][list(canvas.slots)]
    return text.project(slots)


def _dense(sees: Tensor) -> Attend:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        group = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        scores = torch.einsum("qhd,khd->hqk", q, k).float().masked_fill(~sees, -torch.inf)
        return torch.einsum("hqk,khd->qhd", scores.softmax(-1).to(v.dtype), v).flatten(1)

    return attend
