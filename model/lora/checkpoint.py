"""A checkpoint folder with an adapter merged into it, as a folder of its own."""

from __future__ import annotations

import datetime
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
from torch import Tensor

from jev.model.config import read_json
from jev.model.errors import CheckpointError
from jev.model.lora.adapter import Adapter, Pair
from jev.model.lora.merge import merged_weight
from jev.model.weights.int8 import SCALE_SUFFIX
from jev.model.weights.safetensors import INDEX, TensorFiles, hf_name, write_tensors

CARD = "jev.json"
NOT_COPIED = ("README.md", CARD, INDEX, "tune.json")
"""Files that tell of a checkpoint itself, and not of those that are made from it."""


def merge_checkpoint(
    source: Path, adapter: Adapter, out: Path, *, name: str, dtype: torch.dtype = torch.float32
) -> None:
    """Write `source` with an adapter merged into its weights, in as many files with the same tensor names.

    Tensors that the adapter changes are written as `dtype`, all others with the values and type they have;
    what is stored as int8 groups is decoded. `out` is there once all of it is written, or not at all.

    Args:
        source: a checkpoint folder.
        adapter: as `load_adapter` checked it against `source`.
        out: a folder that does not exist or is empty.
        name: name of the new checkpoint in its `jev.json`.
        dtype: of the changed tensors.

    Raises:
        CheckpointError: `out` has files in it or is a mount point, `source` cannot be read, or a merged
            weight is not finite.
        OSError: `out` cannot be written.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise CheckpointError(f"{out} is not an empty folder")
    if out.is_mount():  # nothing can be put in its place
        raise CheckpointError(f"{out} is a mount point; name a folder in it")
    files = TensorFiles(source)
    changed = {hf_name(f"{path}.weight"): pair for path, pair in adapter.tensors.items()}
    for stored in changed:
        if stored not in files:
            raise CheckpointError(f"tensor {stored} is missing in {source}")
    out = out.resolve()
    out.parent.mkdir(parents=True, exist_ok=True)
    part = Path(mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        part.chmod(0o755)
        _write_weights(files, changed, adapter.config.scale, dtype, part)
        _write(part / CARD, _card(source, adapter, name))
        for one in source.iterdir():
            if one.is_file() and one.suffix != ".safetensors" and one.name not in NOT_COPIED:
                shutil.copyfile(one, part / one.name)
        part.replace(out)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def _write_weights(
    files: TensorFiles, changed: Mapping[str, Pair], scale: float, dtype: torch.dtype, out: Path
) -> None:
    """Write all tensors, file by file, so that one file of the source is in memory at a time."""
    kept = {tensor: file for tensor, file in files.files.items() if not tensor.endswith(SCALE_SUFFIX)}
    total = 0
    for file in sorted(set(kept.values())):
        tensors: dict[str, Tensor] = {}
        for stored in (one for one, of in kept.items() if of == file):
            if stored in changed:
                weight = files.tensor(stored, torch.float32, "cpu")
                tensors[stored] = merged_weight(weight, changed[stored], scale).to(dtype)
                if not torch.isfinite(tensors[stored]).all():
                    short = str(dtype).removeprefix("torch.")
                    raise CheckpointError(f"tensor {stored} is too large for {short} with the adapter merged")
            else:
                tensors[stored] = files.plain(stored)
        total += sum(tensor.nbytes for tensor in tensors.values())
        write_tensors(tensors, out / file)
    if (files.folder / INDEX).exists():
        _write(out / INDEX, {"metadata": {"total_size": total}, "weight_map": dict(sorted(kept.items()))})


def checkpoint_name(folder: Path) -> str:
    """What a checkpoint calls itself: in its `jev.json`, else the folder's name."""
    return _card_of(folder).get("name") or folder.resolve().name


def kept_of_card(folder: Path) -> dict[str, Any]:
    """What a checkpoint's `jev.json` says of those too that are made from it: whether they write texts."""
    card = _card_of(folder)
    return {"writes": card["writes"]} if "writes" in card else {}


def _card_of(folder: Path) -> dict[str, Any]:
    path = folder / CARD
    card = read_json(path) if path.exists() else {}
    return card if isinstance(card, dict) else {}


def _card(source: Path, adapter: Adapter, name: str) -> Mapping[str, Any]:
    return kept_of_card(source) | {
        "name": name,
        "description": f"{checkpoint_name(source)} with a merged adapter of rank {adapter.config.rank}",
        "release_date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "adapter": {
            "digest": adapter.digest,
            "rank": adapter.config.rank,
            "alpha": adapter.config.alpha,
            "targets": list(adapter.config.targets),
        },
    }


def _write(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
