"""What a run keeps on disk so that it goes on after a kill: each file is whole at any moment, or absent."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import torch

from jev.disk import sync_folder
from jev.tune.recipe import TuneError

STATE = "state.pt"


@contextmanager
def replaced(path: Path) -> Iterator[IO[bytes]]:
    """Write a file in place of the one that is there, if any, at one moment; it is on the disk afterwards."""
    beside = path.with_name(path.name + ".part")
    with beside.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    sync_folder(path.parent)


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file for people to read, as `replaced` does."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, indent=1)
    with replaced(path) as file:
        file.write(f"{text}\n".encode())


def save(path: Path, content: dict[str, Any]) -> None:
    """Write tensors and plain values, as `replaced` does."""
    with replaced(path) as file:
        torch.save(content, file)


def load(path: Path) -> dict[str, Any]:
    """Read what `save` wrote, onto the CPU.

    Raises:
        TuneError: it cannot be read.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, ValueError, pickle.UnpicklingError) as error:
        raise TuneError(f"{path} cannot be read ({error}); --restart begins anew") from None
