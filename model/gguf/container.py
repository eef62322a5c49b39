"""The GGUF container: a header of metadata and tensor descriptions, then the tensors, in a memory map.

Layout (version 2 and 3, little-endian): magic, version, counts of tensors and keys, the keys, for each tensor
its name, dimensions (fastest first), type and offset, padding to `general.alignment`, the data.
"""

from __future__ import annotations

import math
import mmap
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from torch import Tensor

from jev.model.errors import CheckpointError
from jev.model.gguf.metadata import MOST_KEYS, Cursor, Metadata

MAGIC = b"GGUF"
TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "Q5_0", "Q5_1")
"""Tensor types that can be computed with, by ggml's names."""

MOST_TENSORS = 2**16
MOST_DIMENSIONS = 4


@dataclass(frozen=True)
class GGUFTensor:
    """Where a tensor is and how it is stored.

    Attributes:
        name: in the file.
        type: one of `TYPES`.
        shape: [..., in] as torch has it, the reverse of the file's order.
        start: first byte in the file.
        nbytes: size in the file.
    """

    name: str
    type: str
    shape: tuple[int, ...]
    start: int
    nbytes: int

    @property
    def row_bytes(self) -> int:
        """Bytes of one row of the last dimension."""
        return self.nbytes * self.shape[-1] // math.prod(self.shape)


class GGUFFile:
    """An open GGUF file: checked header, tensors on demand.

    Attributes:
        path: the file.
        metadata: values by key.
        tensors: by name, in the file's order.
        data_start: where the header ends.
    """

    def __init__(self, path: str | Path) -> None:
        """Map a file and read its header.

        Raises:
            CheckpointError: one sentence that names the file and the key or tensor that is wrong.
        """
        self.path = Path(path)
        try:
            with self.path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # an empty file cannot be mapped
            raise CheckpointError(f"{self.path} cannot be read: {error}") from None
        cursor = Cursor(str(self.path), self._map)
        if self._map[:4] != MAGIC:
            cursor.fail("is not a GGUF file")
        cursor.skip(4)
        version = cursor.scalar("I")
        if version not in (2, 3):
            cursor.fail(f"is of GGUF version {version}, not of version 2 or 3 in little-endian order")
        tensors = cursor.whole("Q", "tensors", MOST_TENSORS)
        keys = cursor.whole("Q", "keys", MOST_KEYS)
        self.metadata = Metadata(cursor, keys)
        alignment = self.metadata.integer("general.alignment", 32)
        if alignment & (alignment - 1):
            cursor.fail(f"has {alignment} at general.alignment, expected a power of two")
        found = [_tensor(cursor) for _ in range(tensors)]
        self.data_start = -(-cursor.at // alignment) * alignment
        self.tensors = self._placed(cursor, found, alignment)

    def _placed(self, cursor: Cursor, found: list[GGUFTensor], alignment: int) -> dict[str, GGUFTensor]:
        """Give the tensors their places in the file and check that they lie in it, one behind the other."""
        placed: dict[str, GGUFTensor] = {}
        for one in found:
            if one.name in placed:
                cursor.fail(f"has the tensor {one.name} twice")
            if one.start % alignment:
                cursor.fail(f"has the tensor {one.name} at {one.start}, not a multiple of {alignment}")
            start = self.data_start + one.start
            if start + one.nbytes > len(self._map):
                cursor.fail(
                    f"is cut off: tensor {one.name} ends at byte {start + one.nbytes} of {len(self._map)}"
                )
            placed[one.name] = GGUFTensor(one.name, one.type, one.shape, start, one.nbytes)
        end, last = self.data_start, ""
        for one in sorted(placed.values(), key=lambda one: one.start):
            if one.start < end:
                cursor.fail(f"has the tensor {one.name} within the tensor {last}")
            end, last = one.start + one.nbytes, one.name
        return placed

    def header(self) -> bytes:
        """The bytes before the first tensor."""
        return self._map[: self.data_start]

    def sample(self, start: int, count: int) -> bytes:
        """Bytes of the file as they are."""
        return self._map[start : start + count]

    def raw(self, name: str) -> Tensor:
        """A tensor's bytes, uint8 [..., row bytes]; they are read from the file when they are looked at."""
        one = self.tensors[name]
        with warnings.catch_warnings():
            # Nobody writes to it: weights take no gradients.
            warnings.filterwarnings("ignore", "The given buffer is not writable")
            flat = torch.frombuffer(self._map, dtype=torch.uint8, count=one.nbytes, offset=one.start)
        return flat.view(*one.shape[:-1], one.row_bytes)

    def release(self, name: str) -> None:
        """Let go of a tensor's pages; they would be read again. For a tensor that has been copied."""
        one = self.tensors[name]
        start = -(-one.start // mmap.PAGESIZE) * mmap.PAGESIZE
        end = (one.start + one.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
        if end > start and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED, start, end - start)


def _tensor(cursor: Cursor) -> GGUFTensor:
    """One description, whose `start` is still that from the end of the header."""
    name = cursor.text("a tensor's name")
    if not name or len(name) > 512 or not name.isprintable():
        cursor.fail(f"has a tensor with the name {name[:100]!r}")
    count = cursor.whole("I", f"dimensions of tensor {name}", MOST_DIMENSIONS)
    shape = tuple(int(cursor.scalar("Q")) for _ in range(count))[::-1]
    number, start = int(cursor.scalar("I")), int(cursor.scalar("Q"))
    try:
        kind = GGMLQuantizationType(number)
    except ValueError:
        cursor.fail(f"has the tensor {name} of the unknown type {number}")
    if kind.name not in TYPES:
        cursor.fail(f"has the tensor {name} of type {kind.name}, expected one of {', '.join(TYPES)}")
    values, size = GGML_QUANT_SIZES[kind]
    if not shape or 0 in shape or shape[-1] % values:
        cursor.fail(
            f"has the tensor {name} of shape {list(shape)}, whose rows are no whole {kind.name} blocks"
        )
    nbytes = math.prod(shape) // values * size
    if nbytes >= 2**63:
        cursor.fail(f"has the tensor {name} of shape {list(shape)}, which no file could hold")
    return GGUFTensor(name, kind.name, shape, start, nbytes)
