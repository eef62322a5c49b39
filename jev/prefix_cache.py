"""Prefix keys and values by the tokens they stand for: least recently used go first."""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Sequence

from jev.model.cache import PrefixKV


class PrefixCache:
    """Holds at most `budget` bytes of `PrefixKV`; used from the model's thread only.

    Entries are immutable, so one that is evicted while a read uses it stays valid for that read.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.bytes = 0
        self.hits = 0
        self.misses = 0
        self._entries: OrderedDict[bytes, PrefixKV] = OrderedDict()

    def get(self, tokens: Sequence[int]) -> PrefixKV | None:
        """The cached prefix of exactly these tokens, or None."""
        key = _key(tokens)
        found = self._entries.get(key)
        if found is None:
            self.misses += 1
            return None
        self.hits += 1
        self._entries.move_to_end(key)
        return found

    def put(self, tokens: Sequence[int], kv: PrefixKV) -> None:
        """Keep `kv`, dropping old entries for it; one larger than the budget is not kept."""
        key = _key(tokens)
        if kv.nbytes > self.budget or key in self._entries:
            return
        while self.bytes + kv.nbytes > self.budget:
            _, dropped = self._entries.popitem(last=False)
            self.bytes -= dropped.nbytes
        self._entries[key] = kv
        self.bytes += kv.nbytes


def _key(tokens: Sequence[int]) -> bytes:
    return hashlib.sha256(array("q", tokens).tobytes()).digest()
