"""Proves, by names and shapes alone, that the published checkpoints map one to one onto this model."""

from __future__ import annotations

import gzip
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from jev.model.config import ModelConfig
from jev.model.errors import CheckpointError
from jev.model.gguf import GGUFFile
from jev.model.gguf.config import config_of
from jev.model.gguf.load import stored_names
from jev.model.gguf.mix import q4_k_m
from jev.model.gguf.write import Stored, metadata_of, open_file, rope_freqs
from jev.model.quant.blocks import BLOCKS
from jev.model.text import TextModel
from jev.model.tiny import write_tiny_checkpoint
from jev.model.vision import VisionTower
from jev.model.vision_config import VisionConfig
from jev.model.weights.safetensors import VISION, hf_name, hf_vision_name

DATA = Path(__file__).parents[1] / "data" / "diffusiongemma-26b-a4b"
"""Names and shapes of google/diffusiongemma-26B-A4B-it, revision f7f5b7f5fa82ffc52addd066915886d497f5517b."""

# The GGUF file's tensors as llama.cpp's architecture `diffusion-gemma` names them, shapes as torch has them.
TOP = {
    "token_embd.weight": (262144, 2816),
    "output_norm.weight": (2816,),
    "rope_freqs.weight": (256,),
    "self_cond_pre_norm.weight": (2816,),
    "self_cond_gate.weight": (2112, 2816),
    "self_cond_up.weight": (2112, 2816),
    "self_cond_down.weight": (2816, 2112),
}
LAYER = {
    "attn_norm.weight": (2816,),
    "attn_q.weight": (4096, 2816),
    "attn_k.weight": (2048, 2816),
    "attn_v.weight": (2048, 2816),
    "attn_output.weight": (2816, 4096),
    "attn_q_norm.weight": (256,),
    "attn_k_norm.weight": (256,),
    "post_attention_norm.weight": (2816,),
    "ffn_norm.weight": (2816,),
    "ffn_gate.weight": (2112, 2816),
    "ffn_up.weight": (2112, 2816),
    "ffn_down.weight": (2816, 2112),
    "post_ffw_norm_1.weight": (2816,),
    "pre_ffw_norm_2.weight": (2816,),
    "post_ffw_norm_2.weight": (2816,),
    "post_ffw_norm.weight": (2816,),
    "ffn_gate_inp.weight": (128, 2816),
    "ffn_gate_inp.scale": (2816,),
    "ffn_gate_up_exps.weight": (128, 1408, 2816),
    "ffn_down_exps.weight": (128, 2816, 704),
    "ffn_down_exps.scale": (128,),
    "layer_output_scale.weight": (1,),
    "enc_layer_output_scale.weight": (1,),
}
FULL = {
    **{name: shape for name, shape in LAYER.items() if name != "attn_v.weight"},
    "attn_q.weight": (8192, 2816),
    "attn_k.weight": (1024, 2816),
    "attn_output.weight": (2816, 8192),
    "attn_q_norm.weight": (512,),
    "attn_k_norm.weight": (512,),
}
SHAPES: dict[str, tuple[int, ...]] = TOP | {
    f"blk.{n}.{name}": shape for n in range(30) for name, shape in (FULL if n % 6 == 5 else LAYER).items()
}
PUBLISHED_BYTES = 16_806_810_208
"""Size of the published Q4_K_M file."""


def packed_json(name: str) -> Any:
    return json.loads(gzip.decompress((DATA / name).read_bytes()))


@pytest.fixture(scope="module")
def config() -> ModelConfig:
    return ModelConfig.from_folder(DATA)


@pytest.fixture(scope="module")
def text(config: ModelConfig) -> TextModel:
    with torch.device("meta"):
        return TextModel(config.text)


