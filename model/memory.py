"""Bytes that a model takes, from its config or the header of its file alone: no weight is read.

Weights are counted by the modules that a loader makes of them (`jev.model.quant`, `jev.model.gguf.load`),
keys and values by the layers that keep them (`jev.model.cache`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import torch

from jev.model.attention import MAX_SCORES
from jev.model.config import ModelConfig, TextConfig
from jev.model.gguf import GGUFFile
from jev.model.gguf.config import config_of
from jev.model.gguf.load import stored_names
from jev.model.source import gguf_path
from jev.model.text import TextModel
from jev.model.vision import VisionTower
from jev.model.vision_config import VisionConfig
from jev.model.weights.int8 import GROUP
from jev.model.weights.safetensors import TensorFiles

Precision: TypeAlias = Literal["float32", "bfloat16", "float16", "float8", "int8", "int4"]

ITEM_BYTES: Mapping[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of a number by the type of the arithmetic."""

DENSE = ("F32", "F16", "BF16")
"""Types of a GGUF file that become parameters in the type of the arithmetic."""

_ROWS_AT_ONCE = 8
"""Copies of the rows' hidden states that a layer holds at once: residual, normed, attended, mixed ..."""

_LOGITS_AT_ONCE = 3
"""Copies of a canvas's logits that writing a text holds at once: logits, probabilities, sorted."""


@dataclass(frozen=True)
class Weights:
    """Bytes of a model's weights.

    Attributes:
        layers: of each layer of the text model.
        rest: of the embedding, the last norm and the self-conditioning.
        vision: of the vision tower with its projector; 0 without one.
        parameters: numbers, where they are weights once each.
    """

    layers: tuple[int, ...]
    rest: int
    vision: int
    parameters: int

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self.layers) + self.rest + self.vision


@dataclass(frozen=True)
class Sizes:
    """What of a checkpoint decides how many bytes it takes.

    Attributes:
        config: of the model.
        shapes: of the text model's parameters by name.
        blocks: bytes of those that stay quantised as the file has them; None = it is no GGUF file.
        tiles: bytes of those of them that a GPU lays out for its kernel (`jev.model.quant.int4`).
        tower: parameters of the vision tower with its projector; 0 without one.
    """

    config: ModelConfig
    shapes: Mapping[str, tuple[int, ...]]
    blocks: Mapping[str, int] | None
    tiles: Mapping[str, int]
    tower: int

    @classmethod
    def of(cls, path: Path, vision: Path | None = None) -> Sizes:
        """Read the config, and of a GGUF file the header.

        Args:
            path: a folder or a GGUF file.
            vision: where the vision tower comes from; None = the folder's own, if it has one.

        Raises:
            CheckpointError: what is needed of the path cannot be read, or does not fit together.
        """
        gguf = gguf_path(path)
        file = None if gguf is None else GGUFFile(gguf)
        config = ModelConfig.from_folder(path) if file is None else config_of(file)
        with torch.device("meta"):
            text = TextModel(config.text)
        if file is None and vision is None and TensorFiles(path).has_vision:
            vision = path
        return cls(
            config,
            {name: tuple(value.shape) for name, value in text.named_parameters()},
            None if file is None else _blocks(text, file),
            {} if file is None else _tiles(text, file),
            0 if vision is None else _tower_parameters(vision, config.text.hidden_size),
        )

    def weights(self, precision: Precision, arithmetic: str, *, gpu: bool = False) -> Weights:
        """What the weights take once they are loaded.

        Args:
            precision: that of the large weights of a folder; those of a GGUF file keep their types.
            arithmetic: the type of everything else, a key of `ITEM_BYTES`.
            gpu: whether they are laid out for a GPU.
        """
        tiles = self.tiles if gpu else {}
        item = ITEM_BYTES[arithmetic]
        counted: Counter[str] = Counter()
        for name, shape in self.shapes.items():
            parts = name.split(".")
            if self.blocks is None:
                size = _packed(name, shape, precision, item)
            else:
                size = tiles.get(name) or self.blocks.get(name, math.prod(shape) * item)
            counted[parts[1] if parts[0] == "layers" else ""] += size
        layers = tuple(counted[str(index)] for index in range(len(self.config.text.layers)))
        parameters = sum(map(math.prod, self.shapes.values())) + self.tower
        return Weights(layers, counted[""], self.tower * item, parameters)


