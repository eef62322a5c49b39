"""Proves what decides the noise: the seed, the question's content and the read's number, nothing else."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jev.plan import NoiseSource, Plan, alternatives, content_key
from jev.schemas import Choice, Noul, Score, SystemOneRequest

if TYPE_CHECKING:
    from jev.engine import Engine

ANGRY = Noul("Is the customer angry?")
TEAM = Choice("Which team?", ["billing", "technical", "sales"])
BAD = Score("How bad?", ["fine", "annoying", "blocking"])


def plan(engine: Engine, **fields: Any) -> Plan:
    return engine.prepare(SystemOneRequest(**{"state": "My card was charged twice.", **fields}))


def noise(engine: Engine, question: str, reads: int = 4, **fields: Any) -> list[list[tuple[int, ...]]]:
    """The noise of a question's units, read by read."""
    units = [unit for unit in plan(engine, **fields).units if unit.slots[0].question == question]
    assert units
    return [[unit.noise_ids(read) for read in range(reads)] for unit in units]


@pytest.mark.parametrize("vocab", [16, 1000, 1024])
@pytest.mark.parametrize("along", ["read", "slot", "seed", "key"])
def test_uniform_over_the_vocabulary(vocab: int, along: str) -> None:
    draws = 40 * vocab

    def draw(n: int) -> int:
        if along == "read":
            return NoiseSource(vocab, 42, b"q").draw(n, 0)
        if along == "slot":
            return NoiseSource(vocab, 42, stride=7919).draw(0, n)
        return NoiseSource(vocab, n if along == "seed" else 42, b"%d" % n if along == "key" else b"q").draw(
            0, 0
        )

    counts = Counter(map(draw, range(draws)))
    assert set(counts) == set(range(vocab))
    chi_square = sum((counts[id] - 40) ** 2 / 40 for id in range(vocab))
    # vocab - 1 degrees of freedom: mean vocab - 1, deviation sqrt(2 (vocab - 1)).
    assert abs(chi_square - (vocab - 1)) < 4 * (2 * (vocab - 1)) ** 0.5


@given(st.integers(1, 300_000), st.integers(-(2**31), 2**31 - 1), st.binary(max_size=8), st.integers(0, 31))
def test_ids_of_the_vocabulary_only(vocab: int, seed: int, key: bytes, read: int) -> None:
    assert 0 <= NoiseSource(vocab, seed, key).draw(read, 0) < vocab


def test_the_hash_is_fixed() -> None:
    """Numbers published with a seed stay reproducible: this is what they were made with."""
    digest = hashlib.sha256(b"42/3/0/5,6").digest()
    assert NoiseSource(262_144, 42, b"5,6").draw(3, 0) == int.from_bytes(digest[:16], "big") % 262_144
    assert NoiseSource(262_144, 42, b"5,6").draw(0, 0) == 3426
    assert content_key([5, 6]) == b"5,6"


@given(st.integers(-(2**31), 2**31 - 1), st.integers(0, 40), st.integers(0, 31), st.integers(0, 15))
def test_joint_seeds_are_plain_sums(seed: int, chunk: int, read: int, slot: int) -> None:
    source = NoiseSource(1000, seed + 104729 * chunk, stride=7919)
    total = (seed + 104729 * chunk + 7919 * read) % 2**32
    assert source.draw(read, slot) == NoiseSource(1000, total, stride=7919).draw(0, slot)
    assert (
        source.draw(read, slot)
        == int.from_bytes(hashlib.sha256(b"%d/0/%d/" % (total, slot)).digest()[:16], "big") % 1000
    )


def test_seed_wraps_at_32_bits() -> None:
    assert NoiseSource(1000, -1).draw(0, 0) == NoiseSource(1000, 2**32 - 1).draw(0, 0)
    assert NoiseSource(1000, -1).draw(0, 0) != NoiseSource(1000, 1).draw(0, 0)


def test_content_keys_differ() -> None:
    assert content_key([1, 23]) != content_key([12, 3]) != content_key([123])


def test_reads_of_a_question_differ_from_each_other(engine: Engine) -> None:
    (ids,) = noise(engine, "a", reads=32, questions={"a": ANGRY})
    assert len(set(ids)) > 28  # of 22,003 ids, so a repeat is rare


