"""The kind of a file on disk, told from its bytes without reading a large one into memory."""

from __future__ import annotations

import mmap
import threading
from typing import BinaryIO, cast

from jev.extractors import Unreadable
from jev.extractors.detect import sniff

SMALL = 2**20

_one_at_a_time = threading.Lock()


def kind_of(file: BinaryIO, size: int, name: str) -> str:
    """Say what a file is, such as "text", "pdf" or "video".

    Only an Office archive of more than 1 MiB is in memory as a whole, and of those one at a time.

    Args:
        file: open for reading, nothing of it buffered for writing.
        size: its bytes.
        name: its extension decides between text formats.

    Raises:
        ExtractError: it is empty, or of a kind that has no reader.
    """
    if size == 0:
        raise Unreadable("It is empty")
    if size <= SMALL:
        file.seek(0)
        return sniff(file.read(), name).kind
    with _one_at_a_time, _Mapped(file.fileno(), size, access=mmap.ACCESS_READ) as data:
        return sniff(cast("bytes", data), name).kind


class _Mapped(mmap.mmap):
    """A mapped file with the methods of bytes that telling its kind needs."""

    def startswith(self, prefix: bytes | tuple[bytes, ...]) -> bool:
        prefixes = (prefix,) if isinstance(prefix, bytes) else prefix
        return self[: max(map(len, prefixes))].startswith(prefixes)

    def __contains__(self, part: object) -> bool:
        assert isinstance(part, bytes)
        return self.find(part) >= 0

    def count(self, part: bytes) -> int:
        # Block by block, each with as much of the next as a part may begin in it and end there.
        size = SMALL + len(part) - 1
        return sum(self[at : at + size].count(part) for at in range(0, len(self), SMALL))
