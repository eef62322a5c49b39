"""Proves that a matmul gives the same bits wherever in memory its operands lie."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

FLOATS = 16
"""Numbers in a cache line."""


def moved(value: Tensor, by: int) -> Tensor:
    """A copy that begins so many numbers behind the start of its memory."""
    memory = torch.empty(value.numel() + by)
    return memory[by:].view(value.shape).copy_(value)


@pytest.mark.parametrize("rows", [1, 3, 7, 30])
@pytest.mark.parametrize(("inner", "outer"), [(64, 64), (64, 1024), (256, 64)])
def test_bits_do_not_depend_on_addresses(rows: int, inner: int, outer: int) -> None:
    # Without the mode of jev/_before_torch.py some CPUs sum in another order where rows are not aligned.
    draw = torch.Generator().manual_seed(1)
    x, w = torch.randn(rows, inner, generator=draw), torch.randn(outer, inner, generator=draw)
    expected = torch.nn.functional.linear(x, w)
    for by in range(FLOATS):
        assert torch.equal(torch.nn.functional.linear(moved(x, by), w), expected)
        assert torch.equal(torch.nn.functional.linear(x, moved(w, by)), expected)
