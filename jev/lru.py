"""A cache bounded by bytes: least recently used entries go first."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, Protocol, TypeVar


class Sized(Protocol):
    """Anything that knows its bytes."""

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        ...


V = TypeVar("V", bound=Sized)


class ByteLRU(Generic[V]):
    """Holds at most `budget` bytes of values; used from the model's thread only.

    Values are immutable, so one that is evicted while a read uses it stays valid for that read.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.bytes = 0
        self.hits = 0
        self.misses = 0
        self._entries: OrderedDict[bytes, V] = OrderedDict()

    def get(self, key: bytes) -> V | None:
        """The value under `key`, or None."""
        found = self._entries.get(key)
        if found is None:
            self.misses += 1
            return None
        self.hits += 1
        self._entries.move_to_end(key)
        return found

    def peek(self, key: bytes) -> V | None:
        """The value under `key`, or None, without counting; used just now, as by `get`."""
        if key in self._entries:
            self._entries.move_to_end(key)
        return self._entries.get(key)

    def put_beside(self, key: bytes, value: V, needed: bytes) -> None:
        """Keep `value`, which is of use only with what is under `needed`: never in place of that."""
        beside = self.peek(needed)
        if beside is not None and beside.nbytes + value.nbytes <= self.budget:
            self.put(key, value)
            self._entries.move_to_end(needed)

    def put(self, key: bytes, value: V) -> None:
        """Keep `value`, dropping old entries for it; one larger than the budget is not kept."""
        if value.nbytes > self.budget or key in self._entries:
            return
        while self.bytes + value.nbytes > self.budget:
            _, dropped = self._entries.popitem(last=False)
            self.bytes -= dropped.nbytes
        self._entries[key] = value
        self.bytes += value.nbytes

    def clear(self) -> None:
        """Let go of all entries."""
        self._entries.clear()
        self.bytes = 0
