"""The checkpoint's `config.json` as frozen dataclasses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from jev.model.errors import CheckpointError

LayerKind = Literal["sliding_attention", "full_attention"]

_DEFAULT_ROPE: dict[str, dict[str, Any]] = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
}


@dataclass(frozen=True)
class LayerConfig:
    """What may differ from layer to layer."""

    kind: LayerKind
    head_dim: int
    num_key_value_heads: int

    @property
    def sliding(self) -> bool:
        """Whether the layer attends within a window."""
        return self.kind == "sliding_attention"


@dataclass(frozen=True)
class RopeConfig:
    """Rotary embedding of one layer kind; `fraction` of the head's pairs rotate, the rest do not."""

    theta: float
    fraction: float


@dataclass(frozen=True)
class TextConfig:
    """The text backbone (fact sheet names of `text_config`)."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    sliding_window: int
    num_experts: int
    top_k_experts: int
    moe_intermediate_size: int
    rms_norm_eps: float
    final_logit_softcapping: float
    max_position_embeddings: int
    layers: tuple[LayerConfig, ...]
    rope: Mapping[str, RopeConfig]


@dataclass(frozen=True)
class ModelConfig:
    """The whole checkpoint: text backbone, canvas and special ids.

    `raw` is the file as read, `generation` is `generation_config.json` as read.
    """

    text: TextConfig
    canvas_length: int
    image_token_id: int | None
    eos_token_ids: tuple[int, ...]
    pad_token_id: int
    raw: Mapping[str, Any] = field(repr=False, compare=False)
    generation: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def from_folder(cls, folder: Path) -> ModelConfig:
        """Read `config.json` and `generation_config.json`, whose end-of-sequence set wins.

        Raises:
            CheckpointError: for a missing or unreadable file, or a config this model cannot run.
        """
        raw = read_json(folder / "config.json")
        generation_file = folder / "generation_config.json"
        generation = read_json(generation_file) if generation_file.exists() else {}
        return cls.from_dict(raw, generation)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any], generation: Mapping[str, Any] | None = None) -> ModelConfig:
        """Build from decoded JSON; see `from_folder`."""
        generation = {} if generation is None else generation
        if not isinstance(raw, Mapping) or not isinstance(generation, Mapping):
            raise CheckpointError("config.json: expected an object, here and in generation_config.json")
        if raw.get("model_type") != "diffusion_gemma":
            raise CheckpointError(
                f"config.json: model_type is {raw.get('model_type')!r}, expected 'diffusion_gemma'"
            )
        text = raw.get("text_config")
        if not isinstance(text, Mapping):
            raise CheckpointError("config.json: text_config is missing")
        return cls(
            text=_text_config(text),
            canvas_length=_integer(raw, "canvas_length"),
            image_token_id=raw.get("image_token_id"),
            eos_token_ids=_token_ids(_first(generation.get("eos_token_id"), raw.get("eos_token_id"), 1)),
            pad_token_id=_token_ids(
                _first(generation.get("pad_token_id"), text.get("pad_token_id"), 0), "pad_token_id"
            )[0],
            raw=raw,
            generation=generation,
        )


def read_json(path: Path) -> Any:
    """Read a JSON file, with a `CheckpointError` that names it when that fails."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path.name} is missing in {path.parent}") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from None
    except RecursionError:
        raise CheckpointError(f"{path} cannot be read: it is nested too deep") from None


