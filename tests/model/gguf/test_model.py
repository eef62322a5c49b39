"""Proves that a GGUF file is the model that its folder is, up to the rounding of its types."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from jev.model import embedded
from jev.model.checkpoint import load_checkpoint
from jev.model.config import ModelConfig
from jev.model.diffusion_gemma import DiffusionGemma
from jev.model.errors import CheckpointError
from jev.model.gguf import GGUFFile
from jev.model.gguf.container import TYPES
from jev.model.gguf.tokenizer import spec_of
from jev.model.gguf.write import Stored
from jev.model.lora import LoraConfig, attach
from jev.model.packed import Block, forward
from jev.model.quant.block_modules import BlockEmbedding, BlockExperts, BlockLinear
from jev.model.quant.blocks import Blocks, decode
from jev.model.source import gguf_path, read_card, read_config, read_tokenizer
from jev.model.tokenizer import Tokenizer
from jev.model.weights.identity import weights_digest
from jev.model.weights.safetensors import save_checkpoint

QUANTISED = [type for type in TYPES if type not in ("F32", "F16", "BF16")]


def logits(model: DiffusionGemma, steps: int = 1) -> Tensor:
    """Of a canvas behind a prompt, all ids; a second step looks at the first's prediction."""
    kv = model.prefill(list(range(5, 40)))
    found = model.decode([3, 9, 700, 4], kv)
    return found if steps == 1 else model.decode([3, 9, 700, 4], kv, previous=found / 0.8)


def dequantised(path: Path, folder: Path, source: Any) -> DiffusionGemma:
    """The same weights as a folder of plain fp32 tensors."""
    folder.mkdir()
    for file in ("config.json", "generation_config.json", "tokenizer.json"):
        shutil.copyfile(source.folder / file, folder / file)
    file = GGUFFile(path)
    names = {
        one.name: name
        for one, name in zip(source.tensors("F32"), source.model.text.state_dict(), strict=False)
    }
    tensors = {own: decode(file.raw(name), file.tensors[name].type) for name, own in names.items()}
    save_checkpoint(tensors, folder / "model.safetensors")
    return load_checkpoint(folder, vision=False)


@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("steps", [1, 2])
def test_logits_are_those_of_the_dequantised_folder(
    type: str,
    steps: int,
    route: str,
    written: Callable[[str], Path],
    source: Any,
    smooth_source: Any,
    tmp_path: Path,
) -> None:
    exact = route == "torch" or type in ("F32", "F16", "BF16")
    # Activations in int8 may swap experts that are rated alike.
    of = source if exact else smooth_source
    path = written(type) if exact else of.write(tmp_path / f"{type}.gguf", type)
    model, plain = load_checkpoint(path), dequantised(path, tmp_path / "plain", of)
    found, expected = logits(model, steps), logits(plain, steps)
    if exact:
        assert torch.allclose(found, expected, atol=1e-4)
    else:
        # They move logits by about two percent of their spread.
        assert (found - expected).square().mean().sqrt() < 0.04 * expected.std()


def test_a_float_file_is_the_checkpoint(written: Callable[[str], Path], source: Any) -> None:
    model = load_checkpoint(written("F32"))
    assert torch.equal(logits(model), logits(source.model))
    for name, value in source.model.text.state_dict().items():
        assert torch.equal(model.text.state_dict()[name], value)
    assert load_checkpoint(written("F32"), dtype=torch.bfloat16).text.norm.weight.dtype == torch.bfloat16


