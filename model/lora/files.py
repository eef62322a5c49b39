"""Adapters on disk as PEFT writes them: `adapter_config.json` beside `adapter_model.safetensors`.

A linear is named as in the checkpoint: `base_model.model.model.decoder.layers.N...lora_A.weight` [r, in] and
`...lora_B.weight` [out, r]. Under "jev" the config names the checkpoint that the adapter belongs to.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import regex
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from jev.model.config import TextConfig, read_json
from jev.model.errors import CheckpointError
from jev.model.lora.adapter import PROJECTIONS, Adapter, LoraConfig, Pair, target_shapes
from jev.model.weights.safetensors import hf_name, write_tensors

CONFIG = "adapter_config.json"
TENSORS = "adapter_model.safetensors"
PATTERN_SECONDS = 2
"""Most time that a pattern of linears may take for one name; some patterns would take years."""
_PREFIX = "base_model.model."
_PARTS = (".lora_A.weight", ".lora_B.weight")

_NO_EFFECT = frozenset(
    {
        *("auto_mapping", "base_model_name_or_path", "inference_mode", "jev", "lora_dropout", "peft_type"),
        *("peft_version", "revision", "runtime_config", "task_type", "layers_pattern", "loftq_config"),
        *("eva_config", "lora_ga_config", "megatron_config", "megatron_core", "qalora_group_size"),
        *("r", "lora_alpha", "target_modules", "init_lora_weights"),
    }
)
"""Keys of PEFT's config that are looked at elsewhere, or that say nothing about what the adapter computes."""

_OFF: tuple[Any, ...] = (None, False, "none", [], {})
"""Values by which any other key, also one of a later PEFT, leaves the adapter what it is here."""

_INITIAL: tuple[Any, ...] = (None, True, False, "gaussian", "eva", "orthogonal")
"""Starts of a training that leave the checkpoint's own weights as they are."""


def save_adapter(folder: str | Path, adapter: Adapter, *, base_name: str, base_fingerprint: str) -> None:
    """Write an adapter into a folder, which is made; files of an adapter that is there are replaced.

    Args:
        folder: where to.
        adapter: what.
        base_name: name of the checkpoint it was trained on.
        base_fingerprint: digest of that checkpoint (`jev.model.weights.identity.weights_digest`).

    Raises:
        OSError: the folder cannot be written.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, Tensor] = {}
    for name, pair in adapter.tensors.items():
        for part, value in zip(_PARTS, pair, strict=True):
            tensors[_stored(name, part)] = value.detach().to("cpu", torch.float32).contiguous()
    config = {
        "base_model_name_or_path": base_name,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "jev": {"base_fingerprint": base_fingerprint, "version": version("jev-server")},
        "lora_alpha": adapter.config.alpha,
        "lora_dropout": 0.0,
        "peft_type": "LORA",
        "r": adapter.config.rank,
        # A pattern: a list would also mean linears of the encoder, the vision tower and self-conditioning.
        "target_modules": _pattern(adapter.config.targets),
        "task_type": None,
    }
    # Each file whole or not at all, and the config, without which there is no adapter, last.
    write_tensors(tensors, folder / f"{TENSORS}.part")
    (folder / f"{TENSORS}.part").replace(folder / TENSORS)
    text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    (folder / f"{CONFIG}.part").write_text(text, encoding="utf-8")
    (folder / f"{CONFIG}.part").replace(folder / CONFIG)


def load_adapter(folder: str | Path, config: TextConfig, *, base_fingerprint: str | None = None) -> Adapter:
    """Read an adapter and check all of it against the text model that it is for.

    Args:
        folder: holds `adapter_config.json` and `adapter_model.safetensors`.
        config: of the text model.
        base_fingerprint: digest of the checkpoint; an adapter that says it belongs to another one is
            refused. None = not checked.

    Raises:
        CheckpointError: one sentence that names the file and the key or tensor that is wrong.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is not an adapter folder")
    path = folder / CONFIG
    about = read_facts(folder)
    jev = _mapping(about.get("jev", {}), path, "jev")
    base_name, fingerprint = about.get("base_model_name_or_path") or "", jev.get("base_fingerprint", "")
    if not isinstance(base_name, str) or not isinstance(fingerprint, str):
        raise CheckpointError(f"{path}: base_model_name_or_path and jev.base_fingerprint are texts")
    if base_fingerprint and fingerprint and fingerprint != base_fingerprint:
        raise CheckpointError(
            f"{path}: the adapter was made for base model {base_name!r} (weights {fingerprint[:12]}), "
            f"this one has weights {base_fingerprint[:12]}"
        )
    lora, shapes = _read_config(about, path, target_shapes(config))
    return Adapter(lora, _read_tensors(folder / TENSORS, lora, shapes), base_name, fingerprint)