def _integer(raw: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = raw.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise CheckpointError(f"config.json: {key} must be a positive integer, not {value!r}")
    return value


def _number(raw: Mapping[str, Any], key: str, default: float) -> float:
    value = raw.get(key, default)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not value > 0:
        raise CheckpointError(f"config.json: {key} must be a positive number, not {value!r}")
    return float(value)


def _mapping(value: Any, key: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise CheckpointError(f"config.json: {key} must be an object, not {value!r}")
    return value


def _first(*values: Any) -> Any:
    """The first value that is not null."""
    return next(value for value in values if value is not None)


def _token_ids(value: Any, key: str = "eos_token_id") -> tuple[int, ...]:
    ids = value if isinstance(value, list) else [value]
    if not ids or not all(isinstance(one, int) and not isinstance(one, bool) and one >= 0 for one in ids):
        raise CheckpointError(f"config.json: {key} must be a token id or a list of them, not {value!r}")
    return tuple(ids)


def _text_config(raw: Mapping[str, Any]) -> TextConfig:
    if raw.get("hidden_activation", "gelu_pytorch_tanh") != "gelu_pytorch_tanh":
        raise CheckpointError(f"config.json: hidden_activation {raw['hidden_activation']!r} is not supported")
    if raw.get("attention_bias"):
        raise CheckpointError("config.json: attention_bias is not supported")
    if raw.get("use_bidirectional_attention") == "all":
        raise CheckpointError("config.json: use_bidirectional_attention 'all' is not supported")
    if not raw.get("tie_word_embeddings", True):
        raise CheckpointError("config.json: untied word embeddings are not supported")
    rope = {
        kind: _rope(_mapping(values, f"rope_parameters.{kind}"))
        for kind, values in _mapping(raw.get("rope_parameters") or _DEFAULT_ROPE, "rope_parameters").items()
    }
    layers = _layers(raw)
    for layer in layers:
        if layer.kind not in rope:
            raise CheckpointError(f"config.json: rope_parameters has no entry for {layer.kind}")
    config = TextConfig(
        vocab_size=_integer(raw, "vocab_size"),
        hidden_size=_integer(raw, "hidden_size"),
        intermediate_size=_integer(raw, "intermediate_size"),
        num_attention_heads=_integer(raw, "num_attention_heads"),
        sliding_window=_integer(raw, "sliding_window"),
        num_experts=_integer(raw, "num_experts"),
        top_k_experts=_integer(raw, "top_k_experts"),
        moe_intermediate_size=_integer(raw, "moe_intermediate_size"),
        rms_norm_eps=_number(raw, "rms_norm_eps", 1e-6),
        final_logit_softcapping=_number(raw, "final_logit_softcapping", 30.0),
        max_position_embeddings=_integer(raw, "max_position_embeddings", 131_072),
        layers=layers,
        rope=rope,
    )
    if config.top_k_experts > config.num_experts:
        raise CheckpointError(
            f"config.json: top_k_experts {config.top_k_experts} is over num_experts {config.num_experts}"
        )
    for layer in config.layers:
        if config.num_attention_heads % layer.num_key_value_heads:
            raise CheckpointError(
                f"config.json: {config.num_attention_heads} attention heads cannot share "
                f"{layer.num_key_value_heads} key/value heads"
            )
    return config


def _rope(values: Mapping[str, Any]) -> RopeConfig:
    if "rope_theta" not in values:
        raise CheckpointError("config.json: rope_parameters has an entry without rope_theta")
    proportional = values.get("rope_type") == "proportional"
    fraction = _number(values, "partial_rotary_factor", 1.0) if proportional else 1.0
    return RopeConfig(theta=_number(values, "rope_theta", 1.0), fraction=fraction)


def _layers(raw: Mapping[str, Any]) -> tuple[LayerConfig, ...]:
    """One config a layer, from either form of the file.

    As published, `global_head_dim` and `num_global_key_value_heads` speak of all full layers; as
    re-saved by transformers, `per_layer_config` names the layers that differ, and it alone counts.
    """
    count = _integer(raw, "num_hidden_layers")
    every_sixth = ["full_attention" if i % 6 == 5 else "sliding_attention" for i in range(count)]
    kinds = raw.get("layer_types") or every_sixth
    if not isinstance(kinds, list) or not all(isinstance(kind, str) for kind in kinds):
        raise CheckpointError(f"config.json: layer_types must be a list of names, not {kinds!r}")
    kinds = list(kinds)
    if len(kinds) != count:
        raise CheckpointError(f"config.json: {len(kinds)} layer_types for {count} layers")
    kinds[-1] = "full_attention"  # as transformers forces it
    head_dim = _integer(raw, "head_dim", 256)
    kv_heads = _integer(raw, "num_key_value_heads")
    overrides: Mapping[str, Mapping[str, Any]]
    if "per_layer_config" in raw:
        given = _mapping(raw["per_layer_config"] or {}, "per_layer_config")
        overrides = {str(i): _mapping(values, f"per_layer_config.{i}") for i, values in given.items()}
    else:
        full = {
            "head_dim": _integer(raw, "global_head_dim", 512),
            "num_key_value_heads": raw.get("num_global_key_value_heads") or kv_heads,
        }
        overrides = {str(i): full for i, kind in enumerate(kinds) if kind == "full_attention"}
    layers = []
    for index, kind in enumerate(kinds):
        if kind not in ("sliding_attention", "full_attention"):
            raise CheckpointError(f"config.json: layer type {kind!r} in layer_types is not supported")
        values = overrides.get(str(index), {})
        layers.append(
            LayerConfig(
                kind=kind,
                head_dim=_integer(values, "head_dim", head_dim),
                num_key_value_heads=_integer(values, "num_key_value_heads", kv_heads),
            )
        )
    return tuple(layers)
