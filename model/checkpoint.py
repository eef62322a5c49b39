"""From a checkpoint on disk to a model that runs."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch
from torch import nn

from jev.model.config import ModelConfig
from jev.model.diffusion_gemma import DiffusionGemma
from jev.model.errors import CheckpointError
from jev.model.gguf import GGUFFile
from jev.model.gguf.config import config_of
from jev.model.gguf.load import load_gguf_text
from jev.model.masks import ImageRule
from jev.model.offload import Offload, Placement, hosted_layers
from jev.model.quant.load import load_packed_text
from jev.model.quant.packed import Bits
from jev.model.source import gguf_path
from jev.model.vision import VisionTower
from jev.model.vision_config import VisionConfig
from jev.model.weights import Progress
from jev.model.weights.safetensors import INDEX, TensorFiles, load_text, load_vision


def load_checkpoint(
    path: str | Path,
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    vision: str | Path | bool = True,
    image_rule: ImageRule = "diffusion_gemma",
    bits: Bits | Literal["float8"] | None = None,
    offload_layers: int = 0,
    progress: Progress | None = None,
) -> DiffusionGemma:
    """Load a DiffusionGemma checkpoint, ready for inference: a folder or a GGUF file.

    Tensors go one by one from the memory-mapped file straight to `device` and `dtype`. Those stored that way
    already are not copied, and neither are the blocks of a GGUF file, which keep their type.

    Args:
        path: the folder, or a GGUF file, or a folder with one in it.
        device: where the weights go.
        dtype: what they are computed in.
        vision: True loads the vision tower where the folder has one; a path takes it from another
            folder of the same model, or from one safetensors file (the folder's `config.json` and the
            shard that holds the tower are enough).
        image_rule: how the rows of an image see each other in prefill.
        bits: keep the text model's large weights packed in 8 or 4 bits, or as 8-bit floats (see
            `jev.model.quant`).
        offload_layers: layers whose weights stay on the host and come to the device for their turn (see
            `jev.model.offload`); all but the last at most.
        progress: told how many bytes are loaded, after each tensor.

    Raises:
        CheckpointError: one sentence naming the file, key or tensor that is wrong.
    """
    gguf = gguf_path(path)
    if gguf is None:
        model = _from_folder(
            Path(path), device, offload_layers, dtype, image_rule, bits, progress, vision=vision is True
        )
    else:
        model = _from_gguf(gguf, device, offload_layers, dtype, image_rule, bits, progress)
    model.text.skip_silent_experts()
    if offload_layers:
        hosted = hosted_layers(offload_layers, len(model.text.layers))
        Offload([model.text.layers[index] for index in hosted], device)
    if not isinstance(vision, bool):
        other, files = _vision_files(Path(vision))
        model.vision = _vision(
            ModelConfig.from_folder(other), files, dtype, device, model.config.text.hidden_size
        )
    return model.eval().requires_grad_(False)


def _from_folder(
    folder: Path,
    device: str | torch.device,
    offload_layers: int,
    dtype: torch.dtype,
    image_rule: ImageRule,
    bits: Bits | Literal["float8"] | None,
    progress: Progress | None,
    *,
    vision: bool,
) -> DiffusionGemma:
    config = ModelConfig.from_folder(folder)
    place = Placement(device, hosted_layers(offload_layers, len(config.text.layers)))
    files = TensorFiles(folder)
    with torch.device("meta"):
        model = DiffusionGemma(config, image_rule=image_rule)
    if bits is None:
        loaded = load_text(files, _shapes(model.text), dtype, place, progress)
        model.text.load_state_dict(loaded, assign=True)
    else:
        load_packed_text(model.text, files, bits, dtype, place, progress)
    if vision and files.has_vision:
        model.vision = _vision(config, files, dtype, device, config.text.hidden_size)
    return model


def _from_gguf(
    path: Path,
    device: str | torch.device,
    offload_layers: int,
    dtype: torch.dtype,
    image_rule: ImageRule,
    bits: Bits | Literal["float8"] | None,
    progress: Progress | None,
) -> DiffusionGemma:
    if bits is not None:
        raise CheckpointError(
            f"{path} is a GGUF file, whose weights keep their types: dtype is float32, bfloat16 or float16"
        )
    file = GGUFFile(path)
    config = config_of(file)
    place = Placement(device, hosted_layers(offload_layers, len(config.text.layers)))
    with torch.device("meta"):
        model = DiffusionGemma(config, image_rule=image_rule)
    load_gguf_text(model.text, file, dtype, place, progress)
    return model


def _vision_files(path: Path) -> tuple[Path, TensorFiles]:
    """The folder with the config, and the tensors, that a vision tower is taken from."""
    if path.is_file():
        return path.parent, TensorFiles(path.parent, path.name)
    if not path.is_dir():
        raise CheckpointError(f"{path} is not a checkpoint folder")
    shards = sorted(path.glob("*.safetensors"))
    alone = len(shards) == 1 and not (path / INDEX).exists()
    return path, TensorFiles(path, shards[0].name if alone else None)


def _vision(
    config: ModelConfig,
    files: TensorFiles,
    dtype: torch.dtype,
    device: str | torch.device,
    text_hidden: int,
) -> VisionTower:
    if config.text.hidden_size != text_hidden:
        raise CheckpointError(f"the vision tower in {files.folder} belongs to another text model")
    with torch.device("meta"):
        tower = VisionTower(VisionConfig.from_dict(config.raw), text_hidden)
    tower.load_state_dict(load_vision(files, _shapes(tower), dtype, device), assign=True)
    return tower


def _shapes(module: nn.Module) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in module.state_dict().items()}
