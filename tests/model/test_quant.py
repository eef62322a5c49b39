"""Proves that packed modules compute with exactly the weights that they hold, and how much less they hold."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from jev.engine import Engine
from jev.model import embedded
from jev.model.checkpoint import load_checkpoint
from jev.model.moe import Experts
from jev.model.quant import Bits, Packed, PackedEmbedding, PackedExperts, PackedLinear, modules, pack
from jev.model.read import Branch, Canvas, read
from jev.model.weights.int8 import dequantize
from jev.model.weights.safetensors import TensorFiles, hf_name, save_int8
from jev.schemas import Choice, Noul, Score, SystemOneRequest

BITS: tuple[Bits, Bits] = (8, 4)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def decoded(packed: Packed) -> Tensor:
    return packed.decode(slice(None), torch.float32)


def stored_bytes(module: nn.Module) -> int:
    return sum(tensor.nbytes for tensor in (*module.parameters(), *module.buffers()))


# Packing


@given(
    rows=st.integers(1, 5),
    width=st.sampled_from([1, 2, 7, 24, 32, 33, 64, 96]),
    seed=st.integers(0, 10**6),
    scale=st.sampled_from([1e-4, 0.05, 3.0]),
    shift=st.sampled_from([0.0, 1.0]),
)
@pytest.mark.parametrize("bits", BITS)
def test_values_are_within_half_a_step(
    bits: Bits, rows: int, width: int, seed: int, scale: float, shift: float
) -> None:
    weight = random(rows, width, seed=seed) * scale + shift * scale
    packed = pack(weight, bits)
    group = 32 if width % 32 == 0 else width
    groups = weight.unflatten(-1, (-1, group))
    # int8 spans -max..max in 254 steps, int4 min..max in 15. Scales in fp16 add a little: relatively,
    # and for tiny weights a step of 2^-24 of the scale itself.
    span = 2 * groups.abs().amax(-1) / 254 if bits == 8 else (groups.amax(-1) - groups.amin(-1)) / 15
    error = (decoded(packed) - weight).abs().unflatten(-1, (-1, group))
    fp16 = 2**-10 * groups.abs().amax(-1) + 127 * 2**-25
    assert (error <= (span / 2 + fp16)[..., None] + 1e-7).all()


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("value", [0.0, 1.5, -2.25])
def test_constant_groups(bits: Bits, value: float) -> None:
    assert torch.allclose(decoded(pack(torch.full((3, 64), value), bits)), torch.tensor(value), rtol=1e-3)


def test_size() -> None:
    weight = random(128, 64)
    assert stored_bytes(pack(weight, 8)) == 128 * 64 + 2 * 128 * 2
    assert stored_bytes(pack(weight, 4)) == 128 * 64 // 2 + 2 * 2 * 128 * 2
    assert [pack(weight, bits).bits for bits in BITS] == [8, 4]


def test_large_tensors_are_packed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = pack(random(4, 10, 64), 4)
    monkeypatch.setattr("jev.model.quant.packed.CHUNK", 7 * 64)
    assert torch.equal(decoded(pack(random(4, 10, 64), 4)), decoded(whole))


# Modules


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("block", [64, 1000, 2**20])
@pytest.mark.parametrize(("out", "width"), [(96, 64), (50, 24), (1, 33)])
def test_linear(bits: Bits, block: int, out: int, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modules, "BLOCK", block)
    packed = pack(random(out, width), bits)
    x = random(9, width, seed=1)
    assert torch.allclose(PackedLinear(packed)(x), F.linear(x, decoded(packed)), atol=1e-5)
    low = PackedLinear(packed)(x.bfloat16())
    assert low.dtype == torch.bfloat16
    assert torch.allclose(low.float(), F.linear(x, decoded(packed)), atol=0.2, rtol=0.05)


@pytest.mark.parametrize("bits", BITS)
def test_embedding(bits: Bits) -> None:
    packed = pack(random(300, 64), bits)
    table = PackedEmbedding(packed, torch.float32)
    ids = torch.tensor([7, 299, 7, 0])
    assert torch.equal(table(ids), decoded(packed)[ids])
    assert torch.equal(table.weight, decoded(packed))
    x = random(3, 64, seed=2)
    assert torch.allclose(table.unembed(x), x @ decoded(packed).T, atol=1e-4)
    assert PackedEmbedding(packed, torch.bfloat16)(ids).dtype == torch.bfloat16


@pytest.mark.parametrize("bits", BITS)
def test_experts(bits: Bits, tiny: Callable[..., Path]) -> None:
    config = load_checkpoint(tiny()).config.text
    gate_up, down = (
        pack(random(config.num_experts, *shape, seed=seed), bits)
        for seed, shape in enumerate(
            [
                (2 * config.moe_intermediate_size, config.hidden_size),
                (config.hidden_size, config.moe_intermediate_size),
            ]
        )
    )
    plain = Experts(config)
    plain.gate_up_proj.data, plain.down_proj.data = decoded(gate_up), decoded(down)
    x = random(11, config.hidden_size, seed=3)
    index = torch.randint(0, config.num_experts - 1, (11, 2))  # nobody chooses the last one
    weights = torch.rand(11, 2)
    assert torch.allclose(
        PackedExperts(gate_up, down)(x, weights, index), plain(x, weights, index), rtol=1e-4, atol=1e-3
    )


# Models


def reading(model: Any) -> Tensor:
    """Logits of one read over all ids."""
    prompt, canvas = list(range(5, 40)), (3, 9, 700, 4)
    vocabulary = tuple(range(model.config.text.vocab_size))
    branch = Branch(model.prefill(prompt))
    [[found]] = read(model, [(branch, [Canvas(canvas, (2,), (vocabulary,))])], mass=True)
    assert found.log_mass is not None
    assert abs(found.log_mass[0]) < 1e-3
    return torch.tensor(found.logits[0])


@pytest.mark.parametrize("bits", BITS)
def test_model_reads_with_the_weights_that_it_holds(bits: Bits, tiny: Callable[..., Path]) -> None:
    packed, plain = load_checkpoint(tiny(), bits=bits), load_checkpoint(tiny())
    original = reading(plain)
    for path, module in packed.text.named_modules():
        if isinstance(module, (PackedLinear, PackedEmbedding)):
            weight = module.weight if isinstance(module, PackedEmbedding) else decoded(module.weight)
            plain.text.get_parameter(f"{path}.weight").data = weight
        elif isinstance(module, PackedExperts):
            for name in ("gate_up_proj", "down_proj"):
                plain.text.get_parameter(f"{path}.{name}").data = decoded(getattr(module, name))
    assert torch.allclose(reading(packed), reading(plain), atol=1e-4)
    assert 1e-4 < (reading(packed) - original).abs().max() < (0.5 if bits == 8 else 5.0)


@pytest.mark.parametrize("bits", BITS)
def test_what_stays_as_it_is(bits: Bits, tiny: Callable[..., Path]) -> None:
    packed, plain = load_checkpoint(tiny(), bits=bits), load_checkpoint(tiny())
    kept = dict(packed.text.named_parameters())
    assert kept
    for name, value in kept.items():
        assert torch.equal(value, plain.text.get_parameter(name))
        assert value.dim() == 1 or name.endswith("router.proj.weight")
    table = packed.text.embed_tokens
    assert isinstance(table, PackedEmbedding)
    assert table.table.bits == 8
    assert {m.weight.bits for m in packed.modules() if isinstance(m, PackedLinear)} == {bits}
    assert packed.vision is not None
    assert not any(isinstance(module, (Packed, PackedLinear)) for module in packed.vision.modules())


def test_int8_files_are_taken_over_as_they_are(tiny: Callable[..., Path], tmp_path: Path) -> None:
    """Even where they were made from bfloat16, whose rounding is part of their values."""
    source = load_checkpoint(tiny(vision=False))
    for file in ("config.json", "generation_config.json"):
        (tmp_path / file).write_bytes((tiny(vision=False) / file).read_bytes())
    tensors = {name: value.bfloat16() for name, value in source.text.state_dict().items()}
    save_int8(tensors, tmp_path / "model.safetensors", source=torch.bfloat16)
    packed, plain = load_checkpoint(tmp_path, bits=8), load_checkpoint(tmp_path)
    files = TensorFiles(tmp_path)
    for path, module in packed.text.named_modules():
        if isinstance(module, PackedLinear):
            values, scale, rounded = files.int8_groups(hf_name(f"{path}.weight"))  # type: ignore[misc]
            assert rounded
            assert torch.equal(module.weight.values, values)
            assert torch.equal(decoded(module.weight), plain.text.get_parameter(f"{path}.weight"))
            assert torch.equal(decoded(module.weight), dequantize(values, scale).bfloat16().float())
    assert torch.allclose(reading(packed), reading(plain), atol=1e-5)


# The embedded model

REQUEST = SystemOneRequest(
    state={"mail": "My card was charged twice and nobody answers. I want my money back!"},
    questions={
        "refund": Noul("Does the customer want money back?"),
        "topic": Choice("What is it about?", ["billing", "travel", "music", "weather"]),
        "anger": Score("How upset is the customer?", ["calm", "annoyed", "furious"]),
    },
    samples=2,
    diagnostics=True,
)


def answers(engine: Engine) -> list[float]:
    response = engine.decide(REQUEST)
    values: list[float] = []
    for answer in response.answers.values():
        values += [answer.noul] if answer.type == "noul" else answer.probabilities.values()
    assert response.x_diagnostics is not None
    return values + [one["label_mass"] for one in response.x_diagnostics["questions"].values()]


def test_embedded_model_packed(engine: Engine) -> None:
    packed = Engine.load(dtype="int8")
    expected, found = answers(engine), answers(packed)
    assert max(abs(p - q) for p, q in zip(expected, found, strict=True)) < 1e-4

    config = json.loads((embedded.path() / "config.json").read_text())["text_config"]
    matrices = [p for p in engine.model.text.parameters() if p.dim() > 1]
    routers = config["num_hidden_layers"] * config["num_experts"] * config["hidden_size"]
    weights = sum(p.numel() for p in matrices) - routers
    rest = stored_bytes(engine.model.text) - 4 * weights
    # A byte a weight and two for 32 of them; 16-wide experts are one group a row.
    experts = config["num_hidden_layers"] * config["num_experts"] * config["hidden_size"]
    groups = (weights - 16 * experts) // 32 + experts
    assert stored_bytes(packed.model.text) == weights + 2 * groups + rest
    assert stored_bytes(packed.model.text) < 0.27 * stored_bytes(engine.model.text)


def test_embedded_model_in_four_bits(engine: Engine) -> None:
    packed = Engine.load(dtype="int4")
    assert stored_bytes(packed.model.text) < 0.20 * stored_bytes(engine.model.text)
    difference = max(abs(p - q) for p, q in zip(answers(engine), answers(packed), strict=True))
    print(f"int4 against fp32: largest difference of a probability {difference:.3f}")
    assert difference < 0.4
