"""Proves that a cache stays within its bytes, forgets the least recently used and mixes up nothing."""

from __future__ import annotations

from collections import OrderedDict

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from jev.lru import ByteLRU
from jev.model.cache import LayerKV, PrefixKV


def kv(rows: int) -> PrefixKV:
    """A prefix that takes 8 bytes a row."""
    return PrefixKV(rows, (LayerKV(torch.zeros(rows, 1, 1), torch.zeros(rows, 1, 1)),))


class Cache(RuleBasedStateMachine):
    """The cache beside a plain model of it."""

    @initialize(budget=st.sampled_from([0, 8, 40, 80, 400]))
    def start(self, budget: int) -> None:
        self.cache = ByteLRU[PrefixKV](budget)
        self.model: OrderedDict[bytes, PrefixKV] = OrderedDict()
        self.hits = self.misses = 0

    @rule(key=st.integers(0, 9), rows=st.integers(0, 12))
    def put(self, key: int, rows: int) -> None:
        name, value = b"%d" % key, kv(rows)
        self.cache.put(name, value)
        if name in self.model or value.nbytes > self.cache.budget:
            return
        while sum(one.nbytes for one in self.model.values()) + value.nbytes > self.cache.budget:
            self.model.popitem(last=False)
        self.model[name] = value

    @rule(key=st.integers(0, 9))
    def get(self, key: int) -> None:
        name = b"%d" % key
        expected = self.model.get(name)
        assert self.cache.get(name) is expected
        if expected is None:
            self.misses += 1
        else:
            self.hits += 1
            self.model.move_to_end(name)

    @rule(key=st.integers(0, 9))
    def peek(self, key: int) -> None:
        name = b"%d" % key
        assert self.cache.peek(name) is self.model.get(name)
        if name in self.model:
            self.model.move_to_end(name)

    @rule(key=st.integers(0, 9), rows=st.integers(0, 12), needed=st.integers(0, 9))
    def put_beside(self, key: int, rows: int, needed: int) -> None:
        beside = b"%d" % needed
        self.cache.put_beside(b"%d" % key, value := kv(rows), beside)
        if beside not in self.model:
            return
        self.model.move_to_end(beside)
        if value.nbytes + self.model[beside].nbytes > self.cache.budget:
            return
        if b"%d" % key not in self.model:
            while sum(one.nbytes for one in self.model.values()) + value.nbytes > self.cache.budget:
                self.model.popitem(last=False)
            self.model[b"%d" % key] = value
        self.model.move_to_end(beside)

    @invariant()
    def within_budget(self) -> None:
        held = list(self.cache._entries.values())  # pyright: ignore[reportPrivateUsage]
        assert self.cache.bytes == sum(one.nbytes for one in held) <= self.cache.budget
        assert held == list(self.model.values())
        assert (self.cache.hits, self.cache.misses) == (self.hits, self.misses)


TestCache = Cache.TestCase
TestCache.settings = settings(max_examples=60, stateful_step_count=40)


def test_least_recently_used_goes_first() -> None:
    cache = ByteLRU[PrefixKV](24)
    values = {n: kv(1) for n in range(4)}
    for n in range(3):
        cache.put(b"%d" % n, values[n])
    assert cache.get(b"0") is values[0]
    cache.put(b"3", values[3])  # 1 is now the oldest
    assert [cache.get(b"%d" % n) is values[n] for n in range(4)] == [True, False, True, True]


def test_one_entry_may_push_out_several() -> None:
    cache = ByteLRU[PrefixKV](32)
    for n in range(4):
        cache.put(b"%d" % n, kv(1))
    cache.put(b"9", kv(3))
    assert [cache.get(b"%d" % n) is not None for n in (0, 1, 2, 3, 9)] == [False, False, False, True, True]
    assert cache.bytes == 32


def test_what_needs_another_never_takes_its_place() -> None:
    cache = ByteLRU[PrefixKV](32)
    cache.put(b"state", kv(3))
    cache.put_beside(b"one", kv(1), b"state")
    cache.put_beside(b"two", kv(1), b"state")
    cache.put_beside(b"large", kv(2), b"state")
    cache.put_beside(b"orphan", kv(1), b"gone")
    found = {name: cache.peek(name) is not None for name in (b"state", b"one", b"two", b"large", b"orphan")}
    assert found == {b"state": True, b"one": False, b"two": True, b"large": False, b"orphan": False}
    assert (cache.hits, cache.misses) == (0, 0)


def test_what_is_larger_than_the_budget_pushes_out_nothing() -> None:
    cache = ByteLRU[PrefixKV](16)
    cache.put(b"1", kv(2))
    cache.put(b"2", kv(3))
    assert cache.get(b"1") is not None
    assert cache.get(b"2") is None
    assert cache.bytes == 16


def test_no_budget_keeps_nothing() -> None:
    cache = ByteLRU[PrefixKV](0)
    cache.put(b"1", kv(1))
    assert cache.get(b"1") is None


def test_putting_again_keeps_the_first() -> None:
    cache, first = ByteLRU[PrefixKV](100), kv(2)
    cache.put(b"1", first)
    cache.put(b"1", kv(3))
    assert cache.get(b"1") is first
    assert cache.bytes == 16


def test_evicted_prefix_stays_valid_for_its_reader() -> None:
    cache = ByteLRU[PrefixKV](8)
    cache.put(b"1", kv(1))
    reader = cache.get(b"1")
    cache.put(b"2", kv(1))
    assert cache.get(b"1") is None
    assert reader is not None
    assert reader.layers[0].k.tolist() == [[[0.0]]]