def read_facts(folder: str | Path) -> Mapping[str, Any]:
    """The config of an adapter as it is written, unchecked but for being a JSON object.

    Raises:
        CheckpointError: it is not there or cannot be read.
    """
    path = Path(folder) / CONFIG
    return _mapping(read_json(path), path)


@dataclass(frozen=True)
class AdapterFacts:
    """What an adapter folder holds, not checked against any model.

    Attributes:
        rank: inner width.
        alpha: strength; the update is scaled by alpha / rank.
        targets: kinds of linears that have matrices in the file.
        layers: how many layers have.
        parameters: numbers in all matrices.
        file_bytes: size of the file with the matrices.
        base_name: checkpoint it was trained on; "" if not known.
        base_fingerprint: digest of that checkpoint; "" if not known.
    """

    rank: Any
    alpha: Any
    targets: tuple[str, ...]
    layers: int
    parameters: int
    file_bytes: int
    base_name: str
    base_fingerprint: str


def adapter_facts(folder: str | Path) -> AdapterFacts:
    """Look into an adapter folder.

    Raises:
        CheckpointError: a file is missing, or is not what PEFT writes.
    """
    folder = Path(folder)
    about, path = read_facts(folder), folder / TENSORS
    if about.get("peft_type") != "LORA":
        raise CheckpointError(f"{folder / CONFIG}: peft_type is {about.get('peft_type')!r}, expected 'LORA'")
    if not path.is_file():
        raise CheckpointError(f"{TENSORS} is missing in {folder}")
    try:
        with safe_open(path, framework="pt") as file:
            shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118 - no mapping
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is damaged or not a safetensors file: {error}") from None
    kinds = {name.split(".")[-3] for name in shapes if name.endswith(_PARTS)}
    jev = about.get("jev")
    return AdapterFacts(
        rank=about.get("r"),
        alpha=about.get("lora_alpha"),
        targets=tuple(sorted(kinds, key=lambda kind: (*PROJECTIONS, kind).index(kind))),
        layers=len({match[1] for name in shapes if (match := re.search(r"\.layers\.(\d+)\.", name))}),
        parameters=sum(math.prod(shape) for shape in shapes.values()),
        file_bytes=path.stat().st_size,
        base_name=str(about.get("base_model_name_or_path") or ""),
        base_fingerprint=str(jev.get("base_fingerprint", "")) if isinstance(jev, dict) else "",
    )


def _read_config(
    about: Mapping[str, Any], path: Path, shapes: Mapping[str, tuple[int, int]]
) -> tuple[LoraConfig, dict[str, tuple[int, int]]]:
    """The checked config, and (out, in) of every linear that it means."""
    if about.get("peft_type") != "LORA":
        raise CheckpointError(f"{path}: peft_type is {about.get('peft_type')!r}, expected 'LORA'")
    for key, value in about.items():
        if (key not in _NO_EFFECT and value not in _OFF) or (
            key == "init_lora_weights" and value not in _INITIAL
        ):
            raise CheckpointError(f"{path}: {key} is {str(value)[:200]!r}, which is not supported")
    for key in ("r", "lora_alpha", "target_modules"):
        if key not in about:
            raise CheckpointError(f"{path}: {key} is missing")
    chosen = _chosen(about["target_modules"], path, shapes)
    targets = tuple({name.rpartition(".")[2] for name in chosen})
    partly = [name for name in shapes if name.rpartition(".")[2] in targets and name not in chosen]
    if partly:
        raise CheckpointError(
            f"{path}: target_modules leaves out {partly[0]}; an adapter of some layers only is not supported"
        )
    try:
        lora = LoraConfig(about["r"], about["lora_alpha"], targets)
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from None
    return lora, chosen


