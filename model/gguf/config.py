"""A GGUF file's metadata as the configuration that a checkpoint folder has in JSON."""

from __future__ import annotations

from typing import Any

import torch

from jev.model.config import ModelConfig
from jev.model.errors import CheckpointError
from jev.model.gguf.container import GGUFFile
from jev.model.gguf.names import ROPE_FREQS

ARCHITECTURES = ("diffusion-gemma", "diffusion_gemma")

_ENDS = ("<turn|>", "<|tool_response>")
"""Tokens that end a text beside the file's single one (`generation_config.json` as published: 1, 106, 50)."""

_IMAGE = "<|image|>"
_NOT_ROTATED = 1e20
"""Least divisor of a frequency that stands for no rotation; the published file has 1e30."""


def config_of(file: GGUFFile) -> ModelConfig:
    """The model that a file describes.

    Raises:
        CheckpointError: naming the key that is missing, wrong or of another model.
    """
    name = file.metadata.text("general.architecture")
    if name not in ARCHITECTURES:
        raise CheckpointError(
            f"{file.path} has the architecture {name[:100]!r}, expected {ARCHITECTURES[0]!r}"
        )
    if file.metadata.integer("split.count", 1, least=0) > 1:
        raise CheckpointError(f"{file.path} is one part of several; join them into one file first")
    raw, generation = _raw(file, name), _generation(file)
    try:
        return ModelConfig.from_dict(raw, generation)
    except CheckpointError as error:
        raise CheckpointError(f"{file.path}: {str(error).removeprefix('config.json: ')}") from None


def _raw(file: GGUFFile, prefix: str) -> dict[str, Any]:
    """The metadata in the form of `config.json`."""
    metadata = file.metadata
    vocab, hidden = _embedding_shape(file)
    if hidden != metadata.integer(f"{prefix}.embedding_length"):
        raise CheckpointError(
            f"{file.path} has another {prefix}.embedding_length than token_embd.weight columns"
        )
    text: dict[str, Any] = {
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": _same(file, f"{prefix}.feed_forward_length"),
        "num_attention_heads": _same(file, f"{prefix}.attention.head_count"),
        "sliding_window": metadata.integer(f"{prefix}.attention.sliding_window", most=2**30),
        "num_experts": metadata.integer(f"{prefix}.expert_count", most=2**16),
        "top_k_experts": metadata.integer(f"{prefix}.expert_used_count", most=2**16),
        "moe_intermediate_size": metadata.integer(f"{prefix}.expert_feed_forward_length"),
        "rms_norm_eps": metadata.number(f"{prefix}.attention.layer_norm_rms_epsilon"),
        "final_logit_softcapping": metadata.number(f"{prefix}.final_logit_softcapping", 30.0),
        "max_position_embeddings": metadata.integer(f"{prefix}.context_length", most=2**30),
        **_layers(file, prefix),
    }
    for key in ("attention.shared_kv_layers", "embedding_length_per_layer_input"):
        if metadata.integer(f"{prefix}.{key}", 0, least=0):
            raise CheckpointError(f"{file.path} has {prefix}.{key}, which is not supported")
    tokens = metadata.strings("tokenizer.ggml.tokens")
    return {
        "model_type": "diffusion_gemma",
        "canvas_length": metadata.integer("diffusion.canvas_length"),
        "image_token_id": tokens.index(_IMAGE) if _IMAGE in tokens else None,
        "text_config": text,
    }


def _embedding_shape(file: GGUFFile) -> tuple[int, int]:
    table = file.tensors.get("token_embd.weight")
    if table is None:
        raise CheckpointError(f"tensor token_embd.weight is missing in {file.path}")
    if len(table.shape) != 2:
        raise CheckpointError(f"tensor token_embd.weight has shape {list(table.shape)} in {file.path}")
    return table.shape[0], table.shape[1]


def _same(file: GGUFFile, key: str) -> int:
    """A whole number that may be written once or once a layer."""
    if not file.metadata.is_array(key):
        return file.metadata.integer(key)
    values = set(file.metadata.integers(key, least=1))
    if len(values) != 1:
        raise CheckpointError(f"{file.path} has layers that differ in {key}, which is not supported")
    return values.pop()


