"""A digest of a checkpoint's config and weights that is cheap for checkpoints of any size."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import BinaryIO

from jev.model.errors import CheckpointError
from jev.model.gguf import GGUFFile
from jev.model.source import gguf_path
from jev.model.weights.safetensors import TensorFiles

SAMPLE_BYTES = 4096


def weights_digest(path: Path) -> str:
    """SHA-256 in hex over the config and, for every tensor by name, its type, shape and samples.

    Of each tensor the first, middle and last 4 KiB are read, so that training which moves a tensor at
    all is seen, while tens of gigabytes take a moment. How the tensors are spread over files is not. The
    config of a folder is `config.json`, that of a GGUF file its whole header with vocabulary and template.

    Raises:
        CheckpointError: a file cannot be read or is no file of tensors.
    """
    gguf = gguf_path(path)
    return _folder_digest(Path(path)) if gguf is None else _gguf_digest(GGUFFile(gguf))


def _gguf_digest(file: GGUFFile) -> str:
    digest = hashlib.sha256(file.header())
    for name in sorted(file.tensors):
        one = file.tensors[name]
        digest.update(
            _sampled((name, one.type, list(one.shape)), one.start, one.start + one.nbytes, file.sample)
        )
    return digest.hexdigest()


def _folder_digest(folder: Path) -> str:
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
        found[name] = _sampled((name, about["dtype"], about["shape"]), start, end, partial(_read, file))
    return found


def _read(file: BinaryIO, place: int, count: int) -> bytes:
    file.seek(place)
    return file.read(count)


def _sampled(about: tuple, start: int, end: int, read: Callable[[int, int], bytes]) -> bytes:
    """A digest of what a tensor is and of its first, middle and last bytes; `read` takes place and count."""
    digest = hashlib.sha256(repr(about).encode())
    last = max(start, end - SAMPLE_BYTES)
    for place in (start, (start + last) // 2, last):
        digest.update(read(place, min(SAMPLE_BYTES, end - place)))
    return digest.digest()
