"""One forward over the rows of many blocks: linear layers see all rows at once, attention runs block
by block, so that no block's result can depend on another's content.

A block is what stands behind one cached prefix: a branch of encoder rows (causal; it sees the prefix
and itself) and canvases behind it (each bidirectional within itself; it sees prefix and branch).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor

from jev.model.attention import Attend, Part, attend_parts
from jev.model.cache import LayerKV, PrefixKV
from jev.model.config import LayerConfig, TextConfig
from jev.model.layers import rope_tables
from jev.model.text import Layer, TextModel


@dataclass(frozen=True)
class Block:
    """Rows to run behind one prefix.

    Attributes:
        prefix: cached rows that every row of the block may see.
        tokens: branch ids to encode in this forward.
        branch: the branch's keys and values by layer if it was encoded before; then no `tokens`.
        canvases: ids of each canvas.
        slots: for each canvas, the rows of it whose last hidden state is wanted.

    """

    prefix: PrefixKV
    tokens: Sequence[int] = ()
    branch: Sequence[LayerKV] | None = None
    canvases: Sequence[Sequence[int]] = ()
    slots: Sequence[Sequence[int]] = ()

    @property
    def branch_length(self) -> int:
        """Encoder rows behind the prefix, cached or new."""
        return len(self.branch[0].k) if self.branch is not None else len(self.tokens)

    @property
    def rows(self) -> int:
        """Rows this block adds to the forward."""
        return len(self.tokens) + sum(map(len, self.canvases))


@dataclass(frozen=True)
class _Placed:
    """A block's place among the packed rows and its masks."""

    block: Block
    start: int
    wanted: Tensor | None
    own_bias: dict[bool, Tensor] = field(repr=False)
    prefix_bias: dict[bool, Tensor | None] = field(repr=False)

    def parts(self, index: int, sliding: bool, k: Tensor, v: Tensor, rows: Tensor | None) -> list[Part]:
        """The block's keys and values in layer `index`, with the biases of its asking rows."""
        parts: list[Part] = []
        prefix = self.block.prefix.layers[index]
        if len(prefix.k):
            parts.append((prefix.k, prefix.v, _pick(self.prefix_bias[sliding], rows)))
        bias = self.own_bias[sliding]
        if self.block.branch is not None:
            branch = self.block.branch[index]
            parts.append((branch.k, branch.v, _pick(bias[:, : len(branch.k)], rows)))
            bias = bias[:, len(branch.k) :]
        parts.append((k, v, _pick(bias, rows)))
        return parts


def _pick(bias: Tensor | None, rows: Tensor | None) -> Tensor | None:
    return bias if bias is None or rows is None else bias[rows]


class Packed:
    """The packed rows of several blocks: ids, positions [N], kinds, and who sees whom."""

    def __init__(self, config: TextConfig, blocks: Sequence[Block], device: torch.device) -> None:
        self.config = config
        ids: list[int] = []
        positions: list[int] = []
        canvas: list[bool] = []
        wanted: list[int] = []
        self.placed: list[_Placed] = []
        for block in blocks:
            start, length = len(ids), block.branch_length
            after = block.prefix.length + length
            ids.extend(block.tokens)
            positions.extend(range(after - len(block.tokens), after))
            canvas.extend([False] * len(block.tokens))
            local: list[int] = []
            for number, one in enumerate(block.canvases):
                if number < len(block.slots):
                    local.extend(len(ids) - start + slot for slot in block.slots[number])
                ids.extend(one)
                positions.extend(range(after, after + len(one)))
                canvas.extend([True] * len(one))
            wanted.extend(start + row for row in local)
            self.placed.append(
                _Placed(
                    block,
                    start,
                    torch.tensor(local, device=device),
                    *_biases(block, config.sliding_window, device),
                )
            )
        self.ids = torch.tensor(ids, device=device)
        self.positions = torch.tensor(positions, device=device)
        self.canvas = torch.tensor(canvas, dtype=torch.bool, device=device)
        self.wanted = torch.tensor(wanted, dtype=torch.int64, device=device)

    def attend(self, index: int, layer: LayerConfig, kept: list[LayerKV], *, last: bool) -> Attend:
        """The attention of layer `index`; records all rows' keys and values in `kept`.

        In the last layer only the wanted rows ask.
        """

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            kept.append(LayerKV(k, v))
            outputs = []
            asked = 0
            for placed in self.placed:
                rows = slice(placed.start, placed.start + placed.block.rows)
                if last:
                    count = len(cast(Tensor, placed.wanted))
                    if not count:
                        continue
                    asking, chosen = q[asked : asked + count], placed.wanted
                    asked += count
                else:
                    asking, chosen = q[rows], None
                outputs.append(
                    attend_parts(asking, placed.parts(index, layer.sliding, k[rows], v[rows], chosen))
                )
            return torch.cat(outputs)

        return attend