@pytest.mark.parametrize("type", QUANTISED)
def test_quantised_weights_stay_in_their_blocks(
    type: str, written: Callable[[str], Path], route: str
) -> None:
    model = load_checkpoint(written(type))
    linears = [(n, m) for n, m in model.text.named_modules() if isinstance(m, nn.Linear)]
    assert all(name.endswith("router.proj") for name, _ in linears)
    assert not any(isinstance(m, nn.Embedding) for m in model.modules())
    held = [m for m in model.modules() if isinstance(m, Blocks)]
    assert all((one.raw is None) == (route == "kernels") for one in held)
    size = sum(one.kernels.nbytes if one.kernels else one.raw.nbytes for one in held)  # type: ignore[union-attr]
    assert size <= 1.01 * written(type).stat().st_size
    modules = {m.__class__ for m in model.modules()}
    assert {BlockEmbedding, BlockExperts, BlockLinear} <= modules
    assert all(p.dtype == torch.float32 and not p.requires_grad for p in model.parameters())


def test_weights_lie_in_the_mapped_file_until_they_are_used(
    written: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jev.model.native.available", lambda: False)
    model = load_checkpoint(written("Q8_0"))
    raw = model.text.embed_tokens.table.raw
    file = GGUFFile(written("Q8_0"))
    assert torch.equal(raw, file.raw("token_embd.weight"))
    assert raw.storage_offset() == 0
    assert not raw.is_shared()


def test_split_experts_are_joined(
    source: Any, tmp_path: Path, written: Callable[[str], Path], route: str
) -> None:
    whole = source.tensors("Q8_0")
    tensors: list[Stored] = []
    for one in whole:
        if "ffn_gate_up_exps" not in one.name:
            tensors.append(one)
            continue
        experts, both, width = one.shape
        for part, name in enumerate(("gate", "up")):
            rows = slice(part * both // 2, (part + 1) * both // 2)
            tensors.append(
                Stored(
                    one.name.replace("gate_up", name),
                    one.type,
                    (experts, both // 2, width),
                    lambda one=one, rows=rows: one.data()[:, rows].contiguous(),
                )
            )
    path = source.write(tmp_path / "split.gguf", tensors=tensors)
    assert torch.equal(logits(load_checkpoint(path)), logits(load_checkpoint(written("Q8_0"))))
    up = next(n for n, one in enumerate(tensors) if one.name == "blk.0.ffn_up_exps.weight")
    other = next(one for one in source.tensors("Q5_0") if one.name == "blk.0.ffn_gate_up_exps.weight")
    mixed = Stored(tensors[up].name, "Q5_0", tensors[up].shape, lambda: other.data()[:, :96].contiguous())
    path = source.write(tmp_path / "mixed.gguf", tensors=[*tensors[:up], mixed, *tensors[up + 1 :]])
    with pytest.raises(CheckpointError, match=r"ffn_gate_exps\.weight and .*ffn_up_exps\.weight .*same type"):
        load_checkpoint(path)


# Config and identity


def test_the_config_is_that_of_the_folder(source: Any, written: Callable[[str], Path]) -> None:
    config = read_config(written("Q4_K"))
    assert config == source.model.config
    folder = source.model.config.generation
    assert {key: folder.get(key) for key in config.generation if key != "sampler_config"} == {
        key: value for key, value in config.generation.items() if key != "sampler_config"
    }
    assert config.generation["sampler_config"] == {"entropy_bound": 0.1}


def test_the_other_name_of_the_architecture(source: Any, tmp_path: Path) -> None:
    metadata = {k.replace("diffusion-gemma.", "diffusion_gemma."): v for k, v in source.metadata.items()}
    removed = {k: None for k in source.metadata if k.startswith("diffusion-gemma.")}
    metadata |= removed | {"general.architecture": "diffusion_gemma"}
    assert read_config(source.write(tmp_path / "m.gguf", metadata=metadata)) == source.model.config


def test_ends_are_completed_and_sampler_keys_optional(source: Any, tmp_path: Path) -> None:
    absent = {key: None for key in source.metadata if key.startswith("diffusion.eb_")}
    assert len(absent) == 6
    config = read_config(source.write(tmp_path / "m.gguf", metadata=absent))
    assert config.eos_token_ids == (1, 106, 50)
    assert config.pad_token_id == 0
    assert set(config.generation) == {"eos_token_id", "pad_token_id"}


def test_one_value_may_stand_for_all_layers(source: Any, tmp_path: Path) -> None:
    prefix = "diffusion-gemma"
    changes = {f"{prefix}.feed_forward_length": [384, 384], f"{prefix}.attention.head_count": [8, 8]}
    assert read_config(source.write(tmp_path / "m.gguf", metadata=changes)) == source.model.config


def test_where_a_file_is_found(source: Any, written: Callable[[str], Path], tmp_path: Path) -> None:
    assert gguf_path(source.folder) is None
    assert gguf_path(written("Q8_0")) == written("Q8_0")
    one = shutil.copyfile(written("Q8_0"), tmp_path / "one.gguf")
    assert gguf_path(tmp_path) == one
    assert torch.equal(logits(load_checkpoint(tmp_path)), logits(load_checkpoint(one)))
    assert read_card(one)["name"] == "one"
    (tmp_path / "two.gguf").touch()
    with pytest.raises(CheckpointError, match=r"has 2 GGUF files, name one: one\.gguf, two\.gguf"):
        gguf_path(tmp_path)
    with pytest.raises(CheckpointError, match="dtype is float32, bfloat16 or float16"):
        load_checkpoint(one, bits=4)


def test_the_digest_changes_with_any_weight_and_with_the_header(
    source: Any, written: Callable[[str], Path], tmp_path: Path
) -> None:
    path = Path(shutil.copyfile(written("Q8_0"), tmp_path / "m.gguf"))
    before = weights_digest(path)
    assert before == weights_digest(written("Q8_0")) != weights_digest(written("Q5_0"))
    one = GGUFFile(path).tensors["blk.1.ffn_up.weight"]
    for place in (one.start + 5, one.start + one.nbytes - 1, path.read_bytes().index(b"<|turn>")):
        data = bytearray(written("Q8_0").read_bytes())
        data[place] ^= 1
        path.write_bytes(data)
        assert weights_digest(path) != before


# Vision


def test_the_vision_tower_comes_from_a_folder_or_a_shard(
    source: Any, written: Callable[[str], Path], tmp_path: Path
) -> None:
    model = load_checkpoint(written("Q8_0"), vision=source.folder)
    assert load_checkpoint(written("Q8_0")).vision is None
    shard = Path(
        shutil.copyfile(source.folder / "model.safetensors", tmp_path / "model-00011-of-00011.safetensors")
    )
    with pytest.raises(CheckpointError, match=r"config\.json is missing"):
        load_checkpoint(written("Q8_0"), vision=shard)
    shutil.copyfile(source.folder / "config.json", tmp_path / "config.json")
    alone = load_checkpoint(written("Q8_0"), vision=shard)
    for one in (model, alone, load_checkpoint(written("Q8_0"), vision=tmp_path)):
        assert one.vision is not None
        for name, value in source.model.vision.state_dict().items():
            assert torch.equal(one.vision.state_dict()[name], value)
    raw = json.loads((tmp_path / "config.json").read_text())
    raw["text_config"]["hidden_size"] = 128
    (tmp_path / "config.json").write_text(json.dumps(raw))
    with pytest.raises(CheckpointError, match="belongs to another text model"):
        load_checkpoint(written("Q8_0"), vision=shard)


# Tokenizer


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, Tokenizer]:
    """The embedded model's tokenizer as JSON and as GGUF metadata."""
    from jev.model.gguf.write import metadata_of, rope_freqs, write_file

    folder = embedded.path()
    spec = json.loads((folder / "tokenizer.json").read_text())
    config = ModelConfig.from_folder(folder)
    path = tmp_path_factory.mktemp("tokens") / "m.gguf"
    write_file(path, metadata_of(config, spec), [rope_freqs(config)])
    assert spec_of(GGUFFile(path))["model"]["vocab"] == spec["model"]["vocab"]
    return Tokenizer.from_folder(folder), read_tokenizer(path)


def test_the_vocabulary_is_the_same(both: tuple[Tokenizer, Tokenizer]) -> None:
    folder, file = both
    assert file.control == folder.control
    assert (file.vocab_size, file.longest) == (folder.vocab_size, folder.longest)


PIECES = [
    " ",
    "  ",
    "\n",
    "\n\n\n",
    "▁",
    "<|turn>",
    "<turn|>",
    "<mask>",
    "<table>",
    "<0x0A>",
    "é",
    "日本",
    "🙂",
    "\0",
]


@given(
    st.lists(
        st.one_of(st.sampled_from(PIECES), st.text(max_size=20), st.from_regex(r"[a-z ]{1,30}")), max_size=8
    )
)
def test_any_text_is_the_same_tokens(both: tuple[Tokenizer, Tokenizer], parts: list[str]) -> None:
    folder, file = both
    text = "".join(parts)
    ids = file.encode(text)
    assert ids == folder.encode(text)
    assert file.decode(ids) == folder.decode(ids)
    assert not set(file.control.values()).intersection(ids)


@pytest.mark.parametrize("kind", [1, 4, 5])
def test_control_tokens_are_safe_whatever_a_file_calls_them(source: Any, tmp_path: Path, kind: int) -> None:
    """Files mark some of them as user-defined, unused or even normal."""
    tokens = source.metadata["tokenizer.ggml.tokens"]
    types = list(source.metadata["tokenizer.ggml.token_type"])
    for name in ("<|turn>", "<turn|>", "<mask>", "<|channel>"):
        types[tokens.index(name)] = kind
    path = source.write(tmp_path / "m.gguf", metadata={"tokenizer.ggml.token_type": types})
    tokenizer = read_tokenizer(path)
    for name in ("<|turn>", "<turn|>", "<mask>", "<|channel>"):
        assert tokenizer.control_id(name) == tokens.index(name)
        assert tokens.index(name) not in tokenizer.encode(f"a {name} b")


def test_a_merge_that_makes_a_control_token_is_refused(source: Any, tmp_path: Path) -> None:
    tokens = list(source.metadata["tokenizer.ggml.tokens"])
    unused = [n for n, token in enumerate(tokens) if token.startswith("<unused")][:2]
    tokens[unused[0]], tokens[unused[1]] = "<|", "turn>"
    types = [1 if n in unused else one for n, one in enumerate(source.metadata["tokenizer.ggml.token_type"])]
    steps = ["< |", "t u", "tu r", "tur n", "turn >", "<| turn>"]
    merges = source.metadata["tokenizer.ggml.merges"]
    for piece in ("tu", "tur", "turn"):
        if piece not in tokens:
            spare = next(n for n, token in enumerate(tokens) if token.startswith("<unused"))
            tokens[spare], types[spare] = piece, 1
    path = source.write(
        tmp_path / "m.gguf",
        metadata={
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": types,
            "tokenizer.ggml.merges": [*steps, *merges],
        },
    )
    with pytest.raises(CheckpointError, match=r"turns the text '<\|.*' into a control token"):
        read_tokenizer(path)


# Adapters


def test_adapters_are_trained_on_a_file_as_on_its_weights(
    written: Callable[[str], Path], source: Any, tmp_path: Path, route: str
) -> None:
    """Rows with gradients are multiplied by decoded weights, since kernels know no gradients."""
    found = []
    for model in (load_checkpoint(written("Q4_K")), dequantised(written("Q4_K"), tmp_path / "plain", source)):
        trained = attach(model, LoraConfig(rank=2, alpha=4), generator=torch.Generator().manual_seed(0))
        hidden, _ = forward(model.text, [Block(model.empty_prefix(), tokens=[5, 6, 7, 8])])
        hidden.square().mean().backward()
        found.append([p.grad for p in trained if p.grad is not None])
    assert len(found[0]) == len(found[1]) > 0
    for ours, plain in zip(*found, strict=True):
        # The first linears see no gradient in their rows yet, so the kernels still compute these.
        assert torch.allclose(ours, plain, atol=1e-5 if route == "torch" else 0.1 * plain.abs().max())
