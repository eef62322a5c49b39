"""Who sees whom, as additive biases: one pair of rules for full layers, one for sliding layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

ImageRule = Literal["diffusion_gemma", "gemma4"]
"""How the rows of an image see each other in prefill, beyond the causal rule.

`diffusion_gemma` (what `transformers` does for this model): both ways in all layers, whatever the
window. `gemma4` (what it does for the autoregressive one): both ways in sliding layers only, within
the window.
"""


@dataclass(frozen=True)
class Biases:
    """Biases fp32 of 0 and -inf for the asking rows of a block; None = everything is seen.

    Attributes:
        own: [rows, branch + canvas rows], the block's own keys.
        behind: [rows, cached prefix rows] of the layer kind.
    """

    own: Tensor
    behind: Tensor | None


def block_biases(
    *,
    prefix: int,
    branch: int,
    new: int,
    widths: Sequence[int],
    window: int,
    images: Sequence[tuple[int, int]] = (),
    rule: ImageRule = "diffusion_gemma",
    device: torch.device | None = None,
) -> tuple[Biases, Biases]:
    """Biases of a block for full and for sliding layers.

    An encoder row sees the prompt up to itself, on sliding layers the last `window` rows of it with
    itself. A canvas row sees the prompt and its own canvas, on sliding layers the prompt's last
    `window` - 1 rows, the same for every row of the canvas.

    Args:
        prefix: cached tokens before the block.
        branch: encoder rows of the block, of which the last `new` ask.
        new: encoder rows that are encoded now (the others are cached and only seen).
        widths: rows of each canvas.
        window: the sliding window.
        images: [start, end) of each image among the new rows.
        rule: how an image's rows see each other.
        device: where the biases go.
    """
    canvases = sum(widths)
    asking = torch.arange(branch - new, branch)
    causal = torch.cat(
        (asking[:, None] >= torch.arange(branch), torch.ones(canvases, branch, dtype=torch.bool))
    )
    number = torch.repeat_interleave(torch.arange(len(widths)), torch.tensor(widths, dtype=torch.int64))
    among = torch.cat((torch.zeros(new, canvases, dtype=torch.bool), number[:, None] == number))
    image = torch.full((new + canvases, branch), False)
    for start, end in images:
        image[start:end, branch - new + start : branch - new + end] = True

    seen = causal | image if rule == "diffusion_gemma" else causal
    full = Biases(_bias(torch.cat((seen, among), dim=1), device), None)
    if prefix + branch < window and not (images and rule == "gemma4"):
        return full, full
    # The lowest prompt position that a row may see, and the highest for clipped images.
    lowest = torch.cat((prefix + asking - window + 1, torch.full((canvases,), prefix + branch - window + 1)))
    near = prefix + torch.arange(branch) >= lowest[:, None]
    if rule == "diffusion_gemma":
        seen = (causal & near) | image
    else:
        ahead = torch.arange(branch) - torch.cat((asking, torch.full((canvases,), branch)))[:, None]
        seen = (causal | (image & (ahead < window))) & near
    behind = torch.arange(prefix - min(prefix, window - 1), prefix) >= lowest[:, None]
    return full, Biases(_bias(torch.cat((seen, among), dim=1), device), _bias(behind, device))


def _bias(seen: Tensor, device: torch.device | None) -> Tensor:
    return torch.zeros(seen.shape).masked_fill_(~seen, -math.inf).to(device)