def _layers(file: GGUFFile, prefix: str) -> dict[str, Any]:
    """Kinds, heads and rotary embedding of the layers."""
    metadata = file.metadata
    count = metadata.integer(f"{prefix}.block_count")
    # A file cannot make us build more layers than it has tensors for.
    for index in range(count):
        if f"blk.{index}.attn_norm.weight" not in file.tensors:
            raise CheckpointError(f"tensor blk.{index}.attn_norm.weight is missing in {file.path}")
    sliding = _per_layer(file, f"{prefix}.attention.sliding_window_pattern", count, most=1)
    heads = _per_layer(file, f"{prefix}.attention.head_count_kv", count, least=1)
    widths = {}
    for swa, end in ((1, "_swa"), (0, "")):
        width = metadata.integer(f"{prefix}.attention.key_length{end}")
        for key in (f"attention.value_length{end}", f"rope.dimension_count{end}"):
            if metadata.integer(f"{prefix}.{key}", width) != width:
                raise CheckpointError(f"{file.path} has another {prefix}.{key} than key length")
        widths[swa] = width
    return {
        "num_hidden_layers": count,
        "head_dim": widths[1],
        "num_key_value_heads": heads[0],
        "layer_types": ["sliding_attention" if one else "full_attention" for one in sliding],
        "per_layer_config": {
            str(n): {"head_dim": widths[kind], "num_key_value_heads": kv}
            for n, (kind, kv) in enumerate(zip(sliding, heads, strict=True))
        },
        "rope_parameters": {
            "full_attention": {
                "rope_type": "proportional",
                "rope_theta": metadata.number(f"{prefix}.rope.freq_base"),
                "partial_rotary_factor": _rotated(file, widths[0] // 2),
            },
            "sliding_attention": {
                "rope_type": "default",
                "rope_theta": metadata.number(f"{prefix}.rope.freq_base_swa"),
            },
        },
    }


def _per_layer(file: GGUFFile, key: str, count: int, *, least: int = 0, most: int = 2**20) -> list[int]:
    """Whole numbers, one a layer; written once they hold for all."""
    if not file.metadata.is_array(key):
        return [file.metadata.integer(key, least=least, most=most)] * count
    values = file.metadata.integers(key, least=least, most=most)
    if len(values) != count:
        raise CheckpointError(f"{file.path} has {len(values)} values at {key} for {count} layers")
    return values


def _rotated(file: GGUFFile, pairs: int) -> float:
    """The share of a full layer's pairs that rotate: `rope_freqs.weight` divides their frequencies by 1."""
    freqs = file.tensors.get(ROPE_FREQS)
    if freqs is None:
        raise CheckpointError(f"tensor {ROPE_FREQS} is missing in {file.path}")
    if freqs.type != "F32" or freqs.shape != (pairs,):
        raise CheckpointError(
            f"tensor {ROPE_FREQS} is {freqs.type} {list(freqs.shape)} in {file.path}, expected F32 [{pairs}]"
        )
    # A copy: the file's alignment need not be that of a float.
    values = torch.frombuffer(bytearray(file.sample(freqs.start, freqs.nbytes)), dtype=torch.float32)
    count = int((values == 1).sum())
    if not count or not (values[:count] == 1).all() or not (values[count:] >= _NOT_ROTATED).all():
        raise CheckpointError(
            f"tensor {ROPE_FREQS} in {file.path} scales frequencies, which is not supported"
        )
    share = count / pairs
    return share if int(share * pairs) == count else (count + 0.5) / pairs


def _generation(file: GGUFFile) -> dict[str, Any]:
    """The metadata in the form of `generation_config.json`; what is absent is left to the defaults."""
    metadata = file.metadata
    tokens = metadata.strings("tokenizer.ggml.tokens")
    last = max(0, len(tokens) - 1)
    ends = [metadata.integer("tokenizer.ggml.eos_token_id", 1, least=0, most=last)]
    ends += [tokens.index(name) for name in _ENDS if name in tokens]
    found: dict[str, Any] = {
        "eos_token_id": list(dict.fromkeys(ends)),
        "pad_token_id": metadata.integer("tokenizer.ggml.padding_token_id", 0, least=0, most=last),
    }
    for name, key in (("max_denoising_steps", "max_steps"), ("stability_threshold", "stability_threshold")):
        if f"diffusion.eb_{key}" in metadata:
            found[name] = metadata.integer(f"diffusion.eb_{key}", least=0)
    for name in ("t_min", "t_max", "confidence_threshold"):
        if f"diffusion.eb_{name}" in metadata:
            found[name] = metadata.number(f"diffusion.eb_{name}")
    if "diffusion.eb_entropy_bound" in metadata:
        found["sampler_config"] = {"entropy_bound": metadata.number("diffusion.eb_entropy_bound")}
    return found
