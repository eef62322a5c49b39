"""The result as a folder: an adapter, or a whole checkpoint that loads like the one it came from."""

from __future__ import annotations

import datetime
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from jev.model.diffusion_gemma import DiffusionGemma
from jev.model.lora.checkpoint import CARD, NOT_COPIED, kept_of_card
from jev.model.weights.safetensors import SINGLE, VISION, TensorFiles, hf_name, write_tensors
from jev.tune.keep import write_json

Stored: TypeAlias = Literal["float32", "bfloat16"]


def write_full(
    out: Path,
    weights: Mapping[str, Tensor],
    model: DiffusionGemma,
    base: Path,
    *,
    name: str,
    description: str,
    stored: Stored = "float32",
) -> None:
    """Write a checkpoint: the text model's tensors, the base's vision tower, tokenizer and configuration.

    Args:
        out: the folder.
        weights: what was trained, whole, by its name in `TextModel`.
        model: has the rest.
        base: the checkpoint that it came from.
        name: what the new one calls itself.
        description: one line.
        stored: precision of the tensors.
    """
    dtype = torch.float32 if stored == "float32" else torch.bfloat16
    tensors = {
        hf_name(key): weights.get(key, value).detach().to("cpu", dtype).contiguous()
        for key, value in model.text.state_dict().items()
    }
    files = TensorFiles(base)
    for key in files:
        if key.startswith(VISION):
            tensors[key] = files.tensor(key, dtype, "cpu")
    for file in sorted(base.iterdir()):
        if file.is_file() and file.suffix != ".safetensors" and file.name not in NOT_COPIED:
            shutil.copyfile(file, out / file.name)
    beside = out / f"{SINGLE}.part"
    write_tensors(tensors, beside)
    beside.replace(out / SINGLE)
    today = datetime.date.today().isoformat()
    told = {"name": name, "description": description, "release_date": today}
    write_json(out / CARD, kept_of_card(base) | told)
