"""A digest of a checkpoint's config and weights that is cheap for checkpoints of any size."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import BinaryIO

from jev.model.errors import CheckpointError
from jev.model.weights.safetensors import TensorFiles

SAMPLE_BYTES = 4096


def weights_digest(folder: Path) -> str:
    """SHA-256 in hex over config.json and, for every tensor by name, its type, shape and samples.

    Of each tensor the first, middle and last 4 KiB are read, so that training which moves a tensor at
    all is seen, while tens of gigabytes take a moment. How the tensors are spread over files is not.

    Raises:
        CheckpointError: a file cannot be read or is not a safetensors file.
    """
    files = TensorFiles(folder).files
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    found: dict[str, bytes] = {}
    for file in sorted(set(files.values())):
        try:
            with (folder / file).open("rb") as opened:
                found.update(_tensors(opened))
        except (OSError, ValueError, KeyError, TypeError, struct.error) as error:
            raise CheckpointError(f"{folder / file} cannot be read: {error}") from None
    for name in sorted(found):
        digest.update(found[name])
    return digest.hexdigest()


def _tensors(file: BinaryIO) -> dict[str, bytes]:
    """A digest of each tensor of one safetensors file: 8 bytes header length, JSON header, data."""
    (length,) = struct.unpack("<Q", file.read(8))
    header = json.loads(file.read(length))
    found = {}
    for name, about in header.items():
        if name == "__metadata__":
            continue
        start, end = (8 + length + offset for offset in about["data_offsets"])
        digest = hashlib.sha256(repr((name, about["dtype"], about["shape"])).encode())
        last = max(start, end - SAMPLE_BYTES)
        for place in (start, (start + last) // 2, last):
            file.seek(place)
            digest.update(file.read(min(SAMPLE_BYTES, end - place)))
        found[name] = digest.digest()
    return found
