"""Proves that blocks decode to the bits that the `gguf` package gives, and that modules compute with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from gguf import GGMLQuantizationType, quants
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from jev.model.gguf.quantize import encode, fitting_type
from jev.model.moe import gated, mix
from jev.model.quant import blocks as blocks_module
from jev.model.quant.block_modules import BlockEmbedding, BlockExperts, BlockLinear
from jev.model.quant.blocks import BLOCKS, Blocks, decode

QUANTISED = [type for type in BLOCKS if type not in ("F32", "F16", "BF16")]


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def made(type: str, *shape: int, route: str = "torch", seed: int = 0) -> Blocks:
    found = Blocks(encode(random(*shape, seed=seed) * shape[-1] ** -0.5, type), type)
    if route == "kernels":
        assert found.use_kernels()
        assert found.raw is None
    return found


def same_bits(a: Tensor, b: np.ndarray) -> bool:
    """NaNs have no bits that mean anything."""
    left, right = a.numpy(), b
    numbers = ~np.isnan(right)
    return bool((np.isnan(left) == ~numbers).all()) and bool(
        (left.view(np.uint32) == right.view(np.uint32))[numbers].all()
    )


@pytest.mark.parametrize("type", BLOCKS)
@given(rows=st.integers(1, 4), count=st.integers(1, 5), seed=st.integers(0, 2**32 - 1))
def test_any_bytes_decode_as_in_the_library(type: str, rows: int, count: int, seed: int) -> None:
    """Whatever the bytes are: scales that are infinite, not a number, denormal or negative as well."""
    raw = np.random.default_rng(seed).integers(0, 256, (rows, count * BLOCKS[type][1]), dtype=np.uint8)
    with np.errstate(all="ignore"):
        expected = quants.dequantize(raw, GGMLQuantizationType[type])
    assert same_bits(decode(torch.from_numpy(raw), type), expected)


def test_sizes_are_the_library_s() -> None:
    from gguf.constants import GGML_QUANT_SIZES

    for type, size in BLOCKS.items():
        assert GGML_QUANT_SIZES[GGMLQuantizationType[type]] == size


def test_large_pieces_are_decoded_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = made("Q4_K", 7, 512)
    whole = weight.decode(slice(None), torch.float32)
    monkeypatch.setattr(blocks_module, "CHUNK", 3 * 256)
    assert torch.equal(weight.decode(slice(None), torch.float32), whole)


# Relative error of normally distributed weights; ggml's own quantisers give the same within a few percent.
ERRORS = {"Q8_0": 0.006, "Q6_K": 0.019, "Q5_K": 0.038, "Q5_1": 0.040, "Q5_0": 0.045, "Q4_K": 0.075}


@pytest.mark.parametrize("type", QUANTISED)
def test_quantised_weights_are_close(type: str) -> None:
    weight = random(64, 512) * 0.02
    error = (decode(encode(weight, type), type) - weight).square().mean().sqrt() / weight.std()
    assert ERRORS[type] / 2 < error < ERRORS[type]


@pytest.mark.parametrize("type", QUANTISED)
@pytest.mark.parametrize("value", [0.0, 3.5, -1.5, 1e-9])
def test_constant_weights(type: str, value: float) -> None:
    back = decode(encode(torch.full((2, 256), value), type), type)
    assert torch.allclose(back, torch.tensor(value), rtol=0.04, atol=1e-7)


@pytest.mark.parametrize("type", QUANTISED)
def test_odd_weights_stay_finite(type: str) -> None:
    for weight in (random(2, 256) * 1e-7, random(2, 256) * 1e3, F.one_hot(torch.arange(256), 256).float()):
        assert torch.isfinite(decode(encode(weight, type), type)).all()


def test_rows_that_are_no_whole_blocks_fall_back_as_in_llama_cpp() -> None:
    assert [fitting_type(type, 2112) for type in ("Q4_K", "Q5_K", "Q6_K", "Q8_0")] == [
        "Q5_0",
        "Q5_1",
        "Q8_0",
        "Q8_0",
    ]
    assert fitting_type("Q4_K", 2816) == "Q4_K"
    assert fitting_type("Q4_K", 16) == fitting_type("Q5_1", 16) == "F16"
    assert fitting_type("BF16", 7) == "BF16"
    with pytest.raises(ValueError, match="rows of 16 weights are no whole Q8_0 blocks"):
        encode(random(2, 16), "Q8_0")


# Modules


def close(found: Tensor, expected: Tensor, route: str) -> bool:
    """The kernels round activations to int8: about a percent of the result."""
    if route == "torch":
        return torch.allclose(found, expected, atol=1e-5, rtol=1e-5)
    return float((found - expected).square().mean().sqrt() / expected.std()) < 0.025


@pytest.mark.parametrize("type", QUANTISED)
def test_linear(type: str, route: str) -> None:
    weight = made(type, 96, 512, route=route)
    linear, plain = BlockLinear(weight), made(type, 96, 512).decode(slice(None), torch.float32)
    x = random(9, 512, seed=1)
    assert torch.equal(weight.decode(slice(None), torch.float32), plain)
    assert close(linear(x), F.linear(x, plain), route)
    assert linear(x.bfloat16()).dtype == torch.bfloat16
    assert weight.shape == (96, 512)
    assert (len(weight), weight.width) == (96, 512)


@pytest.mark.parametrize("type", ["Q6_K", "Q8_0"])
def test_embedding(type: str, route: str) -> None:
    weight = made(type, 300, 256, route=route)
    table = BlockEmbedding(weight, torch.float32)
    plain = made(type, 300, 256).decode(slice(None), torch.float32)
    ids = torch.tensor([7, 299, 7, 0])
    assert torch.equal(table(ids), plain[ids])
    assert torch.equal(weight.decode(5, torch.float32), plain[5])
    assert torch.equal(weight.decode(slice(2, 8), torch.float32), plain[2:8])
    assert table.weight.shape == (300, 256)
    x = random(3, 256, seed=2)
    assert close(table.unembed(x), x @ plain.T, route)
    chances = torch.softmax(random(2, 300, seed=3), -1)
    assert torch.allclose(table.mix(chances), chances @ plain, atol=1e-6)


@pytest.mark.parametrize(("first", "second"), [("Q4_K", "Q5_0"), ("Q6_K", "Q8_0"), ("Q5_K", "Q5_1")])
def test_experts(first: str, second: str, route: str) -> None:
    shapes: list[Any] = [(5, 2 * 96, 256), (5, 256, 96)]
    gate_up, down = (made(t, *s, route=route) for t, s in zip((first, second), shapes, strict=True))
    plain = [
        made(t, *s).decode(slice(None), torch.float32) for t, s in zip((first, second), shapes, strict=True)
    ]
    assert torch.equal(gate_up.decode(3, torch.float32), plain[0][3])
    x = random(11, 256, seed=3)
    chance = torch.Generator().manual_seed(4)
    index = torch.randint(0, 4, (11, 2), generator=chance)  # nobody chooses the last one
    weights = torch.rand(11, 2, generator=chance)
    expected = mix(x, weights, index, 5, lambda n, rows: gated(rows, plain[0][n], plain[1][n]))
    assert close(BlockExperts(gate_up, down)(x, weights, index), expected, route)


def test_gradients_pass_through(route: str) -> None:
    linear = BlockLinear(made("Q4_K", 8, 256, route=route))
    x = random(3, 256).requires_grad_()
    linear(x).sum().backward()
    assert x.grad is not None
    assert torch.allclose(x.grad[0], linear.weight.decode(slice(None), torch.float32).sum(0), atol=1e-5)