@pytest.mark.parametrize(
    "fields",
    [
        {"questions": {"a": ANGRY, "b": TEAM}},
        {"questions": {"b": TEAM, "c": BAD, "a": ANGRY}},
        {"questions": {"a": ANGRY}, "state": {"another": "state"}},
        {"questions": {"a": ANGRY}, "instructions": "Be fair."},
        {"questions": {"a": ANGRY}, "samples": 7},
        {"questions": {"a": ANGRY}, "permutations": 3},
        {"questions": {"a": ANGRY}, "diagnostics": "full"},
    ],
)
def test_noise_does_not_depend_on_neighbours_state_or_controls(
    engine: Engine, fields: dict[str, Any]
) -> None:
    assert noise(engine, "a", **fields) == noise(engine, "a", questions={"a": ANGRY})


def test_noise_does_not_depend_on_the_id(engine: Engine) -> None:
    assert noise(engine, "x", questions={"x": ANGRY}) == noise(engine, "a", questions={"a": ANGRY})


@pytest.mark.parametrize(
    "other",
    [
        {"questions": {"a": Noul("Is the customer angry!")}},
        {"questions": {"a": Noul("Is the customer angry?", true="shouting")}},
        {"questions": {"a": ANGRY}, "seed": 43},
        {"questions": {"a": ANGRY}, "seed": -42},
    ],
)
def test_noise_depends_on_content_and_seed(engine: Engine, other: dict[str, Any]) -> None:
    assert noise(engine, "a", **other) != noise(engine, "a", questions={"a": ANGRY})


def test_orders_have_noise_of_their_own(engine: Engine) -> None:
    found = noise(engine, "b", questions={"b": TEAM}, permutations=3)
    assert len(found) == 3
    assert len({ids[0] for ids in found}) == 3
    assert found[0] == noise(engine, "b", questions={"b": TEAM})[0]


def test_joint_noise_in_a_request(engine: Engine) -> None:
    questions = {f"{n}": ANGRY for n in range(6)}
    fields: dict[str, Any] = {"questions": questions, "layout": "joint", "chunk_rows": 24, "seed": 2**31 - 1}
    units = plan(engine, **fields).units
    assert len(units) > 1
    for chunk, unit in enumerate(units):
        for read in range(3):
            seed = (2**31 - 1 + 104729 * chunk + 7919 * read) % 2**32
            source = NoiseSource(22003, seed, stride=7919)
            assert unit.noise_ids(read) == tuple(source.draw(0, slot) for slot in range(len(unit.slots)))


def test_noise_stands_at_the_slots_and_nowhere_else(engine: Engine) -> None:
    for layout in ("isolated", "joint"):
        for unit in plan(engine, questions={"a": ANGRY, "b": TEAM}, layout=layout).units:
            canvas = unit.seeded(3)
            positions = {slot.position for slot in unit.slots}
            assert [canvas.ids[slot.position] for slot in unit.slots] == list(unit.noise_ids(3))
            kept = [row for row in range(len(canvas.ids)) if row not in positions]
            assert [canvas.ids[row] for row in kept] == [unit.canvas[row] for row in kept]
            assert canvas.slots == tuple(slot.position for slot in unit.slots)
            assert canvas.labels == tuple(slot.labels for slot in unit.slots)


@pytest.mark.parametrize(
    ("question", "count"),
    [(ANGRY, 2), (TEAM, 3), (BAD, 3), (Choice(["only"]), 1), (Score([{"any": 1}]), 1)],
)
def test_alternatives(question: Any, count: int) -> None:
    assert alternatives(question) == count


@pytest.mark.parametrize(
    "other", [(1, 2), (1, 2, 3, 0), (3, 2, 1), (12, 3), (1, 23), (), (1, 2, 4), (2**40, 2, 3)]
)
def test_prefixes_are_told_apart_by_all_of_their_tokens(engine: Engine, other: tuple[int, ...]) -> None:
    (unit,) = plan(engine, questions={"a": ANGRY}).units
    key = replace(unit, prefix=(1, 2, 3)).prefix_key
    assert replace(unit, prefix=other).prefix_key != key
    assert replace(unit, prefix=(1, 2, 3), branch=other, canvas=other, slots=()).prefix_key == key
