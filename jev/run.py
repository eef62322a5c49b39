"""One plan on its way through the model: what is encoded, what is read, what is still to do."""

from __future__ import annotations

import hashlib
import time
from array import array
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from jev.model.cache import PrefixKV
from jev.model.packed import ImageSpan
from jev.model.read import Branch, Reading
from jev.plan import PlacedImage, Plan, Unit


@dataclass(eq=False)
class Encoding:
    """Prompt tokens on their way into keys and values, for every run that waits for them.

    Attributes:
        tokens: what is encoded.
        images: images among the tokens.
        after: what it stands behind; None = nothing.
        key: what the cache knows it by; None for a branch, which nobody shares.
        adapter: digest of the adapter that it is encoded with; None = none.
        kv: keys and values so far, of what it stands behind and of `start` of its own tokens.
        start: how many of its tokens are encoded.
        spans: its images' soft tokens, once the vision tower has run.
    """

    tokens: tuple[int, ...]
    images: tuple[PlacedImage, ...] = ()
    after: Encoding | None = None
    key: bytes | None = None
    adapter: str | None = None
    kv: PrefixKV | None = field(default=None, repr=False)
    start: int = 0
    spans: tuple[ImageSpan, ...] | None = field(default=None, repr=False)

    @property
    def left(self) -> int:
        """Tokens that are not encoded yet."""
        return len(self.tokens) - self.start

    @property
    def done(self) -> bool:
        """Whether all of it is encoded."""
        return self.kv is not None and not self.left

    def chunk(self, rows: int) -> int:
        """How many tokens to encode next, `rows` if possible: images are never split over steps."""
        end = min(self.start + rows, len(self.tokens))
        ends = (image.start + image.patches.tokens for image in self.images if image.start < end)
        return max([end, *ends]) - self.start


@dataclass(eq=False)
class Run:
    """A plan being run.

    Attributes:
        plan: the plan.
        encodings: what must be encoded before it can read, in order.
        sources: for each unit (by id) the encoding that its branch or canvas stands behind.
        known: keys and values of branches that were found in the cache, by id of the unit.
        branches: what its units read behind, by id.
        to_read: (unit, read number) pairs that are still to be read.
        readings: what was read, by unit id, in read order.
        long: whether it is one of those that wait for short ones; decided once.
        passed: steps in a row that had no place for it.
        error: why it cannot be finished.
    """

    plan: Plan
    encodings: list[Encoding] = field(default_factory=list)
    sources: dict[int, Encoding] = field(default_factory=dict)
    known: dict[int, PrefixKV] = field(default_factory=dict, repr=False)
    branches: dict[int, Branch] = field(default_factory=dict)
    to_read: deque[tuple[Unit, int]] = field(default_factory=deque)
    readings: dict[int, list[Reading]] = field(default_factory=dict)
    keys: dict[int, bytes] = field(default_factory=dict)
    extended: bool = False
    long: bool | None = None
    passed: int = 0
    cached_prefixes: int = 0
    steps: int = 0
    started: float = field(default_factory=time.perf_counter)
    prefill_s: float = 0.0
    read_s: float = 0.0
    error: Exception | None = None

    @property
    def adapter(self) -> str | None:
        """Digest of the adapter that it runs with; None = none."""
        return None if self.plan.adapter is None else self.plan.adapter.digest

    @property
    def done(self) -> bool:
        """Whether there is nothing left to do."""
        return self.error is not None or (self.extended and not self.to_read)

    @property
    def left(self) -> int:
        """Rows that it will run at least."""
        encode = sum(one.left for one in self.encodings)
        reads = sum(self.need(unit, set()) for unit, _ in self.to_read)
        return encode + reads

    def key_of(self, unit: Unit) -> bytes:
        """What the unit's prefix is cached by, worked out once for all units that share the prefix.

        An adapter changes keys and values, so they are another prefix's.
        """
        same = id(unit.prefix)
        if same not in self.keys:
            self.keys[same] = (self.adapter or "").encode() + unit.prefix_key
        return self.keys[same]

    def branch_key_of(self, unit: Unit) -> bytes:
        """What decides the keys and values of the unit's branch, as a digest; no prefix has the same."""
        digest = hashlib.sha256(b"branch/" + self.key_of(unit))
        digest.update(array("q", unit.branch).tobytes())
        for image in unit.branch_images:
            digest.update(b"%d/" % image.start + image.sha256.encode())
        return b"branch/" + digest.digest()

    def waiting(self) -> Iterator[Encoding]:
        """What can be encoded now."""
        for one in self.encodings:
            if not one.done and (one.after is None or one.after.done):
                yield one

    @property
    def encoded(self) -> bool:
        """Whether everything is encoded that reads stand behind."""
        return all(one.done for one in self.encodings)

    def need(self, unit: Unit, seen: set[int]) -> int:
        """Rows of one more read of `unit` in a step that already holds the units in `seen`."""
        branch = self.branches.get(id(unit))
        if id(unit) in seen or id(unit) in self.known or (branch is not None and branch.kv is not None):
            return len(unit.canvas)
        tokens = () if self.sources[id(unit)].key is None else unit.branch
        return len(unit.canvas) + len(tokens)