def _chosen(wanted: object, path: Path, shapes: Mapping[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    """The linears that target_modules means: a pattern for whole names, or ends of names."""
    names = {name: hf_name(name) for name in shapes}
    if isinstance(wanted, str):
        try:
            pattern = regex.compile(wanted)
            found = [
                name for name, stored in names.items() if pattern.fullmatch(stored, timeout=PATTERN_SECONDS)
            ]
        except regex.error as error:
            raise CheckpointError(f"{path}: target_modules is not a pattern ({error})") from None
        except TimeoutError:
            raise CheckpointError(
                f"{path}: target_modules is a pattern that takes over {PATTERN_SECONDS} s for one name"
            ) from None
    elif isinstance(wanted, list) and all(isinstance(one, str) for one in wanted):
        ends = {one: f".{one}" for one in wanted}
        for one, end in ends.items():
            if not any(f".{stored}".endswith(end) for stored in names.values()):
                raise CheckpointError(
                    f"{path}: target_modules has {one!r}, which is not one of {', '.join(PROJECTIONS)}"
                )
        found = [
            name for name, stored in names.items() if any(f".{stored}".endswith(end) for end in ends.values())
        ]
    else:
        raise CheckpointError(f"{path}: target_modules is neither a pattern nor a list of names")
    if not found:
        raise CheckpointError(f"{path}: target_modules means no linear of this model")
    return {name: shapes[name] for name in found}


def _read_tensors(path: Path, lora: LoraConfig, shapes: Mapping[str, tuple[int, int]]) -> dict[str, Pair]:
    if not path.is_file():
        raise CheckpointError(f"{path.name} is missing in {path.parent}")
    wanted: dict[str, list[int]] = {}
    for name, (rows, columns) in shapes.items():
        wanted[_stored(name, _PARTS[0])] = [lora.rank, columns]
        wanted[_stored(name, _PARTS[1])] = [rows, lora.rank]
    try:
        with safe_open(path, framework="pt") as file:
            _check_names(path, file.keys(), wanted)
            found = {
                name: _tensor(path, name, file.get_tensor(name), shape) for name, shape in wanted.items()
            }
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is damaged or not a safetensors file: {error}") from None
    return {name: (found[_stored(name, _PARTS[0])], found[_stored(name, _PARTS[1])]) for name in shapes}


def _check_names(path: Path, there: Iterable[str], wanted: Mapping[str, Any]) -> None:
    there = set(there)
    for name in wanted:
        if name not in there:
            raise CheckpointError(f"tensor {name} is missing in {path}")
    for name in sorted(there):
        if name not in wanted:
            raise CheckpointError(f"tensor {name} in {path} is not part of this adapter for this model")


def _tensor(path: Path, name: str, value: Tensor, shape: list[int]) -> Tensor:
    if list(value.shape) != shape:
        raise CheckpointError(f"tensor {name} in {path} has shape {list(value.shape)}, expected {shape}")
    if not value.is_floating_point():
        raise CheckpointError(f"tensor {name} in {path} has type {value.dtype}, expected floating point")
    value = value.float()  # first: of 8-bit types torch cannot tell, and of 64 bits it may be too much
    if not torch.isfinite(value).all():
        raise CheckpointError(f"tensor {name} in {path} has values that are not finite")
    return value


def _stored(name: str, part: str) -> str:
    return f"{_PREFIX}{hf_name(name)}{part}"


def _pattern(targets: tuple[str, ...]) -> str:
    return rf"model\.decoder\.layers\.\d+\.(?:self_attn|mlp)\.(?:{'|'.join(targets)})"


def _mapping(value: object, path: Path, key: str = "") -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: {key or 'the file'} is not a JSON object")
    return value
