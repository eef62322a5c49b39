"""A few layers of the published 26B model at full width with seeded random weights: as a GGUF file that
llama.cpp runs (architecture `gemma4`, the same layers), and as this project's model over the same bytes.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from jev.model.cache import PrefixKV
from jev.model.config import LayerConfig, RopeConfig, TextConfig
from jev.model.gguf.container import GGUFFile
from jev.model.gguf.names import gguf_name
from jev.model.moe import Experts, Router
from jev.model.packed import Block, forward
from jev.model.quant.block_modules import BlockEmbedding, BlockExperts, BlockLinear, use_row_kernels
from jev.model.quant.blocks import BLOCKS, Blocks
from jev.model.text import TextModel

VOCAB = 256
SLIDING = LayerConfig("sliding_attention", 256, 8)
FULL = LayerConfig("full_attention", 512, 2)

# Typical magnitude of a block's quants as `random_blocks` fills them, minimum or offset taken off.
_SPREAD = {"Q4_K": 32 * 4.6, "Q5_K": 32 * 9.2, "Q6_K": 32 * 18.5, "Q5_0": 9.2, "Q5_1": 9.2, "Q8_0": 74.0}
# Minimum in steps that puts the middle of the quants at 0.
_MIDDLE = {"Q4_K": 7.5, "Q5_K": 15.5, "Q5_1": -15.5}


def config_of(layers: int) -> TextConfig:
    """The published configuration with `layers` layers, every sixth of them full, and a small vocabulary."""
    return TextConfig(
        vocab_size=VOCAB,
        hidden_size=2816,
        intermediate_size=2112,
        num_attention_heads=16,
        sliding_window=1024,
        num_experts=128,
        top_k_experts=8,
        moe_intermediate_size=704,
        rms_norm_eps=1e-6,
        final_logit_softcapping=30.0,
        max_position_embeddings=262144,
        layers=tuple(FULL if n % 6 == 5 else SLIDING for n in range(layers)),
        rope={"sliding_attention": RopeConfig(1e4, 1.0), "full_attention": RopeConfig(1e6, 0.25)},
    )


def type_of(name: str, layer: int) -> str:
    """The type of a matrix as in the published Q4_K_M file: half of the layers have more bits in some."""
    more = layer % 2 == 0
    if "down" in name:
        return "Q8_0" if more else "Q5_0"
    return "Q6_K" if "v_proj" in name and more else "Q4_K"


def write(path: Path, layers: int) -> None:
    """Write the cut for llama.cpp."""
    from gguf import GGMLQuantizationType, GGUFWriter

    config = config_of(layers)
    writer = GGUFWriter(path, "gemma4")
    _metadata(writer, config)
    generator = np.random.default_rng(0)
    for name, value in _shapes(config).items():
        parts = name.split(".")
        stored = gguf_name(name)
        if value.dim() == 1 or "router" in name:
            writer.add_tensor(stored, _floats(name, tuple(value.shape), generator))
            continue
        kind = "Q6_K" if parts[0] == "embed_tokens" else type_of(name, int(parts[1]))
        raw = random_blocks(kind, tuple(value.shape), generator)
        writer.add_tensor(stored, raw, raw_dtype=GGMLQuantizationType[kind])
    freqs = np.full(FULL.head_dim // 2, 1e30, dtype=np.float32)
    freqs[:64] = 1.0
    writer.add_tensor("rope_freqs.weight", freqs)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def load(path: Path, layers: int) -> TextModel:
    """The cut of a file that `write` made."""
    with torch.device("meta"):
        text = TextModel(replace(config_of(layers)))
    file = GGUFFile(path)

    def blocks(name: str) -> Blocks:
        stored = gguf_name(name)
        made = Blocks(file.raw(stored), file.tensors[stored].type)
        made.use_kernels()
        return made

    for name, module in list(text.named_modules()):
        parent, _, last = name.rpartition(".")
        if name.startswith("self_conditioning"):
            continue
        if isinstance(module, nn.Linear) and "router" not in name:
            setattr(text.get_submodule(parent), last, BlockLinear(blocks(f"{name}.weight")))
        elif isinstance(module, Experts):
            made = BlockExperts(blocks(f"{name}.gate_up_proj"), blocks(f"{name}.down_proj"))
            setattr(text.get_submodule(parent), last, made)
        elif isinstance(module, nn.Embedding):
            text.embed_tokens = BlockEmbedding(blocks(f"{name}.weight"), torch.float32)
        else:
            for key, parameter in list(module.named_parameters(recurse=False)):
                path_of = f"{name}.{key}" if name else key
                if key == "encoder_layer_scalar":
                    value = torch.ones(parameter.shape)
                else:
                    raw = file.raw(gguf_name(path_of))
                    value = raw.view(torch.float32).view(parameter.shape).clone()
                setattr(module, key, nn.Parameter(value, requires_grad=False))
    use_row_kernels(text)
    return text


def run(text: TextModel, ids: list[int]) -> Tensor:
    """All rows of one canvas through all layers [rows, hidden]."""
    empty = PrefixKV.empty(text.config, text.norm.weight)
    with torch.inference_mode():
        return forward(text, [Block(empty, canvases=[ids], slots=[range(len(ids))])])[0]


def touched(text: TextModel, ids: list[int]) -> int:
    """Bytes of quantised weights that `run` reads: all dense ones, and experts that some row has chosen."""
    chosen: list[int] = []
    hooks = [
        module.register_forward_hook(lambda module, given, routed: chosen.append(len(routed[1].unique())))
        for module in text.modules()
        if isinstance(module, Router)
    ]
    run(text, ids)
    for hook in hooks:
        hook.remove()
    total = sum(one.weight.kernels.nbytes for one in text.modules() if isinstance(one, BlockLinear))
    experts = [one for one in text.modules() if isinstance(one, BlockExperts)]
    for one, count in zip(experts, chosen, strict=True):
        for weight in (one.gate_up_proj, one.down_proj):
            total += weight.kernels.nbytes * count // weight.kernels.matrices
    return total


def _shapes(config: TextConfig) -> dict[str, Tensor]:
    """Parameters without those that llama.cpp's `gemma4` does not know."""
    with torch.device("meta"):
        found = TextModel(config).state_dict()
    return {
        k: v for k, v in found.items() if "self_conditioning" not in k and "encoder_layer_scalar" not in k
    }


