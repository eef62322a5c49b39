"""Proves what of the GPU's paths a CPU can: modules, their arithmetic, and layers that come for their turn.

The CUDA kernels themselves are not run here; the CPU's products of the same name stand in for them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from jev.model.checkpoint import load_checkpoint
from jev.model.diffusion_gemma import DiffusionGemma
from jev.model.gguf.quantize import encode
from jev.model.moe import Experts
from jev.model.offload import Offload, Placement, hosted_layers
from jev.model.quant import PackedExperts, PackedLinear, pack
from jev.model.quant.block_modules import BlockExperts, BlockLinear
from jev.model.quant.blocks import Blocks
from jev.model.quant.float8 import Float8Experts, Float8Linear, to_float8
from jev.model.quant.int4 import Tiled, TiledExperts, TiledLinear, tiled

IDS = list(range(5, 45))
CANVAS = list(range(100, 108))


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def routed(rows: int, experts: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    index = torch.rand(rows, experts, generator=torch.Generator().manual_seed(1)).topk(k).indices
    return torch.full((rows, k), 1 / k), index


class TestInt4:
    @pytest.mark.parametrize("rows", [0, 1, 5])
    @pytest.mark.parametrize(("out", "width"), [(64, 64), (704, 352), (16, 96)])
    def test_a_linear_is_the_packed_one_rounded_to_bf16(self, rows: int, out: int, width: int) -> None:
        packed = pack(draw(out, width), 4)
        x = draw(rows, width, seed=1).bfloat16()
        made = tiled(PackedLinear(packed))
        assert isinstance(made, TiledLinear)
        found = made(x)
        assert found.dtype == torch.bfloat16
        assert found.shape == (rows, out)
        if rows:
            expected = F.linear(x.float(), packed.decode(slice(None), torch.float32))
            assert relative(found.float(), expected) < 0.01

    def test_experts(self) -> None:
        first, second = pack(draw(6, 64, 64), 4), pack(draw(6, 64, 32, seed=1), 4)
        x, (weights, index) = draw(9, 64, seed=2).bfloat16(), routed(9, 6, 2)
        made = tiled(PackedExperts(first, second))
        assert isinstance(made, TiledExperts)
        expected = PackedExperts(first, second)(x.float(), weights, index)
        assert relative(made(x, weights, index).float(), expected) < 0.02

    def test_q4_k_blocks_of_a_gguf_file(self) -> None:
        weight = draw(3, 64, 512)
        blocks = Blocks(encode(weight, "Q4_K"), "Q4_K")
        x = draw(5, 512, seed=1).bfloat16()
        made = tiled(BlockLinear(Blocks(blocks.raw[1], "Q4_K")))  # type: ignore[index]
        assert isinstance(made, TiledLinear)
        expected = F.linear(x.float(), blocks.decode(1, torch.float32))
        assert relative(made(x).float(), expected) < 0.01
        assert sum(one.nbytes for one in made.buffers()) == 64 * 512 * 5 // 8

    def test_experts_of_which_only_the_first_weight_is_taken(self) -> None:
        first = Blocks(encode(draw(6, 64, 256), "Q4_K"), "Q4_K")
        second = Blocks(encode(draw(6, 256, 32, seed=1), "Q5_0"), "Q5_0")
        x, (weights, index) = draw(9, 256, seed=2).bfloat16(), routed(9, 6, 2)
        made = tiled(BlockExperts(first, second))
        assert isinstance(made, TiledExperts)
        assert isinstance(made.gate_up_proj, Tiled)
        assert made.down_proj is second
        expected = BlockExperts(first, second)(x.float(), weights, index)
        assert relative(made(x, weights, index).float(), expected) < 0.02

    @pytest.mark.parametrize(("bits", "out", "width"), [(8, 64, 64), (4, 64, 40), (4, 12, 64)])
    def test_what_the_kernel_does_not_take_stays_packed(self, bits: int, out: int, width: int) -> None:
        module = PackedLinear(pack(draw(out, width), bits))  # type: ignore[arg-type]
        assert tiled(module) is module

    def test_it_takes_as_much_memory_as_packed(self) -> None:
        packed = pack(draw(64, 2816), 4)
        made = Tiled(packed)
        size = sum(one.nbytes for one in made.buffers())
        assert size == sum(one.nbytes for one in packed.buffers()) == 64 * 2816 * 5 // 8


class TestFloat8:
    def test_rounding(self) -> None:
        values = draw(7, 64) * torch.logspace(-3, 3, 7)[:, None]
        rows, scales = to_float8(values)
        assert rows.dtype == torch.float8_e4m3fn
        # Three bits of mantissa: half a step is a sixteenth at most; far below the largest, subnormals.
        difference = (rows.float() * scales - values).abs()
        assert bool((difference <= torch.maximum(values.abs() / 16, scales * 2**-10)).all())

    def test_zeros_stay(self) -> None:
        rows, scales = to_float8(torch.zeros(2, 16))
        assert torch.equal(rows.float() * scales, torch.zeros(2, 16))

    @pytest.mark.parametrize("rows", [0, 1, 5])
    def test_linear(self, rows: int) -> None:
        weight, x = draw(96, 64), draw(rows, 64, seed=1).bfloat16()
        found = Float8Linear(weight)(x)
        assert found.dtype == torch.bfloat16
        assert found.shape == (rows, 96)
        if rows:
            assert relative(found.float(), F.linear(x.float(), weight)) < 0.06

    @pytest.mark.parametrize(("units", "width"), [(False, 64), (True, 40)])
    def test_where_the_kernel_cannot_be_used_the_weight_alone_is_rounded(
        self, units: bool, width: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("jev.model.quant.float8.can_scale", lambda device: units)
        weight, x = draw(96, width), draw(5, width, seed=1)
        module = Float8Linear(weight)
        exact = F.linear(x, module.weight.float() * module.scale[:, None])
        assert relative(module(x), exact) < 1e-5

    def test_experts(self, tiny: Callable[..., Path]) -> None:
        experts = Experts(load_checkpoint(tiny(), vision=False).config.text)
        for parameter, seed in zip(experts.parameters(), itertools.count(), strict=False):
            parameter.data = draw(*parameter.shape, seed=seed)
        hidden, count = experts.gate_up_proj.shape[-1], len(experts.gate_up_proj)
        x, (weights, index) = draw(9, hidden, seed=5), routed(9, count, 2)
        experts.requires_grad_(False)
        made = Float8Experts(experts.gate_up_proj, experts.down_proj)
        assert relative(made(x, weights, index), experts(x, weights, index)) < 0.1

    def test_a_checkpoint(self, tiny: Callable[..., Path]) -> None:
        exact = load_checkpoint(tiny(), vision=False)
        model = load_checkpoint(tiny(), vision=False, bits="float8")
        assert isinstance(model.text.layers[0].self_attn.q_proj, Float8Linear)  # type: ignore[union-attr]
        # Random routers swap experts at the slightest change, so the whole is only held to be similar.
        assert torch.isfinite(logits(model)).all()
        assert relative(logits(model), logits(exact)) < 1


def logits(model: DiffusionGemma) -> torch.Tensor:
    return model.decode(CANVAS, model.prefill(IDS))


class TestOffload:
    @pytest.mark.parametrize(("count", "layers"), [(0, 1), (1, 2), (3, 6), (5, 6), (11, 30), (29, 30)])
    def test_hosted_layers_are_spread_and_never_the_last(self, count: int, layers: int) -> None:
        hosted = hosted_layers(count, layers)
        assert len(set(hosted)) == count
        assert hosted == sorted(hosted)
        assert all(0 <= one < layers - 1 for one in hosted)

    @pytest.mark.parametrize("count", [-1, 6])
    def test_too_many(self, count: int) -> None:
        with pytest.raises(ValueError, match="all but the last"):
            hosted_layers(count, 6)

    def test_places_go_by_the_layer(self) -> None:
        place = Placement("meta", [1, 11])
        places = {
            name: place.of(name).type
            for name in ("embed_tokens.weight", "layers.1.x", "layers.11", "layers.10.x")
        }
        assert list(places.values()) == ["meta", "cpu", "cpu", "meta"]

    @pytest.mark.parametrize("bits", [None, 8, 4, "float8"])
    @pytest.mark.parametrize("count", [1, 3, 5])
    def test_the_numbers_do_not_change(self, tiny: Callable[..., Path], bits: object, count: int) -> None:
        options = {"vision": False, "bits": bits}
        plain = load_checkpoint(tiny(), **options)  # type: ignore[arg-type]
        hosted = load_checkpoint(tiny(), offload_layers=count, **options)  # type: ignore[arg-type]
        assert torch.equal(logits(hosted), logits(plain))
        assert torch.equal(logits(hosted), logits(plain))

    def test_two_hosted_layers_are_on_the_device_at_a_time_and_one_afterwards(
        self, tiny: Callable[..., Path]
    ) -> None:
        model = load_checkpoint(tiny(), vision=False)
        layers = list(model.text.layers)[:-1]
        weights = [layer.mlp.up_proj.weight for layer in layers]  # type: ignore[union-attr]
        places = [weight.data_ptr() for weight in weights]
        offload = Offload(layers, "cpu")
        held: list[int] = []
        for layer, place in zip(layers, places, strict=True):
            layer.mlp.register_forward_hook(  # type: ignore[union-attr]
                lambda module, *_, place=place: held.append(
                    offload.on_device if module.up_proj.weight.data_ptr() != place else 99
                )
            )
        logits(model)
        assert set(held) == {2}
        assert offload.on_device == 1
        assert [layer.mlp.up_proj.weight.data_ptr() for layer in layers] == places  # type: ignore[union-attr]

    def test_a_layer_that_raises_lets_go(self, tiny: Callable[..., Path]) -> None:
        model = load_checkpoint(tiny(), vision=False)
        expected = logits(model)
        offload = Offload(list(model.text.layers)[:2], "cpu")
        hook = model.text.layers[1].mlp.register_forward_pre_hook(lambda *_: 1 / 0)  # type: ignore[union-attr]
        with pytest.raises(ZeroDivisionError):
            logits(model)
        assert offload.on_device == 1
        hook.remove()
        assert torch.equal(logits(model), expected)
