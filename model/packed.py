"""One forward over the rows of many blocks: linear layers see all rows at once, attention runs block
by block, so that no block's result can depend on another's content.

A block is what stands behind one cached prefix: a branch of encoder rows (causal; it sees the prefix
and itself) and canvases behind it (each bidirectional within itself; it sees prefix and branch).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor

from jev.model import native
from jev.model.attention import Attend, Part, attend_parts
from jev.model.cache import LayerKV, PrefixKV
from jev.model.config import LayerConfig, TextConfig
from jev.model.layers import rope_tables
from jev.model.masks import Biases, ImageRule, block_biases
from jev.model.text import Layer, TextModel


@dataclass(frozen=True)
class ImageSpan:
    """Soft tokens of one image among encoder rows: `start` is the first row's index in the tokens."""

    start: int
    embeddings: Tensor

    @property
    def end(self) -> int:
        """Index behind the last row."""
        return self.start + len(self.embeddings)


def pieces(
    ids: Sequence[int], images: Sequence[ImageSpan], rows: int
) -> Iterator[tuple[Sequence[int], list[ImageSpan]]]:
    """Cut a prompt into pieces of `rows` ids, each with the images in it.

    An image's rows are never split, so a piece may be as long as an image.
    """
    start = 0
    while start < len(ids):
        end = min(start + rows, len(ids))
        end = max([end, *(image.end for image in images if image.start < end)])
        within = [
            ImageSpan(image.start - start, image.embeddings) for image in images if start <= image.start < end
        ]
        yield ids[start:end], within
        start = end


@dataclass(frozen=True)
class Block:
    """Rows to run behind one prefix.

    Attributes:
        prefix: cached rows that every row of the block may see.
        tokens: branch ids to encode in this forward.
        branch: the branch's keys and values by layer if it was encoded before; then no `tokens`.
        canvases: ids of each canvas.
        slots: for each canvas, the rows of it whose last hidden state is wanted.
        soft: for each canvas, what its last step predicted, as soft embeddings [rows, hidden], or None
            on its first step; () = None for all.
        images: soft tokens [n, hidden] that stand in for the embeddings of `tokens`; each image's
            rows see each other in both directions.
    """

    prefix: PrefixKV
    tokens: Sequence[int] = ()
    branch: Sequence[LayerKV] | None = None
    canvases: Sequence[Sequence[int]] = ()
    slots: Sequence[Sequence[int]] = ()
    soft: Sequence[Tensor | None] = ()
    images: Sequence[ImageSpan] = ()

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
    full: Biases = field(repr=False)
    sliding: Biases = field(repr=False)

    def parts(self, index: int, sliding: bool, k: Tensor, v: Tensor, rows: Tensor | None) -> list[Part]:
        """The block's keys and values in layer `index`, with the biases of its asking rows."""
        parts: list[Part] = []
        biases = self.sliding if sliding else self.full
        prefix = self.block.prefix.layers[index]
        if len(prefix.k):
            parts.append((prefix.k, prefix.v, _pick(biases.behind, rows)))
        bias = biases.own
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

    def __init__(
        self,
        config: TextConfig,
        blocks: Sequence[Block],
        device: torch.device,
        rule: ImageRule = "diffusion_gemma",
        *,
        row_invariant: bool = False,
    ) -> None:
        self.config = config
        self.row_invariant = row_invariant
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
                    *block_biases(
                        prefix=block.prefix.length,
                        branch=length,
                        new=len(block.tokens),
                        widths=[len(one) for one in block.canvases],
                        window=config.sliding_window,
                        images=[(image.start, image.end) for image in block.images],
                        rule=rule,
                        device=device,
                    ),
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
            ask = native.attend if self.row_invariant and all(map(native.takes, (q, k, v))) else attend_parts
            outputs: list[Tensor] = []
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
                outputs.append(ask(asking, placed.parts(index, layer.sliding, k[rows], v[rows], chosen)))
            return torch.cat(outputs)

        return attend


def _soft(text: TextModel, blocks: Sequence[Block]) -> Tensor | None:
    """The soft embeddings of all canvas rows [rows, hidden], zeros where a canvas has none."""
    if not any(one is not None for block in blocks for one in block.soft):
        return None
    like = text.norm.weight
    parts = [
        like.new_zeros(len(canvas), len(like)) if one is None else one.to(like)
        for block in blocks
        for canvas, one in zip(block.canvases, block.soft or [None] * len(block.canvases), strict=True)
    ]
    return torch.cat(parts)


def forward(
    text: TextModel,
    blocks: Sequence[Block],
    rule: ImageRule = "diffusion_gemma",
) -> tuple[Tensor, list[list[LayerKV]]]:
    """Run the blocks' rows through all layers.

    Args:
        text: the backbone.
        blocks: what to run; at least one row in all.
        rule: how the rows of an image see each other.

    Returns:
        The last layer's output [S, hidden] for the wanted rows, in the order of the blocks, their
        canvases and slots; and for each block its new encoder rows' keys and values by layer
        (views into this forward's tensors).
    """
    packed = Packed(text.config, blocks, text.norm.weight.device, rule, row_invariant=text.row_invariant)
    x = text.embed(packed.ids)
    for placed in packed.placed:
        for image in placed.block.images:
            rows = torch.arange(placed.start + image.start, placed.start + image.end, device=x.device)
            x = x.index_put((rows,), image.embeddings.to(x))
    if packed.canvas.any():
        canvas = text.embed_canvas(packed.ids[packed.canvas], _soft(text, blocks))
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
