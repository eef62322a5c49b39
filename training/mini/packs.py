"""Many examples as one batch of rows: which row sees which, as padded keys and biases for each example.

`jev.model.packed` runs attention block by block, so that no answer depends on its neighbours. Training may
run all blocks in one matmul; what each row sees is the same.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from jev.tune.examples import Prepared


@dataclass(frozen=True)
class Pack:
    """Rows of a batch. B examples (and one more for what all prefixes begin with), N rows, S slots.

    Attributes:
        ids: token ids int64 [N].
        positions: int64 [N].
        canvas: bool [N], whether a row is of a canvas.
        queries: int64 [B, Q], rows of each example, padded with row 0.
        keys: int64 [B, K], rows that they may see, padded with row 0.
        bias: fp32 [B, Q, K] of 0 and -inf.
        place: int64 [N], where a row is among the B * Q.
        slots: int64 [S], rows that are read.
        slot_queries: int64 [B, s], the slots of each example, padded with row 0.
        slot_bias: fp32 [B, s, K].
        slot_place: int64 [S], where a slot is among the B * s.
        ends: int64 [S, most labels], the last row of each label's line, padded with row 0.
        labels: int64 [S, most labels], token ids, padded with 0.
        known: bool [S, most labels], what is no padding.
        targets: fp32 [S, most labels].
        weights: fp32 [S].
    """

    ids: Tensor
    positions: Tensor
    canvas: Tensor
    queries: Tensor
    keys: Tensor
    bias: Tensor
    place: Tensor
    slots: Tensor
    slot_queries: Tensor
    slot_bias: Tensor
    slot_place: Tensor
    ends: Tensor
    labels: Tensor
    known: Tensor
    targets: Tensor
    weights: Tensor


@dataclass
class _Rows:
    """Rows of one example behind what is shared: for each its branch (0 = prefix) and canvas (0 = none)."""

    ids: list[int]
    positions: list[int]
    branch: list[int]
    canvas: list[int]
    slots: list[int]
    ends: list[list[int]]
    labels: list[tuple[int, ...]]


def _rows(one: Prepared, shared: int, newline: int, tail: int) -> _Rows:
    prefix = list(one.prompt.prefix[shared:])
    behind, zeros = shared + len(prefix), [0] * len(prefix)
    rows = _Rows(prefix, list(range(shared, behind)), zeros, list(zeros), [], [], [])
    for number, (branch, canvases) in enumerate(one.prompt.branches, 1):
        start, position = len(rows.ids), behind
        rows.ids += branch
        rows.positions += range(position, position + len(branch))
        rows.branch += [number] * len(branch)
        rows.canvas += [0] * len(branch)
        position += len(branch)
        lines = [index for index, token in enumerate(branch[: len(branch) - tail]) if token == newline]
        for laid, canvas in enumerate(canvases, 1):
            (slot,), (labels,) = canvas.slots, canvas.labels
            rows.slots.append(len(rows.ids) + slot)
            rows.labels.append(tuple(labels))
            rows.ends.append([start + index for index in lines[-len(labels) :]])
            rows.ids += canvas.ids
            rows.positions += range(position, position + len(canvas.ids))
            rows.branch += [number] * len(canvas.ids)
            rows.canvas += [laid] * len(canvas.ids)
    return rows


def _seen(rows: _Rows) -> Tensor:
    """Bool [rows, rows]: who sees whom among an example's own rows."""
    branch, canvas = torch.tensor(rows.branch), torch.tensor(rows.canvas)
    index = torch.arange(len(branch))
    mine = (branch == 0) | (branch == branch[:, None])
    before = (canvas == 0) & (index <= index[:, None])
    within = (canvas == canvas[:, None]) & (canvas > 0)
    return mine & (before | within)


def _padded(lists: Sequence[Sequence[int]], width: int) -> Tensor:
    return torch.tensor([[*one, *([0] * (width - len(one)))] for one in lists])


def pack(batch: Sequence[Prepared], newline: int, tail: int) -> Pack:
    """Lay a batch out.

    Args:
        batch: examples without pictures, each shorter than the sliding window.
        newline: id of the token that ends a label line.
        tail: rows of a branch behind its last line.
    """
    prefixes = [list(one.prompt.prefix) for one in batch]
    shared = len(os.path.commonprefix(prefixes))  # noqa: RUF071 - ids, no paths
    common = _Rows(prefixes[0][:shared], list(range(shared)), [0] * shared, [0] * shared, [], [], [])
    parts = [common, *(_rows(one, shared, newline, tail) for one in batch)]
    starts = [0]
    for part in parts:
        starts.append(starts[-1] + len(part.ids))
    width = max(len(part.ids) for part in parts)
    bias = torch.full((len(parts), width, shared + width), -math.inf)
    queries, keys, slot_queries = [], [], []
    for number, (part, start) in enumerate(zip(parts, starts, strict=False)):
        own = list(range(start, start + len(part.ids)))
        queries.append(own)
        keys.append(own if number == 0 else [*range(shared), *own])
        slot_queries.append([start + slot for slot in part.slots])
        seen = _seen(part)
        if number:
            seen = torch.cat((torch.ones(len(own), shared, dtype=torch.bool), seen), 1)
        bias[number, : len(own), : seen.shape[1]].masked_fill_(seen, 0.0)
        bias[number, len(own) :, :] = 0.0  # padding: anything but all -inf
    most = max(map(len, slot_queries))
    slot_bias = torch.zeros(len(parts), most, shared + width)
    for number, part in enumerate(parts):
        for index, row in enumerate(part.slots):
            slot_bias[number, index] = bias[number, row]
    labels = [one for part in parts for one in part.labels]
    ends = [
        [start + row for row in one] for part, start in zip(parts, starts, strict=False) for one in part.ends
    ]
    reads = [read for one in batch for read in one.reads]
    options = max(map(len, labels))
    targets = torch.zeros(len(reads), options)
    known = torch.zeros(len(reads), options, dtype=torch.bool)
    for index, read in enumerate(reads):
        targets[index, : len(read.target)] = torch.tensor(read.target)
        known[index, : len(read.target)] = True
    return Pack(
        ids=torch.tensor([one for part in parts for one in part.ids]),
        positions=torch.tensor([one for part in parts for one in part.positions]),
        canvas=torch.tensor([one > 0 for part in parts for one in part.canvas]),
        queries=_padded(queries, width),
        keys=_padded(keys, shared + width),
        bias=bias,
        place=torch.cat([number * width + torch.arange(len(part.ids)) for number, part in enumerate(parts)]),
        slots=torch.tensor([row for one in slot_queries for row in one]),
        slot_queries=_padded(slot_queries, most),
        slot_bias=slot_bias,
        slot_place=torch.cat(
            [number * most + torch.arange(len(one)) for number, one in enumerate(slot_queries)]
        ),
        ends=_padded(ends, options),
        labels=_padded(labels, options),
        known=known,
        targets=targets,
        weights=torch.tensor([read.weight for read in reads]),
    )
