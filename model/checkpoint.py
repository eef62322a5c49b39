"""From a checkpoint folder to a model that runs."""

from __future__ import annotations

from pathlib import Path

import torch

from jev.model.config import ModelConfig
from jev.model.diffusion_gemma import DiffusionGemma
from jev.model.errors import CheckpointError
from jev.model.weights.safetensors import load_tensors


def load_checkpoint(
    path: str | Path, *, device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32
) -> DiffusionGemma:
    """Load the text part of a DiffusionGemma checkpoint folder, ready for inference.

    Tensors go from the memory-mapped file straight to `device` and `dtype`; those stored that way
    already are not copied.

    Raises:
        CheckpointError: one sentence naming the file, key or tensor that is wrong.

    """
    folder = Path(path)
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is not a checkpoint folder")
    config = ModelConfig.from_folder(folder)
    with torch.device("meta"):
        model = DiffusionGemma(config)
    shapes = {name: value.shape for name, value in model.text.state_dict().items()}
    tensors = load_tensors(folder, shapes, dtype, device)
    model.text.load_state_dict(tensors, assign=True)
    return model.eval().requires_grad_(False)