def _floats(name: str, shape: tuple[int, ...], generator: np.random.Generator) -> np.ndarray:
    if name.endswith("router.proj.weight"):
        return generator.standard_normal(shape).astype(np.float32)
    if name.endswith(("q_norm.weight", "k_norm.weight")):
        return np.full(shape, 0.3, dtype=np.float32)
    return np.ones(shape, dtype=np.float32)


def random_blocks(
    kind: str, shape: tuple[int, ...], generator: np.random.Generator | None = None
) -> np.ndarray:
    """Random blocks, uint8 [..., row bytes], of weights around 0 with a deviation of 1 / sqrt(width)."""
    generator = generator or np.random.default_rng(0)
    values, size = BLOCKS[kind]
    count = math.prod(shape) // values
    # A few megabytes of noise serve a whole tensor: speed does not depend on the values.
    noise = generator.integers(0, 256, (min(count, 2**15), size), dtype=np.uint8)
    step = 1 / (math.sqrt(shape[-1]) * _SPREAD[kind])
    scale = _half(step)
    if kind in _MIDDLE:
        noise[:, 0:2], noise[:, 2:4] = scale, _half(_MIDDLE[kind] * step)
        if kind != "Q5_1":
            noise[:, 4:12], noise[:, 12:16] = 0xA0, 0  # all scales and minimums 32
    elif kind == "Q6_K":
        noise[:, 192:208], noise[:, 208:210] = 32, scale
    else:
        noise[:, 0:2] = scale
    raw = np.resize(noise, (count, size))
    return raw.reshape(*shape[:-1], shape[-1] // values * size)


def _half(value: float) -> np.ndarray:
    """The two bytes of a number in fp16."""
    return np.float16(value).reshape(1).view(np.uint8)


def _metadata(writer, config: TextConfig) -> None:
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(len(config.layers))
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv([layer.num_key_value_heads for layer in config.layers])
    writer.add_key_length(FULL.head_dim)
    writer.add_value_length(FULL.head_dim)
    writer.add_uint32("gemma4.attention.key_length_swa", SLIDING.head_dim)
    writer.add_uint32("gemma4.attention.value_length_swa", SLIDING.head_dim)
    writer.add_sliding_window(config.sliding_window)
    writer.add_array("gemma4.attention.sliding_window_pattern", [layer.sliding for layer in config.layers])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(1e6)
    writer.add_float32("gemma4.rope.freq_base_swa", 1e4)
    writer.add_rope_dimension_count(FULL.head_dim)
    writer.add_uint32("gemma4.rope.dimension_count_swa", SLIDING.head_dim)
    writer.add_expert_count(config.num_experts)
    writer.add_expert_used_count(config.top_k_experts)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_uint32("gemma4.embedding_length_per_layer_input", 0)
    writer.add_uint32("gemma4.attention.shared_kv_layers", 0)
    writer.add_final_logit_softcapping(config.final_logit_softcapping)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("none")
