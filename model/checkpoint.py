"""From a checkpoint folder to a model that runs."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from jev.model.config import ModelConfig
from jev.model.diffusion_gemma import DiffusionGemma
from jev.model.errors import CheckpointError
from jev.model.masks import ImageRule
from jev.model.quant.load import load_packed_text
from jev.model.quant.packed import Bits
from jev.model.vision import VisionTower
from jev.model.vision_config import VisionConfig
from jev.model.weights.safetensors import TensorFiles, load_text, load_vision


def load_checkpoint(
    path: str | Path,
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    vision: str | Path | bool = True,
    image_rule: ImageRule = "diffusion_gemma",
    bits: Bits | None = None,
) -> DiffusionGemma:
    """Load a DiffusionGemma checkpoint folder, ready for inference.

    Tensors go from the memory-mapped file straight to `device` and `dtype`; those stored that way
    already are not copied.

    Args:
        path: the folder.
        device: where the weights go.
        dtype: what they are computed in.
        vision: True loads the vision tower where the folder has one; a path takes it from another
            folder of the same model (its `config.json` and the shard that holds the tower are enough).
        image_rule: how the rows of an image see each other in prefill.
        bits: keep the text model's large weights packed in 8 or 4 bits (see `jev.model.quant`).

    Raises:
        CheckpointError: one sentence naming the file, key or tensor that is wrong.
    """
    folder = _folder(path)
    config = ModelConfig.from_folder(folder)
    files = TensorFiles(folder)
    with torch.device("meta"):
        model = DiffusionGemma(config, image_rule=image_rule)
    if bits is None:
        model.text.load_state_dict(load_text(files, _shapes(model.text), dtype, device), assign=True)
    else:
        load_packed_text(model.text, files, bits, dtype, device)
    model.text.skip_silent_experts()
    if vision is True and files.has_vision:
        model.vision = _vision(config, files, dtype, device)
    elif not isinstance(vision, bool):
        other = _folder(vision)
        model.vision = _vision(ModelConfig.from_folder(other), TensorFiles(other), dtype, device)
        if model.vision.embedding_projection.out_features != config.text.hidden_size:
            raise CheckpointError(f"the vision tower in {other} belongs to another text model")
    return model.eval().requires_grad_(False)


def _folder(path: str | Path) -> Path:
    folder = Path(path)
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is not a checkpoint folder")
    return folder


def _vision(
    config: ModelConfig, files: TensorFiles, dtype: torch.dtype, device: str | torch.device
) -> VisionTower:
    with torch.device("meta"):
        tower = VisionTower(VisionConfig.from_dict(config.raw), config.text.hidden_size)
    tower.load_state_dict(load_vision(files, _shapes(tower), dtype, device), assign=True)
    return tower


def _shapes(module: nn.Module) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in module.state_dict().items()}
