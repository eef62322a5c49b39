"""What a checkpoint folder holds, without loading its weights."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from jev.model import embedded
from jev.model.config import ModelConfig, read_json


@dataclass(frozen=True)
class ModelFacts:
    """A checkpoint in numbers.

    Attributes:
        name: the checkpoint's own name.
        description: one line.
        release_date: YYYY-MM-DD, where the checkpoint says.
        embedded: whether it is the one that ships with the package.
        path: its folder.
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
    """Read a checkpoint's config, tokenizer and the headers of its weight files.

    Raises:
        CheckpointError: one sentence naming what is missing or wrong.
    """
    from jev.labels import Labels  # noqa: PLC0415 - tokenizers may not be installed
    from jev.model.tokenizer import Tokenizer  # noqa: PLC0415

    config = ModelConfig.from_folder(folder)
    labels = Labels.of(Tokenizer.from_folder(folder))
    parameters, file_bytes = _weights(folder)
    card = read_json(folder / "jev.json") if (folder / "jev.json").exists() else {}
    return ModelFacts(
        name=card.get("name") or folder.resolve().name,
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
