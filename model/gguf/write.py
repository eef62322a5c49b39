"""Write a model as a GGUF file: for tests, for measuring a type, and for files of the published shape."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter
from torch import Tensor

from jev.model.config import ModelConfig
from jev.model.gguf.config import ARCHITECTURES
from jev.model.gguf.names import ROPE_FREQS, gguf_name
from jev.model.gguf.quantize import encode, fitting_type
from jev.model.gguf.tokenizer import MODEL, type_of
from jev.model.quant.blocks import BLOCKS

ALIGNMENT = 32


@dataclass(frozen=True)
class Stored:
    """A tensor to write.

    Attributes:
        name: in the file.
        type: by ggml's name.
        shape: [..., in].
        data: makes its bytes, uint8 [..., row bytes], once they are written.
    """

    name: str
    type: str
    shape: tuple[int, ...]
    data: Callable[[], Tensor]

    @property
    def byte_shape(self) -> tuple[int, ...]:
        """Shape of its bytes."""
        values, size = BLOCKS[self.type]
        return (*self.shape[:-1], self.shape[-1] // values * size)


def save_gguf(
    tensors: Mapping[str, Tensor],
    path: Path,
    config: ModelConfig,
    tokenizer: Mapping[str, Any],
    *,
    type: str,
    chat_template: str | None = None,
) -> None:
    """Write parameters of `TextModel` with every matrix as `type`, or what its rows allow instead.

    Args:
        tensors: parameters by name.
        path: the file to write.
        config: of the model.
        tokenizer: decoded `tokenizer.json`.
        type: by ggml's name.
        chat_template: for the metadata; None = none.
    """
    stored = [stored_tensor(name, value, type) for name, value in tensors.items()]
    write_file(path, metadata_of(config, tokenizer, chat_template), [*stored, rope_freqs(config)])


def stored_tensor(name: str, value: Tensor, type: str) -> Stored:
    """A parameter of `TextModel` under its GGUF name; vectors and routers stay fp32."""
    if value.dim() == 1 or name.endswith("router.proj.weight"):
        type = "F32"
    type = fitting_type(type, value.shape[-1])
    return Stored(gguf_name(name), type, tuple(value.shape), lambda: encode(value, type))


def rope_freqs(config: ModelConfig) -> Stored:
    """The divisors that stop a share of the full layers' pairs from rotating."""
    width = next(layer.head_dim for layer in config.text.layers if not layer.sliding)
    rotated = int(config.text.rope["full_attention"].fraction * (width // 2))
    values = torch.full((width // 2,), 1e30)
    values[:rotated] = 1.0
    return Stored(ROPE_FREQS, "F32", (width // 2,), lambda: encode(values, "F32"))


def metadata_of(
    config: ModelConfig, tokenizer: Mapping[str, Any], chat_template: str | None = None
) -> dict[str, Any]:
    """A model's metadata by key, with the keys and value types of the published files."""
    text, prefix = config.text, ARCHITECTURES[0]
    full = text.layers[-1].head_dim
    sliding = next((one.head_dim for one in text.layers if one.sliding), full)
    model = {
        "block_count": len(text.layers),
        "context_length": text.max_position_embeddings,
        "embedding_length": text.hidden_size,
        "feed_forward_length": text.intermediate_size,
        "attention.head_count": text.num_attention_heads,
        "attention.head_count_kv": [one.num_key_value_heads for one in text.layers],
        "attention.key_length": full,
        "attention.value_length": full,
        "attention.key_length_swa": sliding,
        "attention.value_length_swa": sliding,
        "attention.sliding_window": text.sliding_window,
        "attention.sliding_window_pattern": [one.sliding for one in text.layers],
        "attention.layer_norm_rms_epsilon": text.rms_norm_eps,
        "attention.shared_kv_layers": 0,
        "attention.causal": False,
        "rope.freq_base": text.rope["full_attention"].theta,
        "rope.freq_base_swa": text.rope["sliding_attention"].theta,
        "rope.dimension_count": full,
        "rope.dimension_count_swa": sliding,
        "expert_count": text.num_experts,
        "expert_used_count": text.top_k_experts,
        "expert_feed_forward_length": text.moe_intermediate_size,
        "embedding_length_per_layer_input": 0,
        "final_logit_softcapping": text.final_logit_softcapping,
    }
    return {
        **{f"{prefix}.{key}": value for key, value in model.items()},
        "diffusion.canvas_length": config.canvas_length,
        **_diffusion(config.generation),
        **_vocabulary(config, tokenizer),
        **({"tokenizer.chat_template": chat_template} if chat_template is not None else {}),
    }


def _diffusion(generation: Mapping[str, Any]) -> dict[str, Any]:
    """The sampler's defaults, where a `generation_config.json` gives them."""
    found = {
        "max_steps": generation.get("max_denoising_steps"),
        "t_min": generation.get("t_min"),
        "t_max": generation.get("t_max"),
        "entropy_bound": (generation.get("sampler_config") or {}).get("entropy_bound"),
        "confidence_threshold": generation.get("confidence_threshold"),
        "stability_threshold": generation.get("stability_threshold"),
    }
    return {f"diffusion.eb_{key}": value for key, value in found.items() if value is not None}


def _vocabulary(config: ModelConfig, tokenizer: Mapping[str, Any]) -> dict[str, Any]:
    ids: dict[str, int] = dict(tokenizer["model"]["vocab"])
    added = {one["content"]: bool(one["special"]) for one in tokenizer.get("added_tokens") or ()}
    ids |= {one["content"]: one["id"] for one in tokenizer.get("added_tokens") or ()}
    tokens = sorted(ids, key=ids.__getitem__)
    if [ids[token] for token in tokens] != list(range(len(tokens))):
        raise ValueError("the tokenizer's ids have gaps")
    merges = [one if isinstance(one, str) else " ".join(one) for one in tokenizer["model"]["merges"]]
    named = {"bos": "<bos>", "unknown": "<unk>", "mask": "<mask>"}
    return {
        "tokenizer.ggml.model": MODEL,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [-1000.0] * len(tokens),
        "tokenizer.ggml.token_type": [
            type_of(one, special=added.get(one, False), added=one in added) for one in tokens
        ],
        "tokenizer.ggml.merges": merges,
        **{f"tokenizer.ggml.{key}_token_id": ids[one] for key, one in named.items() if one in ids},
        "tokenizer.ggml.eos_token_id": config.eos_token_ids[0],
        "tokenizer.ggml.padding_token_id": config.pad_token_id,
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.ggml.add_bos_token": True,
    }


def write_file(path: Path, metadata: Mapping[str, Any], tensors: Sequence[Stored]) -> None:
    """Write a GGUF file, one tensor at a time."""
    writer = open_file(path, metadata, tensors)
    for one in tensors:
        writer.write_tensor_data(np.asarray(one.data()))
    writer.close()


def open_file(path: Path, metadata: Mapping[str, Any], tensors: Iterable[Stored]) -> GGUFWriter:
    """Write a file's header; the tensors' bytes are to follow in order, each padded to `ALIGNMENT`."""
    writer = GGUFWriter(path, ARCHITECTURES[0])
    for key, value in metadata.items():
        writer.add_key_value(key, value, _value_type(value))
    for one in tensors:
        writer.add_tensor_info(
            one.name,
            one.byte_shape,
            np.dtype(np.uint8),
            int(np.prod(one.byte_shape)),
            GGMLQuantizationType[one.type],
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    return writer


def _value_type(value: Any) -> GGUFValueType:
    """As llama.cpp's converter chooses: unsigned for whole numbers, 4 bytes for all others."""
    kinds = {bool: GGUFValueType.BOOL, int: GGUFValueType.UINT32, float: GGUFValueType.FLOAT32}
    if isinstance(value, str):
        return GGUFValueType.STRING
    return GGUFValueType.ARRAY if isinstance(value, list) else kinds[type(value)]