def test_safetensors_names_and_shapes_map_one_to_one(config: ModelConfig, text: TextModel) -> None:
    with torch.device("meta"):
        tower = VisionTower(VisionConfig.from_dict(config.raw), config.text.hidden_size)
    ours = {hf_name(name): list(value.shape) for name, value in text.state_dict().items()}
    sight = {hf_vision_name(name): list(value.shape) for name, value in tower.state_dict().items()}
    published = packed_json("shapes.json.gz")
    index = packed_json("model.safetensors.index.json.gz")
    assert ours | sight == published
    assert len(published) == 1047
    assert published.keys() == index["weight_map"].keys()
    assert all(name.startswith(VISION) for name in sight)
    assert len(sight) == 356
    total = sum(map(math.prod, published.values()))
    assert 2 * total == index["metadata"]["total_size"]
    # Layer scalars and the tower's statistics are buffers, no parameters.
    buffers = sum(
        math.prod(s) for n, s in published.items() if n.endswith(("layer_scalar", "std_bias", "std_scale"))
    )
    assert total - buffers == index["metadata"]["total_parameters"] == 25_823_778_864
    assert len(set(index["weight_map"].values())) == 11
    assert {index["weight_map"][name] for name in sight} == {"model-00011-of-00011.safetensors"}


def test_the_published_configuration(config: ModelConfig) -> None:
    assert [n for n, layer in enumerate(config.text.layers) if not layer.sliding] == [5, 11, 17, 23, 29]
    assert {(layer.sliding, layer.head_dim, layer.num_key_value_heads) for layer in config.text.layers} == {
        (True, 256, 8),
        (False, 512, 2),
    }
    assert config.eos_token_ids == (1, 106, 50)


@pytest.fixture(scope="module")
def sparse(config: ModelConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the published header and holes for all tensors."""
    folder = tmp_path_factory.mktemp("sparse")
    # Tokens are not what this is about.
    spec = json.loads((write_tiny_checkpoint(folder / "tiny") / "tokenizer.json").read_text())
    types = q4_k_m(SHAPES)
    tensors = [Stored(n, types[n], s, lambda: torch.empty(0)) for n, s in SHAPES.items()]
    path = folder / "published.gguf"
    open_file(path, metadata_of(config, spec), tensors).close()
    with path.open("r+b") as file:
        size = file.seek(0, 2)
        start = -(-size // 32) * 32
        for one in tensors:
            if one.name == "rope_freqs.weight":
                file.seek(start)
                file.write(rope_freqs(config).data().numpy().tobytes())
            start += -(-math.prod(one.byte_shape) // 32) * 32
        file.truncate(start)
    return path


def test_gguf_names_and_shapes_map_one_to_one(config: ModelConfig, sparse: Path, text: TextModel) -> None:
    file = GGUFFile(sparse)
    assert len(file.tensors) == len(SHAPES) == 692
    assert {name: one.shape for name, one in file.tensors.items()} == SHAPES
    names = stored_names(text, file)
    used = [stored for parts in names.values() for stored in parts]
    assert len(used) == len(set(used)) == 691
    assert set(used) == SHAPES.keys() - {"rope_freqs.weight"}
    assert sum(map(math.prod, SHAPES.values())) == 25_250_987_068
    assert config_of(file).text == config.text


def test_types_are_those_of_the_published_file(sparse: Path) -> None:
    file = GGUFFile(sparse)
    counts = Counter(one.type for one in file.tensors.values())
    assert counts == {"Q4_K": 194, "Q6_K": 14, "Q5_0": 33, "Q8_0": 28, "F32": 423}
    data = sum(one.nbytes for one in file.tensors.values())
    assert data == sum(
        math.prod(one.shape) // BLOCKS[one.type][0] * BLOCKS[one.type][1] for one in file.tensors.values()
    )
    # What is left of the published size is its header: 262,144 tokens, 514,906 merges and a template.
    assert 15_000_000 < PUBLISHED_BYTES - data < 17_000_000


def test_a_tensor_of_another_model_is_named(sparse: Path, text: TextModel) -> None:
    file = GGUFFile(sparse)
    del file.tensors["blk.7.attn_v.weight"]
    with pytest.raises(CheckpointError, match=r"tensor blk\.7\.attn_v\.weight is missing, in "):
        stored_names(text, file)
