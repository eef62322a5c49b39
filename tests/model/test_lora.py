"""Proves that an adapter computes W x + (alpha / r) B A x, trains alone, and goes to PEFT files and back."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from jev.model.checkpoint import load_checkpoint
from jev.model.config import ModelConfig
from jev.model.diffusion_gemma import DiffusionGemma
from jev.model.errors import CheckpointError
from jev.model.lora import (
    PROJECTIONS,
    Adapter,
    LoraConfig,
    active,
    adapter_facts,
    adapter_of,
    attach,
    detach,
    install,
    load_adapter,
    merge,
    merge_checkpoint,
    save_adapter,
    target_shapes,
)
from jev.model.packed import Block, forward
from jev.model.quant import Bits
from jev.model.weights.identity import weights_digest
from jev.model.weights.int8 import SCALE_SUFFIX
from jev.model.weights.safetensors import TensorFiles, save_int8

Make = Callable[..., Adapter]
Q = "base_model.model.model.decoder.layers.0.self_attn.q_proj"


def logits(model: DiffusionGemma) -> Tensor:
    """Of two rows of a canvas behind a prompt, over the whole vocabulary; with gradients if there are any."""
    block = Block(model.empty_prefix(), tokens=range(5, 30), canvases=[[7, 8, 9, 10]], slots=[[1, 2]])
    hidden, _ = forward(model.text, [block])
    return model.text.project(hidden)


def far(one: Tensor, other: Tensor) -> float:
    return (one - other).abs().max().item()


@pytest.fixture
def model(tiny: Callable[..., Path]) -> DiffusionGemma:
    return load_checkpoint(tiny())


@pytest.fixture
def config(tiny: Callable[..., Path]) -> ModelConfig:
    return ModelConfig.from_folder(tiny())


@pytest.fixture
def saved(config: ModelConfig, random_adapter: Make, tmp_path: Path) -> Path:
    save_adapter(tmp_path / "a", random_adapter(config.text), base_name="tiny", base_fingerprint="f" * 64)
    return tmp_path / "a"


# What it computes


@torch.no_grad()
def test_one_that_is_on_adds_its_product(model: DiffusionGemma, random_adapter: Make) -> None:
    adapter = random_adapter(model.config.text, rank=3, alpha=12)
    before = logits(model)
    install(model, {"a": adapter})
    assert torch.equal(logits(model), before)
    with active(model, "a"):
        live = logits(model)
    assert far(live, before) > 1
    detach(model)
    for name, (a, b) in adapter.tensors.items():
        weight = model.text.get_submodule(name).weight
        weight.copy_((weight.double() + 4 * b.double() @ a.double()).float())
    assert far(live, logits(model)) < 1e-4


@torch.no_grad()
def test_several_do_not_mix(model: DiffusionGemma, random_adapter: Make) -> None:
    text = model.config.text
    adapters = {"a": random_adapter(text, 1), "b": random_adapter(text, 2, targets=("v_proj",), rank=2)}
    alone = {}
    for name, adapter in adapters.items():
        install(model, {name: adapter})
        with active(model, name):
            alone[name] = logits(model)
    before = logits(model)
    install(model, adapters)
    with active(model, "a"):
        assert torch.equal(logits(model), alone["a"])
        with active(model, "b"):
            assert torch.equal(logits(model), alone["b"])
            with active(model, None):
                assert torch.equal(logits(model), before)
        with pytest.raises(RuntimeError), active(model, "b"):
            raise RuntimeError
        assert torch.equal(logits(model), alone["a"])
    assert torch.equal(logits(model), before)
    with pytest.raises(KeyError), active(model, "c"):
        pass


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_merged_is_as_live(tiny: Callable[..., Path], random_adapter: Make, dtype: torch.dtype) -> None:
    model = load_checkpoint(tiny(), dtype=dtype)
    adapter = random_adapter(model.config.text)
    install(model, {"a": adapter})
    with active(model, "a"):
        live = logits(model)
    detach(model)
    kept = model.text.layers[0].self_attn.q_proj.weight.clone()
    merge(model, adapter)
    merged = model.text.layers[0].self_attn.q_proj.weight
    assert merged.dtype == dtype
    a, b = adapter.tensors["layers.0.self_attn.q_proj"]
    assert torch.equal(merged, (kept.float() + 2 * (b @ a)).to(dtype))
    if dtype == torch.float32:  # in bfloat16 rounding alone swaps experts of the tiny model
        assert far(live, logits(model)) < 1e-4


@pytest.mark.parametrize("bits", [8, 4])
def test_packed_weights_take_none_for_good(
    tiny: Callable[..., Path], random_adapter: Make, bits: Bits
) -> None:
    model = load_checkpoint(tiny(), bits=bits)
    with pytest.raises(CheckpointError, match=r"layers\.0\.self_attn\.q_proj is packed"):
        merge(model, random_adapter(model.config.text))


def test_full_layers_have_no_v_proj(config: ModelConfig) -> None:
    sliding = [index for index, layer in enumerate(config.text.layers) if layer.sliding]
    assert 0 < len(sliding) < len(config.text.layers)
    assert list(target_shapes(config.text, ("v_proj",))) == [
        f"layers.{index}.self_attn.v_proj" for index in sliding
    ]
    assert len(target_shapes(config.text)) == 6 * len(config.text.layers) + len(sliding)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rank": 0}, "rank must be a whole number from 1 to 1024, got 0"),
        ({"rank": True}, "rank must be a whole number"),
        ({"alpha": float("nan")}, "alpha must be a finite number above 0, got nan"),
        ({"alpha": "2"}, "alpha must be a finite number above 0, got '2'"),
        ({"targets": ()}, "targets must name at least one of q_proj"),
        ({"targets": ("q_proj", "router")}, "target 'router' is not one of q_proj"),
    ],
)
def test_bad_configs(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        LoraConfig(**{"rank": 4, "alpha": 8, **options})


# Training


@pytest.mark.parametrize("bits", [None, 8, 4])
def test_it_trains_alone(tiny: Callable[..., Path], bits: Bits | None) -> None:
    model = load_checkpoint(tiny(), bits=bits)
    names = set(model.state_dict())
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        before = logits(model)
    trained = attach(model, LoraConfig(4, 8), generator=torch.Generator().manual_seed(0))
    assert len(trained) == 2 * len(target_shapes(model.config.text))
    with torch.no_grad():
        assert torch.equal(logits(model), before)  # B is 0
    optimiser = torch.optim.AdamW(trained, lr=0.01)
    losses = []
    for _ in range(4):
        loss = -logits(model).log_softmax(-1)[:, 3].mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2
    assert all(one.grad is not None and one.grad.abs().max() > 0 for one in trained)
    assert not any(one.requires_grad for one in model.parameters())
    assert set(model.state_dict()) == names
    assert all(torch.equal(value, kept[name]) for name, value in model.state_dict().items())
    adapter = adapter_of(model)
    with torch.no_grad():
        after = logits(model)
        with active(model, None):
            assert torch.equal(logits(model), before)
        install(model, {"mine": adapter})
        with active(model, "mine"):
            assert far(logits(model), after) < 1e-5


def test_a_start_is_decided_by_the_generator(model: DiffusionGemma) -> None:
    def begun(seed: int) -> Adapter:
        detach(model)
        attach(model, LoraConfig(2, 2, ("q_proj",)), generator=torch.Generator().manual_seed(seed))
        return adapter_of(model)

    assert begun(1).digest == begun(1).digest != begun(2).digest
    for a, b in begun(1).tensors.values():
        assert not b.any()
        assert a.abs().max() <= a.shape[1] ** -0.5  # Kaiming uniform with a = sqrt(5)
        assert a.std().item() == pytest.approx((3 * a.shape[1]) ** -0.5, rel=0.2)


def test_it_goes_on_from_another(model: DiffusionGemma, random_adapter: Make) -> None:
    first = random_adapter(model.config.text)
    attach(model, first.config, start=first)
    assert adapter_of(model).digest == first.digest
    with pytest.raises(ValueError, match="has adapters already"):
        attach(model, first.config)
    detach(model)
    with pytest.raises(ValueError, match="no adapter is attached"):
        adapter_of(model)


# Files


def test_to_files_and_back(
    saved: Path, config: ModelConfig, random_adapter: Make, tiny: Callable[..., Path]
) -> None:
    loaded = load_adapter(saved, config.text, base_fingerprint="f" * 64)
    assert loaded.digest == random_adapter(config.text).digest
    assert (loaded.base_name, loaded.base_fingerprint) == ("tiny", "f" * 64)
    about = json.loads((saved / "adapter_config.json").read_text())
    assert (about["peft_type"], about["r"], about["lora_alpha"]) == ("LORA", 4, 8.0)
    stored = load_file(saved / "adapter_model.safetensors")
    modules = {name.removeprefix("base_model.model.").rpartition(".lora_")[0] for name in stored}
    assert {f"{name}.weight" for name in modules} <= set(TensorFiles(tiny()))
    assert stored[f"{Q}.lora_A.weight"].shape == (4, config.text.hidden_size)
    facts = adapter_facts(saved)
    assert (facts.rank, facts.targets, facts.layers) == (4, PROJECTIONS, len(config.text.layers))
    assert facts.parameters == loaded.parameters
    assert sorted(path.name for path in saved.iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]


def test_a_list_of_targets_is_read_as_peft_means_it(
    config: ModelConfig, random_adapter: Make, tmp_path: Path
) -> None:
    adapter = random_adapter(config.text, targets=("q_proj", "down_proj"))
    save_adapter(tmp_path, adapter, base_name="", base_fingerprint="")
    change(tmp_path, target_modules=["down_proj", "self_attn.q_proj"], jev=None, use_dora=False, bias="none")
    about = json.loads((tmp_path / "adapter_config.json").read_text())
    assert "jev" not in about
    loaded = load_adapter(tmp_path, config.text, base_fingerprint="anything")
    assert loaded.digest == adapter.digest


def change(folder: Path, **keys: Any) -> None:
    """Set keys of the config; None takes one out."""
    path = folder / "adapter_config.json"
    about = {**json.loads(path.read_text()), **keys}
    path.write_text(json.dumps({key: value for key, value in about.items() if value is not None}))


def change_tensors(folder: Path, edit: Callable[[dict[str, Tensor]], object]) -> None:
    tensors = load_file(folder / "adapter_model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "adapter_model.safetensors")


TENSOR_FAULTS: dict[str, tuple[Callable[[dict[str, Tensor]], object], str]] = {
    "missing": (lambda t: t.pop(f"{Q}.lora_B.weight"), rf"tensor {Q}\.lora_B\.weight is missing in "),
    "extra": (
        lambda t: t.update({"x.lora_A.weight": torch.ones(1)}),
        r"tensor x\.lora_A\.weight in .* is not part",
    ),
    "shape": (
        lambda t: t.update({f"{Q}.lora_A.weight": torch.ones(4, 7)}),
        rf"tensor {Q}\.lora_A\.weight in .*safetensors has shape \[4, 7\], expected \[4, 64\]",
    ),
    "rank": (
        lambda t: t.update({name: one[:3].clone() for name, one in t.items() if "lora_A" in name}),
        rf"tensor {Q}\.lora_A\.weight in .* has shape \[3, 64\], expected \[4, 64\]",
    ),
    "integers": (
        lambda t: t.update({f"{Q}.lora_A.weight": torch.ones(4, 64, dtype=torch.int32)}),
        r"has type torch\.int32, expected floating point",
    ),
    "8 bits not finite": (
        lambda t: t.update({f"{Q}.lora_A.weight": torch.full((4, 64), torch.nan).to(torch.float8_e4m3fn)}),
        r"has values that are not finite",
    ),
    "64 bits too large": (
        lambda t: t.update({f"{Q}.lora_A.weight": torch.full((4, 64), 1e300, dtype=torch.float64)}),
        r"has values that are not finite",
    ),
    "not finite": (lambda t: t[f"{Q}.lora_A.weight"].fill_(torch.nan), r"has values that are not finite"),
}


@pytest.mark.parametrize("fault", TENSOR_FAULTS)
def test_bad_tensors(saved: Path, config: ModelConfig, fault: str) -> None:
    edit, said = TENSOR_FAULTS[fault]
    change_tensors(saved, edit)
    with pytest.raises(CheckpointError, match=said) as error:
        load_adapter(saved, config.text)
    assert "\n" not in str(error.value)
    assert str(saved) in str(error.value)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"r": 5}, r"tensor .*lora_A\.weight in .* has shape \[4, 64\], expected \[5, 64\]"),
        ({"r": "4"}, "rank must be a whole number from 1 to 1024, got '4'"),
        ({"lora_alpha": 0}, "alpha must be a finite number above 0"),
        ({"lora_alpha": 10**400}, "alpha must be a finite number above 0"),
        ({"target_modules": None}, "target_modules is missing"),
        ({"target_modules": ["q_proj", "qkv"]}, "target_modules has 'qkv', which is not one of q_proj"),
        ({"target_modules": "("}, "target_modules is not a pattern"),
        ({"target_modules": "all-linear"}, "target_modules means no linear of this model"),
        (
            {"target_modules": r"(a|.|[a-z.]|\w)+(?!.)(?<=[A-Z])"},
            "a pattern that takes over 2 s for one name",
        ),
        ({"target_modules": 7}, "target_modules is neither a pattern nor a list"),
        ({"target_modules": r".*\.layers\.[01]\..*"}, r"leaves out layers\.2\..* some layers only"),
        ({"peft_type": "IA3"}, "peft_type is 'IA3', expected 'LORA'"),
        ({"use_dora": True}, "use_dora is 'True', which is not supported"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights is 'pissa', which is not supported"),
        ({"of_a_later_peft": 1}, "of_a_later_peft is '1', which is not supported"),
        ({"rank_pattern": {"q_proj": 2}}, "rank_pattern is .* not supported"),
        ({"jev": []}, "jev is not a JSON object"),
    ],
)
def test_bad_configs_of_files(saved: Path, config: ModelConfig, keys: dict[str, Any], said: str) -> None:
    change(saved, **keys)
    with pytest.raises(CheckpointError, match=said) as error:
        load_adapter(saved, config.text)
    assert str(saved) in str(error.value)
    assert "\n" not in str(error.value)


def test_bad_files(saved: Path, config: ModelConfig, tiny: Callable[..., Path], tmp_path: Path) -> None:
    def refused(said: str, folder: Path = saved, **options: Any) -> None:
        with pytest.raises(CheckpointError, match=said):
            load_adapter(folder, options.pop("text", config.text), **options)

    refused(
        "was made for base model 'tiny' .weights ffffffffffff., this one has weights 0000",
        base_fingerprint="0" * 64,
    )
    wider = ModelConfig.from_folder(tiny(hidden=80)).text
    refused(r"has shape \[4, 64\], expected \[4, 80\]", text=wider)
    refused("is not an adapter folder", tmp_path / "none")
    tensors = saved / "adapter_model.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-100])
    refused(r"adapter_model\.safetensors is damaged")
    tensors.unlink()
    refused(r"adapter_model\.safetensors is missing in")
    (saved / "adapter_config.json").write_text("{")
    refused(r"adapter_config\.json cannot be read")
    (saved / "adapter_config.json").write_text('{"a":' * 100_000)
    refused(r"adapter_config\.json cannot be read: it is nested too deep")
    (saved / "adapter_config.json").unlink()
    refused(r"adapter_config\.json is missing in")


# Merged checkpoints


@torch.no_grad()
def test_a_merged_checkpoint_is_the_live_model(
    tiny: Callable[..., Path], random_adapter: Make, tmp_path: Path
) -> None:
    source = tiny(shards=3)
    model = load_checkpoint(source)
    adapter = random_adapter(model.config.text, targets=("q_proj", "v_proj"))
    merge_checkpoint(source, adapter, tmp_path / "out", name="tiny+a")
    install(model, {"a": adapter})
    with active(model, "a"):
        assert far(logits(load_checkpoint(tmp_path / "out")), logits(model)) < 1e-4
    old, new = TensorFiles(source), TensorFiles(tmp_path / "out")
    assert new.files == old.files
    for name in old:
        before, after = (files.tensor(name, torch.float32, "cpu") for files in (old, new))
        changed = name.endswith(("q_proj.weight", "v_proj.weight")) and ".decoder." in name
        assert torch.equal(before, after) != changed
    assert json.loads((tmp_path / "out" / "jev.json").read_text())["name"] == "tiny+a"
    assert weights_digest(tmp_path / "out") != weights_digest(source)
    with pytest.raises(CheckpointError, match="out is not an empty folder"):
        merge_checkpoint(source, adapter, tmp_path / "out", name="again")


def test_a_merge_that_fails_leaves_nothing(
    tiny: Callable[..., Path], random_adapter: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError("No space left on device")

    adapter = random_adapter(ModelConfig.from_folder(tiny()).text)
    monkeypatch.setattr("jev.model.lora.checkpoint.shutil.copyfile", full)
    with pytest.raises(OSError, match="No space left"):
        merge_checkpoint(tiny(), adapter, tmp_path / "out", name="x")
    assert list(tmp_path.iterdir()) == []


def test_a_merge_that_cannot_be_put_in_place_leaves_nothing(
    tiny: Callable[..., Path], random_adapter: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = random_adapter(ModelConfig.from_folder(tiny()).text, size=1e6)
    with pytest.raises(CheckpointError, match=r"tensor .* is too large for float16 with the adapter merged"):
        merge_checkpoint(tiny(), adapter, tmp_path / "out", name="x", dtype=torch.float16)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(Path, "is_mount", lambda _: True)
    with pytest.raises(CheckpointError, match="is a mount point; name a folder in it"):
        merge_checkpoint(tiny(), adapter, tmp_path, name="x")


def test_int8_files_are_decoded_first(
    tiny: Callable[..., Path], random_adapter: Make, tmp_path: Path
) -> None:
    source = Path(shutil.copytree(tiny(vision=False), tmp_path / "source"))
    model = load_checkpoint(source)
    save_int8(dict(model.text.state_dict()), source / "model.safetensors", source=torch.bfloat16)
    merge_checkpoint(
        source, random_adapter(model.config.text), tmp_path / "out", name="x", dtype=torch.bfloat16
    )
    new = load_file(tmp_path / "out" / "model.safetensors")
    assert not any(name.endswith(SCALE_SUFFIX) for name in new)
    assert {one.dtype for one in new.values()} == {torch.bfloat16}
    embedding = "model.decoder.embed_tokens.weight"
    assert torch.equal(new[embedding].float(), TensorFiles(source).tensor(embedding, torch.float32, "cpu"))
