"""Proves that a folder loads exactly as stored, and that a bad one is refused in one clear sentence."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from refusal import change_json, refusal
from safetensors.torch import load_file, save_file
from torch import Tensor

from jev.model.checkpoint import load_checkpoint
from jev.model.weights.int8 import GROUP, SCALE_SUFFIX, dequantize, fit, quantize
from jev.model.weights.safetensors import INDEX, SINGLE, save_checkpoint, save_int8

MakeTiny = Callable[..., Path]

Q_PROJ = "model.decoder.layers.0.self_attn.q_proj.weight"


@pytest.fixture
def sharded(tiny: MakeTiny, tmp_path: Path) -> Path:
    """A checkpoint in three files that the test may break."""
    return Path(shutil.copytree(tiny(shards=3), tmp_path / "checkpoint"))


def change_tensors(folder: Path, change: Callable[[dict[str, Tensor]], Any]) -> None:
    tensors = {name: value.clone() for name, value in load_file(folder / SINGLE).items()}
    change(tensors)
    save_file(tensors, folder / SINGLE)


def state(folder: Path, **options: Any) -> dict[str, Tensor]:
    return load_checkpoint(folder, **options).text.state_dict()


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert value.dtype == other[name].dtype, name
        assert torch.equal(value, other[name]), name


# What loads


def test_parameters_are_the_stored_tensors(tiny: MakeTiny) -> None:
    stored, loaded = load_file(tiny() / SINGLE), state(tiny())
    assert torch.equal(loaded["embed_tokens.weight"], stored["model.decoder.embed_tokens.weight"])
    for n in range(6):
        encoder = stored[f"model.encoder.language_model.layers.{n}.layer_scalar"]
        assert torch.equal(loaded[f"layers.{n}.encoder_layer_scalar"], encoder)
        assert torch.equal(
            loaded[f"layers.{n}.layer_scalar"], stored[f"model.decoder.layers.{n}.layer_scalar"]
        )
    assert len(loaded) == sum(
        not name.startswith(("model.encoder.vision_tower.", "model.encoder.embed_vision.")) for name in stored
    )


def test_shards_load_as_one_file(tiny: MakeTiny) -> None:
    assert len(list(tiny(shards=3).glob("*.safetensors"))) == 3
    same(state(tiny(shards=3)), state(tiny()))


def test_vision_tensors_are_left_alone(folder: Path, tiny: MakeTiny) -> None:
    def spoil(tensors: dict[str, Tensor]) -> None:
        names = [name for name in tensors if "vision" in name]
        assert names
        for name in names:
            tensors[name] = torch.zeros(1, dtype=torch.int32)

    change_tensors(folder, spoil)
    same(state(folder, vision=False), state(tiny(vision=False)))
    assert "vision_tower" in refusal(folder)


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("wanted", [torch.float32, torch.bfloat16])
def test_dtype_on_disk_becomes_the_dtype_asked_for(
    tiny: MakeTiny, stored: torch.dtype, wanted: torch.dtype
) -> None:
    exact = state(tiny())
    loaded = state(tiny(dtype=stored), dtype=wanted)
    for name, value in loaded.items():
        assert value.dtype == wanted, name
        assert torch.equal(value, exact[name].to(stored).to(wanted)), name


# int8 groups


def test_int8_groups_are_within_half_a_step(tiny: MakeTiny) -> None:
    weight = state(tiny())["layers.0.experts.gate_up_proj"]
    values, scale = quantize(weight)
    assert values.dtype == torch.int8
    assert scale.shape == (*weight.shape[:-1], weight.shape[-1] // GROUP)
    error = (dequantize(values, scale) - weight).abs().unflatten(-1, (-1, GROUP))
    # Half a step of rounding, and 127 steps of a scale that is itself rounded to fp16.
    assert bool((error <= scale.float()[..., None] * 0.57).all())
    assert bool((values.unflatten(-1, (-1, GROUP)).abs().amax(-1) >= 126).all())


def test_int8_groups_of_zeros_stay_zeros() -> None:
    weight = torch.tensor([[0.0, 0.0], [-2.0, 1.0]])
    back = dequantize(*quantize(weight))
    assert torch.equal(back[0], weight[0])
    assert torch.allclose(back[1], weight[1], atol=0.01)


def test_rows_that_no_group_divides_are_one_group_each() -> None:
    values, scale = quantize(torch.randn(3, 50))
    assert (values.shape, scale.shape) == ((3, 50), (3, 1))


def test_fitting_finds_the_grid_that_values_came_from() -> None:
    generator = torch.Generator().manual_seed(0)
    levels = torch.randint(-31, 32, (64, 64), generator=generator).float()
    scale = torch.rand(64, 2, generator=generator).add(0.5).half().float().repeat_interleave(32, dim=1)
    weight = (levels * scale).bfloat16().float()

    def equal(pair: tuple[torch.Tensor, torch.Tensor]) -> float:
        return float((dequantize(*pair).bfloat16().float() == weight).float().mean())

    assert equal(fit(weight, torch.bfloat16)) > 0.95
    assert equal(quantize(weight)) < 0.9


def test_fitting_is_never_worse_than_the_nearest_values() -> None:
    weight = torch.randn(40, 96, generator=torch.Generator().manual_seed(1))
    fitted, nearest = (dequantize(*pair) - weight for pair in (fit(weight, torch.float32), quantize(weight)))
    assert fitted.square().mean() <= nearest.square().mean() * 1.001


def test_int8_checkpoint_round_trip(tiny: MakeTiny, tmp_path: Path) -> None:
    exact = state(tiny())
    shutil.copy(tiny() / "config.json", tmp_path)
    save_int8(exact, tmp_path / SINGLE)
    assert (tmp_path / SINGLE).stat().st_size < 0.4 * (tiny(vision=False) / SINGLE).stat().st_size
    loaded = state(tmp_path)
    for name, value in exact.items():
        expected = dequantize(*quantize(value)) if value.dim() > 1 else value
        assert torch.equal(loaded[name], expected), name


def test_int8_of_bfloat16_values_is_read_as_bfloat16_values(tiny: MakeTiny, tmp_path: Path) -> None:
    exact = {name: value.bfloat16().float() for name, value in state(tiny()).items()}
    shutil.copy(tiny() / "config.json", tmp_path)
    save_int8(exact, tmp_path / SINGLE, source=torch.bfloat16)
    for name, value in state(tmp_path).items():
        assert torch.equal(value, value.bfloat16().float()), name
        step = exact[name].abs().max() / 127
        assert bool(((value - exact[name]).abs() <= step).all()), name


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_float_checkpoint_round_trip(tiny: MakeTiny, tmp_path: Path, dtype: torch.dtype | None) -> None:
    exact = state(tiny())
    shutil.copy(tiny() / "config.json", tmp_path)
    save_checkpoint(exact, tmp_path / SINGLE, dtype=dtype)
    same(state(tmp_path), {name: value.to(dtype or value.dtype).float() for name, value in exact.items()})


def test_int8_tensor_without_scales_is_refused(folder: Path) -> None:
    change_tensors(folder, lambda t: t.update({Q_PROJ: t[Q_PROJ].to(torch.int8)}))
    assert Q_PROJ + SCALE_SUFFIX in refusal(folder)


def test_int8_scales_of_the_wrong_shape_are_refused(folder: Path) -> None:
    values, scale = quantize(load_file(folder / SINGLE)[Q_PROJ])
    change_tensors(folder, lambda t: t.update({Q_PROJ: values, Q_PROJ + SCALE_SUFFIX: scale[:5].clone()}))
    message = refusal(folder)
    assert Q_PROJ + SCALE_SUFFIX in message
    assert "[5, 2]" in message
    assert "[128]" in message


# Tensors that are refused


@pytest.mark.parametrize(
    "name",
    [
        Q_PROJ,
        "model.decoder.embed_tokens.weight",
        "model.decoder.self_conditioning.pre_norm.weight",
        "model.decoder.layers.5.experts.gate_up_proj",
        "model.decoder.layers.5.layer_scalar",
        "model.encoder.language_model.layers.5.layer_scalar",
    ],
)
def test_missing_tensor(folder: Path, name: str) -> None:
    change_tensors(folder, lambda tensors: tensors.pop(name))
    message = refusal(folder)
    assert f"tensor {name} is missing" in message
    assert str(folder) in message


def test_several_missing_tensors_are_counted(folder: Path) -> None:
    change_tensors(folder, lambda t: [t.pop(name) for name in list(t) if ".layers.3." in name])
    assert re.search(r"tensor model\.\S+\.layers\.3\.\S+ is missing \(and 2\d more\)", refusal(folder))


def test_misshapen_tensor(folder: Path) -> None:
    change_tensors(folder, lambda t: t.update({Q_PROJ: t[Q_PROJ][:-16].clone()}))
    message = refusal(folder)
    assert Q_PROJ in message
    assert "[112, 64]" in message
    assert "[128, 64]" in message


def test_transposed_tensor(folder: Path) -> None:
    change_tensors(folder, lambda t: t.update({Q_PROJ: t[Q_PROJ].T.contiguous()}))
    message = refusal(folder)
    assert "[64, 128]" in message
    assert "[128, 64]" in message


@pytest.mark.parametrize(
    "name",
    [
        "lm_head.weight",
        "model.decoder.layers.6.input_layernorm.weight",
        "model.decoder.layers.5.self_attn.v_proj.weight",
        "model.encoder.language_model.layers.0.input_layernorm.weight",
        "something.int8_scale",
    ],
)
def test_unexpected_text_tensor(folder: Path, name: str) -> None:
    change_tensors(folder, lambda tensors: tensors.update({name: torch.ones(3)}))
    message = refusal(folder)
    assert name in message
    assert "not part of this model" in message


def test_integer_tensor(folder: Path) -> None:
    change_tensors(folder, lambda t: t.update({Q_PROJ: t[Q_PROJ].to(torch.int32)}))
    message = refusal(folder)
    assert Q_PROJ in message
    assert "int32" in message


def test_config_of_another_model_size_names_the_tensor(folder: Path) -> None:
    change_json(folder / "config.json", lambda config: config["text_config"].update(vocab_size=1025))
    message = refusal(folder)
    assert "model.decoder.embed_tokens.weight" in message
    assert "[1024, 64]" in message
    assert "[1025, 64]" in message


# Files that are refused


def cut_header(data: bytes) -> bytes:
    return data[:100]


def cut_data(data: bytes) -> bytes:
    return data[:-1000]


def empty(data: bytes) -> bytes:
    return b""


def another_format(data: bytes) -> bytes:
    return b"GGUF" + data[4:]


DAMAGE = [cut_header, cut_data, empty, another_format]


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_file(folder: Path, damage: Callable[[bytes], bytes]) -> None:
    file = folder / SINGLE
    file.write_bytes(damage(file.read_bytes()))
    assert str(file) in refusal(folder)


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_shard(sharded: Path, damage: Callable[[bytes], bytes]) -> None:
    file = sharded / "model-00002-of-00003.safetensors"
    file.write_bytes(damage(file.read_bytes()))
    assert str(file) in refusal(sharded)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_missing_shard(sharded: Path, number: int) -> None:
    file = sharded / f"model-{number:05d}-of-00003.safetensors"
    file.unlink()
    message = refusal(sharded)
    assert f"{file.name} is missing" in message


def test_shard_without_a_tensor_of_the_index(sharded: Path) -> None:
    change_json(
        sharded / INDEX, lambda i: i["weight_map"].update({Q_PROJ: "model-00003-of-00003.safetensors"})
    )
    message = refusal(sharded)
    assert Q_PROJ in message
    assert "model-00003-of-00003.safetensors" in message


def test_tensor_missing_from_the_index(sharded: Path) -> None:
    change_json(sharded / INDEX, lambda index: index["weight_map"].pop(Q_PROJ))
    assert f"tensor {Q_PROJ} is missing" in refusal(sharded)


def test_index_with_a_file_that_is_no_name(sharded: Path) -> None:
    change_json(sharded / INDEX, lambda index: index["weight_map"].update({Q_PROJ: 1}))
    message = refusal(sharded)
    assert INDEX in message
    assert Q_PROJ in message


@pytest.mark.parametrize("text", ["{}", "[]", '{"weight_map": null}', "{", ""])
def test_index_that_is_none(sharded: Path, text: str) -> None:
    (sharded / INDEX).write_text(text)
    assert INDEX in refusal(sharded)


def test_no_tensors_at_all(folder: Path) -> None:
    (folder / SINGLE).unlink()
    message = refusal(folder)
    assert SINGLE in message
    assert "missing" in message


def test_not_a_folder(folder: Path) -> None:
    for path in (folder / "nothing", folder / SINGLE):
        assert str(path) in refusal(path)