def kv_bytes(config: TextConfig, tokens: int, item: int) -> int:
    """Keys and values of so many tokens, `item` bytes a number; sliding layers keep window - 1."""
    return sum(
        2
        * layer.num_key_value_heads
        * layer.head_dim
        * item
        * (min(tokens, config.sliding_window - 1) if layer.sliding else tokens)
        for layer in config.layers
    )


def workspace_bytes(config: TextConfig, rows: int, tokens: int, item: int, canvas: int = 0) -> int:
    """About what one forward holds beside weights, keys and values.

    Args:
        config: of the text model.
        rows: in the forward.
        tokens: most keys that a row sees.
        item: bytes of a number of the arithmetic.
        canvas: rows with logits of the whole vocabulary at once; 0 = no text is written.
    """
    hidden, k, inner = config.hidden_size, config.top_k_experts, config.moe_intermediate_size
    states = rows * hidden * _ROWS_AT_ONCE * 4
    experts = rows * k * (hidden * (4 + item) + 3 * inner * item)
    decoded = 2 * 3 * hidden * inner * 4  # one expert, while packed weights are decoded
    keys = tokens + rows
    scores = 3 * 4 * min(MAX_SCORES, rows * config.num_attention_heads * keys)
    biases = 2 * 4 * rows * keys
    logits = _LOGITS_AT_ONCE * 4 * canvas * config.vocab_size
    return states + experts + decoded + scores + biases + logits


def _tower_parameters(path: Path, hidden: int) -> int:
    folder = path.parent if path.is_file() else path
    config = VisionConfig.from_dict(ModelConfig.from_folder(folder).raw)
    with torch.device("meta"):
        return sum(value.numel() for value in VisionTower(config, hidden).parameters())


def _large(name: str, shape: tuple[int, ...]) -> bool:
    """Whether a parameter is one that quantised loaders pack: of a linear, of experts, or the embedding."""
    return len(shape) > 1 and "router.proj" not in name


def _packed(name: str, shape: tuple[int, ...], precision: Precision, item: int) -> int:
    """Bytes of one parameter of a folder's text model."""
    count, width = math.prod(shape), shape[-1]
    embedding = name == "embed_tokens.weight"
    if not _large(name, shape) or precision in ITEM_BYTES:
        return count * item
    groups = count // (GROUP if width % GROUP == 0 else width)
    if precision == "float8":
        return count * item if embedding else count + count // width * 4
    if precision == "int8" or embedding:
        return count + groups * 2
    return count // width * ((width + 1) // 2) + groups * 4


def _blocks(text: TextModel, file: GGUFFile) -> dict[str, int]:
    """Bytes of the parameters that `load_gguf_text` keeps in their blocks."""
    shapes = {name: tuple(value.shape) for name, value in text.named_parameters()}
    stored = {
        name: [file.tensors[one] for one in parts]
        for name, parts in stored_names(text, file).items()
        if _large(name, shapes[name])
    }
    # A module whose weights are quantised in part, such as experts, keeps all of them as they are.
    modules = {
        name.rpartition(".")[0]
        for name, parts in stored.items()
        if any(one.type not in DENSE for one in parts)
    }
    return {
        name: sum(one.nbytes for one in parts)
        for name, parts in stored.items()
        if name.rpartition(".")[0] in modules
    }


def _tiles(text: TextModel, file: GGUFFile) -> dict[str, int]:
    """Bytes of the Q4_K parameters that `load_gguf_text` lays out for a GPU: 5 bits a weight, not 4.5."""
    return {
        name: math.prod(text.get_parameter(name).shape) * 5 // 8
        for name, parts in stored_names(text, file).items()
        if name != "embed_tokens.weight"
        and all(file.tensors[one].type == "Q4_K" for one in parts)
        and text.get_parameter(name).shape[-2] % 8 == 0
    }
