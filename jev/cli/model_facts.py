"""What a checkpoint holds, without loading its weights."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from jev.model import embedded
from jev.model.source import gguf_path, read_card, read_config, read_tokenizer


@dataclass(frozen=True)
class ModelFacts:
    """A checkpoint in numbers.

    Attributes:
        name: the checkpoint's own name.
        description: one line.
        release_date: YYYY-MM-DD, where the checkpoint says.
        embedded: whether it is the one that ships with the package.
        path: its folder or file.
        parameters: numbers in the text model.
        layers: transformer layers.
        context: most tokens of a prompt with its canvas.
        labels: single-token labels by question type.
        file_bytes: size of its weight files.
    """

    name: str
    description: str
    release_date: str | None
    embedded: bool
    path: str
    parameters: int
    layers: int
    context: int
    labels: dict[str, int]
    file_bytes: int


def facts_of(folder: Path) -> ModelFacts:
    """Read the config, tokenizer and headers of the weight files of a checkpoint folder or GGUF file.

    Raises:
        CheckpointError: one sentence naming what is missing or wrong.
    """
    from jev.labels import Labels  # noqa: PLC0415 - tokenizers may not be installed

    config = read_config(folder)
    labels = Labels.of(read_tokenizer(folder))
    file = gguf_path(folder)
    parameters, file_bytes = _weights(folder) if file is None else _gguf_weights(file)
    card = read_card(folder)
    return ModelFacts(
        name=card["name"],
        description=card.get("description", ""),
        release_date=card.get("release_date"),
        embedded=folder.resolve() == embedded.path().resolve(),
        path=str(folder),
        parameters=parameters,
        layers=len(config.text.layers),
        context=config.text.max_position_embeddings,
        labels={"noul": len(labels.noul), "choice": len(labels.choice), "score": len(labels.score)},
        file_bytes=file_bytes,
    )


def _gguf_weights(path: Path) -> tuple[int, int]:
    """The same of a GGUF file."""
    from jev.model.gguf import GGUFFile  # noqa: PLC0415 - it loads torch
    from jev.model.gguf.names import ROPE_FREQS  # noqa: PLC0415

    tensors = GGUFFile(path).tensors.values()
    parameters = sum(math.prod(one.shape) for one in tensors if one.name != ROPE_FREQS)
    return parameters, path.stat().st_size


def _weights(folder: Path) -> tuple[int, int]:
    """Count the text model's parameters and the bytes of the files."""
    from jev.model.weights.int8 import SCALE_SUFFIX  # noqa: PLC0415 - it loads torch
    from jev.model.weights.safetensors import VISION, TensorFiles  # noqa: PLC0415

    files = TensorFiles(folder)
    parameters = sum(
        math.prod(files.shape(name))
        for name in files
        if not name.endswith(SCALE_SUFFIX) and not name.startswith(VISION)
    )
    return parameters, sum((folder / file).stat().st_size for file in set(files.files.values()))
