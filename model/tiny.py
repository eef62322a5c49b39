"""Write a tiny DiffusionGemma checkpoint with random weights, in the published format.

It answers nothing sensibly. It is for tests and for quick trials of the whole service (loading,
tokenising, reading, serving) where no trained weights are at hand: about 3 MB, written in a moment.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file
from torch import Tensor

from jev.model.tiny_tokenizer import LEAST_VOCAB, write_tiny_tokenizer

ConfigForm = Literal["global", "per_layer"]

_VISION_HIDDEN = 32
_VISION_LAYERS = 2
_PATCH = 16
_POSITIONS = 1024  # longest side of an image, in patches


def write_tiny_checkpoint(
    folder: str | Path,
    *,
    seed: int = 0,
    layers: int = 6,
    hidden: int = 64,
    window: int = 8,
    experts: int = 8,
    top_k: int = 2,
    vocab: int = 1024,
    canvas: int = 16,
    context: int = 4096,
    vision: bool = True,
    dtype: torch.dtype = torch.float32,
    shards: int = 1,
    config_form: ConfigForm = "global",
    tokenizer: bool = True,
) -> Path:
    """Write a random checkpoint for tests and trials, and return its folder.

    The folder gets `config.json`, `generation_config.json`, `tokenizer.json`,
    `tokenizer_config.json` and either `model.safetensors` or `shards` files with an index. Names,
    shapes and layer kinds are those of the published model: every sixth layer and the last one
    attend fully and have no `v_proj`. Norms, scales and layer scalars are drawn around sane values
    (the encoder's scalars differ from the decoder's), so that logits spread by about 1 and no
    weight is without effect.

    Args:
        folder: a folder that does not exist yet or is empty.
        seed: decides every weight; equal arguments give equal weights. The text weights do not
            depend on `vision`, `shards` and `config_form`, and on `dtype` only by rounding.
        layers: text layers.
        hidden: width, a multiple of 16; sliding heads are `hidden / 4` wide, full ones `hidden / 2`.
        window: sliding window in tokens.
        experts: experts a layer.
        top_k: experts a token.
        vocab: vocabulary size; at least 1024 with a tokenizer, 128 without.
        canvas: `canvas_length` of the configuration.
        context: `max_position_embeddings` of the configuration.
        vision: write the vision tower (2 layers, width 32) as well.
        dtype: float dtype of the stored tensors.
        shards: number of safetensors files.
        config_form: "global" names the full layers' head width once, as the published
            configuration does; "per_layer" names it layer by layer, as transformers re-saves it.
        tokenizer: write the tokenizer as well.

    Raises:
        ValueError: for arguments that make no model.
        FileExistsError: when `folder` has files in it.
    """
    _check(
        {"layers": layers, "canvas": canvas, "context": context, "shards": shards},
        hidden=hidden,
        window=window,
        experts=experts,
        top_k=top_k,
        vocab=(vocab, LEAST_VOCAB if tokenizer else 128),
        dtype=dtype,
    )
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty")

    text: dict[str, Any] = {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 2,
        "dtype": str(dtype).removeprefix("torch."),
        "eos_token_id": 1,
        "final_logit_softcapping": 30.0,
        "head_dim": hidden // 4,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": hidden,
        "initializer_range": 0.02,
        "intermediate_size": hidden * 3 // 2,
        "layer_types": _layer_types(layers),
        "max_position_embeddings": context,
        "model_type": "diffusion_gemma_text",
        "moe_intermediate_size": hidden * 3 // 8,
        "num_attention_heads": 8,
        "num_experts": experts,
        "num_hidden_layers": layers,
        "num_key_value_heads": 4,
        "pad_token_id": 0,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "full_attention": {
                "partial_rotary_factor": 0.25,
                "rope_theta": 1000000.0,
                "rope_type": "proportional",
            },
            "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
        },
        "sliding_window": window,
        "tie_word_embeddings": True,
        "top_k_experts": top_k,
        "use_bidirectional_attention": "vision",
        "vocab_size": vocab,
    }
    full = {"head_dim": hidden // 2, "num_key_value_heads": 2}
    if config_form == "global":
        text["global_head_dim"] = full["head_dim"]
        text["num_global_key_value_heads"] = full["num_key_value_heads"]
    else:
        kinds = enumerate(text["layer_types"])
        text["per_layer_config"] = {str(n): full for n, kind in kinds if kind == "full_attention"}

    config: dict[str, Any] = {
        "architectures": ["DiffusionGemmaForBlockDiffusion"],
        "boi_token_id": vocab - 3,
        "canvas_length": canvas,
        "dtype": text["dtype"],
        "eoi_token_id": vocab - 1,
        "eos_token_id": [1, 106],
        "image_token_id": vocab - 2,
        "initializer_range": 0.02,
        "model_type": "diffusion_gemma",
        "text_config": text,
        "tie_word_embeddings": True,
    }
    if vision:
        config["vision_config"] = _vision_config(config_form)
        config["vision_soft_tokens_per_image"] = 280
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", _generation_config(canvas))
    if tokenizer:
        write_tiny_tokenizer(folder, vocab=vocab, context=context)

    draw = _Draw(seed)
    tensors = dict(_text_tensors(draw, text, full))
    if vision:
        tensors.update(_vision_tensors(draw, hidden))
    _write_tensors(folder, {name: t.to(dtype) for name, t in tensors.items()}, shards)
    return folder


def _check(
    counts: dict[str, int],
    *,
    hidden: int,
    window: int,
    experts: int,
    top_k: int,
    vocab: tuple[int, int],
    dtype: torch.dtype,
) -> None:
    for name, value in counts.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if vocab[0] < vocab[1]:
        raise ValueError(f"vocab must be at least {vocab[1]}, got {vocab[0]}")
    if hidden < 16 or hidden % 16:
        raise ValueError(f"hidden must be a multiple of 16, got {hidden}")
    if window < 2:
        raise ValueError(f"window must be at least 2, got {window}")
    if not 1 <= top_k <= experts:
        raise ValueError(f"top_k must be between 1 and experts ({experts}), got {top_k}")
    if not dtype.is_floating_point:
        raise ValueError(f"dtype must be a float dtype, got {dtype}")


def _layer_types(layers: int) -> list[str]:
    return ["full_attention" if n % 6 == 5 or n == layers - 1 else "sliding_attention" for n in range(layers)]


def _vision_config(config_form: ConfigForm) -> dict[str, Any]:
    return {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "default_output_length": 280,
        "head_dim": _VISION_HIDDEN // 2,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": _VISION_HIDDEN,
        "initializer_range": 0.02,
        "intermediate_size": 2 * _VISION_HIDDEN,
        "max_position_embeddings": 131072,
        "model_type": "gemma4_vision",
        "num_attention_heads": 2,
        "num_hidden_layers": _VISION_LAYERS,
        "num_key_value_heads": 2,
        "patch_size": _PATCH,
        "pooling_kernel_size": 3,
        "position_embedding_size": _POSITIONS,
        "rms_norm_eps": 1e-6,
        # The published file says "default"; what transformers makes of it and re-saves is "axial".
        "rope_parameters": {
            "rope_theta": 100.0,
            "rope_type": "default" if config_form == "global" else "axial",
        },
        "standardize": True,
        "use_clipped_linears": False,
    }


def _generation_config(canvas: int) -> dict[str, Any]:
    return {
        "confidence_threshold": 0.005,
        "eos_token_id": [1, 106, 50],
        "max_denoising_steps": 48,
        "max_new_tokens": canvas,
        "pad_token_id": 0,
        "sampler_config": {"_cls_name": "EntropyBoundSamplerConfig", "entropy_bound": 0.1},
        "stability_threshold": 1,
        "t_max": 0.8,
        "t_min": 0.4,
    }


class _Draw:
    """Seeded float32 draws, one after the other."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int, mean: float = 0.0, std: float) -> Tensor:
        return mean + std * torch.randn(*shape, generator=self._generator)

    def uniform(self, *shape: int, low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(*shape, generator=self._generator)

    def linear(self, *shape: int) -> Tensor:
        """Weights [..., out, in] that keep the size of what passes through."""
        return self.normal(*shape, std=shape[-1] ** -0.5)

    def norm(self, width: int, mean: float = 1.0) -> Tensor:
        return self.normal(width, mean=mean, std=0.2 * mean)

    def head_norm(self, width: int) -> Tensor:
        """Scores are unscaled products of `width` terms; this mean holds them at about 2."""
        return self.norm(width, mean=1.5 * width**-0.25)


def _text_tensors(draw: _Draw, text: dict[str, Any], full: dict[str, int]) -> Iterator[tuple[str, Tensor]]:
    hidden, inner = text["hidden_size"], text["intermediate_size"]
    experts, expert_inner = text["num_experts"], text["moe_intermediate_size"]
    heads = text["num_attention_heads"]
    sliding = {key: text[key] for key in full}

    embed = draw.linear(text["vocab_size"], hidden)
    yield "model.decoder.embed_tokens.weight", embed
    yield "model.decoder.norm.weight", draw.norm(hidden)
    at = "model.decoder.self_conditioning"
    yield f"{at}.pre_norm.weight", draw.norm(hidden)
    yield from _mlp(draw, at, hidden, inner)

    for n, kind in enumerate(text["layer_types"]):
        at = f"model.decoder.layers.{n}"
        for name in ("input", "pre_feedforward"):
            yield f"{at}.{name}_layernorm.weight", draw.norm(hidden)
        for name in ("post_attention", "post_feedforward"):
            yield f"{at}.{name}_layernorm.weight", draw.norm(hidden, mean=0.6)
        for name in ("post_feedforward_layernorm_1", "pre_feedforward_layernorm_2"):
            yield f"{at}.{name}.weight", draw.norm(hidden)
        yield f"{at}.post_feedforward_layernorm_2.weight", draw.norm(hidden)
        yield f"{at}.layer_scalar", draw.uniform(1, low=0.7, high=1.3)
        yield f"model.encoder.language_model.layers.{n}.layer_scalar", draw.uniform(1, low=0.7, high=1.3)
        yield from _mlp(draw, f"{at}.mlp", hidden, inner)
        yield f"{at}.router.proj.weight", draw.normal(experts, hidden, std=1.5)
        yield f"{at}.router.scale", draw.norm(hidden)
        yield f"{at}.router.per_expert_scale", draw.uniform(experts, low=0.5, high=1.5)
        yield f"{at}.experts.gate_up_proj", draw.linear(experts, 2 * expert_inner, hidden)
        yield f"{at}.experts.down_proj", draw.linear(experts, hidden, expert_inner)

        shape = full if kind == "full_attention" else sliding
        width, kv_rows = shape["head_dim"], shape["num_key_value_heads"] * shape["head_dim"]
        at = f"{at}.self_attn"
        yield f"{at}.q_proj.weight", draw.linear(heads * width, hidden)
        yield f"{at}.k_proj.weight", draw.linear(kv_rows, hidden)
        if kind != "full_attention":
            yield f"{at}.v_proj.weight", draw.linear(kv_rows, hidden)
        yield f"{at}.o_proj.weight", draw.linear(hidden, heads * width)
        yield f"{at}.q_norm.weight", draw.head_norm(width)
        yield f"{at}.k_norm.weight", draw.head_norm(width)


def _vision_tensors(draw: _Draw, text_hidden: int) -> Iterator[tuple[str, Tensor]]:
    hidden = _VISION_HIDDEN
    yield (
        "model.encoder.embed_vision.embedding_projection.weight",
        draw.linear(text_hidden, hidden),
    )
    tower = "model.encoder.vision_tower"
    yield f"{tower}.patch_embedder.input_proj.weight", draw.linear(hidden, 3 * _PATCH**2)
    yield f"{tower}.patch_embedder.position_embedding_table", draw.normal(2, _POSITIONS, hidden, std=0.5)
    yield f"{tower}.std_bias", draw.normal(hidden, std=0.5)
    yield f"{tower}.std_scale", draw.uniform(hidden, low=0.5, high=1.5)
    for n in range(_VISION_LAYERS):
        at = f"{tower}.encoder.layers.{n}"
        for name in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
            yield f"{at}.{name}_layernorm.weight", draw.norm(hidden)
        for name in "qkvo":
            yield f"{at}.self_attn.{name}_proj.linear.weight", draw.linear(hidden, hidden)
        for name in "qk":
            yield f"{at}.self_attn.{name}_norm.weight", draw.head_norm(hidden // 2)
        yield from _mlp(draw, f"{at}.mlp", hidden, 2 * hidden, suffix=".linear.weight")


def _mlp(
    draw: _Draw, at: str, hidden: int, inner: int, *, suffix: str = ".weight"
) -> Iterator[tuple[str, Tensor]]:
    yield f"{at}.gate_proj{suffix}", draw.linear(inner, hidden)
    yield f"{at}.up_proj{suffix}", draw.linear(inner, hidden)
    yield f"{at}.down_proj{suffix}", draw.linear(hidden, inner)


def _write_tensors(folder: Path, tensors: dict[str, Tensor], shards: int) -> None:
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return
    names = list(tensors)
    if shards > len(names):
        raise ValueError(f"shards must be at most the number of tensors ({len(names)}), got {shards}")
    bounds = [len(names) * n // shards for n in range(shards + 1)]
    weight_map: dict[str, str] = {}
    for n, (start, end) in enumerate(pairwise(bounds), start=1):
        file = f"model-{n:05d}-of-{shards:05d}.safetensors"
        save_file({name: tensors[name] for name in names[start:end]}, folder / file, {"format": "pt"})
        weight_map.update(dict.fromkeys(names[start:end], file))
    index = {
        "metadata": {
            "total_parameters": sum(t.numel() for t in tensors.values()),
            "total_size": sum(t.numel() * t.element_size() for t in tensors.values()),
        },
        "weight_map": dict(sorted(weight_map.items())),
    }
    _write_json(folder / "model.safetensors.index.json", index)


def _write_json(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