def _biases(
    block: Block, window: int, device: torch.device
) -> tuple[dict[bool, Tensor], dict[bool, Tensor | None]]:
    """Masks of a block's asking rows, for full (False) and sliding (True) layers.

    Encoder row i of the branch sees the branch up to itself; a canvas row sees the whole branch
    and its own canvas. On sliding layers an encoder row sees window keys with itself, and every
    row of a canvas the same last window - 1 rows of the prompt.
    """
    prefix, length, new = block.prefix.length, block.branch_length, len(block.tokens)
    lead = torch.arange(length - new, length)
    own = [lead[:, None] >= torch.arange(length)]
    widths = [len(one) for one in block.canvases]
    canvas_rows = sum(widths)
    own.append(torch.ones(canvas_rows, length, dtype=torch.bool))
    seen = torch.cat(own)
    number = torch.repeat_interleave(torch.arange(len(widths)), torch.tensor(widths, dtype=torch.int64))
    among = torch.cat((torch.zeros(new, canvas_rows, dtype=torch.bool), number[:, None] == number))
    # The lowest prompt position a row may see on sliding layers.
    lowest = torch.cat((prefix + lead - window + 1, torch.full((canvas_rows,), prefix + length - window + 1)))
    full = _bias(torch.cat((seen, among), dim=1), device)
    if prefix + length < window:
        return {False: full, True: full}, {False: None, True: None}
    within = seen & (prefix + torch.arange(length) >= lowest[:, None])
    kept = min(prefix, window - 1)
    behind = torch.arange(prefix - kept, prefix) >= lowest[:, None]
    return (
        {False: full, True: _bias(torch.cat((within, among), dim=1), device)},
        {False: None, True: _bias(behind, device)},
    )


def _bias(seen: Tensor, device: torch.device) -> Tensor:
    return torch.zeros(seen.shape).masked_fill_(~seen, -math.inf).to(device)


def forward(
    text: TextModel, blocks: Sequence[Block], previous: Tensor | None = None
) -> tuple[Tensor, list[list[LayerKV]]]:
    """Run the blocks' rows through all layers.

    Args:
        text: the backbone.
        blocks: what to run; at least one row in all.
        previous: the last step's processed logits [rows, vocab] of a self-conditioned step, when the
            blocks are one canvas and nothing else.

    Returns:
        The last layer's output [S, hidden] for the wanted rows, in the order of the blocks, their
        canvases and slots; and for each block its new encoder rows' keys and values by layer
        (views into this forward's tensors).

    """
    packed = Packed(text.config, blocks, text.embed_tokens.weight.device)
    x = text.embed(packed.ids)
    if packed.canvas.any():
        canvas = text.embed_canvas(packed.ids[packed.canvas], previous)
        x = x.index_put((packed.canvas,), canvas)
    tables = {
        (layer.kind, layer.head_dim): rope_tables(
            packed.positions, layer.head_dim, text.config.rope[layer.kind]
        )
        for layer in text.config.layers
    }
    kept: list[LayerKV] = []
    for index, config in enumerate(text.config.layers):
        layer = cast(Layer, text.layers[index])
        rope = tables[config.kind, config.head_dim]
        last = index == len(text.config.layers) - 1
        if last and not len(packed.wanted):
            # An encoder pass ends with its last keys and values: nobody reads its output.
            kept.append(LayerKV(*layer.self_attn.keys_values(layer.input_layernorm(x), rope)))
            x = x[:0]
            break
        attend = packed.attend(index, config, kept, last=last)
        x = layer(x, packed.canvas, rope, attend, packed.wanted if last else None)
    branches = [
        [
            LayerKV(*(t[placed.start : placed.start + len(placed.block.tokens)] for t in (one.k, one.v)))
            for one in kept
        ]
        for placed in packed.placed
    ]
    return x, branches
