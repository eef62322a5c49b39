"""Experts in one grouped matmul say what a loop over them says, in value and gradient, whoever is chosen."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from jev.model.moe import can_group, gated, mix, mix_grouped

EXPERTS, HIDDEN, INNER = 6, 32, 16

CHOSEN = {
    "one row": [[4, 1]],
    "all by one pair": [[2, 3]] * 7,
    "first and last": [[0, 5], [5, 0], [0, 5]],
    "every expert": [[0, 1], [2, 3], [4, 5], [5, 4], [3, 1]],
    "one of each row": [[1], [1], [4], [0]],
}


def parts(device: str, dtype: torch.dtype, chosen: list[list[int]]) -> tuple[Tensor, ...]:
    """Rows, weights, indices and both expert weights."""
    generator = torch.Generator().manual_seed(len(chosen))

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    x, gate_up, down = (
        draw(len(chosen), HIDDEN),
        draw(EXPERTS, 2 * INNER, HIDDEN),
        draw(EXPERTS, HIDDEN, INNER),
    )
    index = torch.tensor(chosen, device=device)
    weights = torch.rand(index.shape, generator=generator).to(device)
    x, gate_up, down = (one.to(device, dtype).requires_grad_() for one in (x, 0.2 * gate_up, 0.2 * down))
    return x, weights, index, gate_up, down


def looped(x: Tensor, weights: Tensor, index: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    return mix(x, weights, index, EXPERTS, lambda n, rows: gated(rows, gate_up[n], down[n]))


def check(device: str, dtype: torch.dtype, chosen: list[list[int]], tolerance: float) -> None:
    given = parts(device, dtype, chosen)
    grouped, loop = mix_grouped(*given), looped(*given)
    assert grouped.dtype == dtype
    assert loop.abs().max() > 0.1
    torch.testing.assert_close(grouped, loop, rtol=tolerance, atol=tolerance)
    x, _, _, gate_up, down = given
    for one, other in zip(
        torch.autograd.grad(grouped.float().square().sum(), (x, gate_up, down)),
        torch.autograd.grad(loop.float().square().sum(), (x, gate_up, down)),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=4 * tolerance, atol=4 * tolerance)


@pytest.mark.parametrize("chosen", CHOSEN.values(), ids=CHOSEN)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_grouped_equals_looped(chosen: list[list[int]], dtype: torch.dtype, tolerance: float) -> None:
    check("cpu", dtype, chosen, tolerance)


def test_a_cpu_keeps_the_loop() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        x, _, _, gate_up, _ = parts("cpu", dtype, CHOSEN["every expert"])
        assert not can_group(x, gate_up)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("chosen", CHOSEN.values(), ids=CHOSEN)
def test_grouped_equals_looped_on_a_device(chosen: list[list[int]]) -> None:
    if torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("needs compute capability 8.0")
    x, _, _, gate_up, _ = parts("cuda", torch.bfloat16, chosen)
    assert can_group(x, gate_up)
    check("cuda", torch.bfloat16, chosen, 2e-2)
