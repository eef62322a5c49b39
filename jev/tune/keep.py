"""What a run keeps on disk so that it goes on after a kill: each file is whole at any moment, or absent."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import torch

from jev.tune.recipe import TuneError

STATE = "state.pt"


def write_atomically(path: Path, content: bytes) -> None:
    """Put a file in place of the one that is there, if any, at one moment; it is on the disk afterwards."""
    beside = path.with_name(path.name + ".part")
    with beside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    _move(beside, path)


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file for people to read, as `write_atomically` does."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, indent=1)
    write_atomically(path, f"{text}\n".encode())


def save(path: Path, content: dict[str, Any]) -> None:
    """Write tensors and plain values, as `write_atomically` does."""
    beside = path.with_name(path.name + ".part")
    with beside.open("wb") as file:
        torch.save(content, file)
        file.flush()
        os.fsync(file.fileno())
    _move(beside, path)


def load(path: Path) -> dict[str, Any]:
    """Read what `save` wrote, onto the CPU.

    Raises:
        TuneError: it cannot be read.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, ValueError, pickle.UnpicklingError) as error:
        raise TuneError(f"{path} cannot be read ({error}); --restart begins anew") from None


def _move(beside: Path, path: Path) -> None:
    beside.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the name too survives a loss of power
    finally:
        os.close(folder)
