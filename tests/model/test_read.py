"""Proves that every way to read a canvas gives the numbers of the plain forward, whatever the lengths."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from jev.model import embedded
from jev.model.cache import PrefixKV
from jev.model.checkpoint import load_checkpoint
from jev.model.diffusion_gemma import DiffusionGemma
from jev.model.read import Branch, Canvas, Reading, log_sum, read
from jev.model.unified import read_unified

# On label logits (they reach about 6) and on log masses. Rounding was seen to move them by 4e-6; a
# row too many or too few in a window moves them by 0.01 and more.
TOLERANCE = 1e-5
WINDOW = 8

MakeTiny = Callable[..., Path]


@dataclass(frozen=True)
class Asked:
    """A prefix, and behind it branches of encoder rows, each with its canvases."""

    prefix: tuple[int, ...]
    branches: tuple[tuple[tuple[int, ...], tuple[Canvas, ...]], ...]


def ids(rng: random.Random, count: int, vocab: int) -> tuple[int, ...]:
    return tuple(rng.randrange(vocab) for _ in range(count))


def canvas(rng: random.Random, width: int, slots: int, vocab: int) -> Canvas:
    rows = tuple(rng.sample(range(width), min(slots, width)))
    labels = tuple(tuple(rng.sample(range(vocab), rng.randint(2, 5))) for _ in rows)
    return Canvas(ids(rng, width, vocab), rows, labels)


def asked(
    prefix: int, branches: Sequence[tuple[int, Sequence[tuple[int, int]]]], vocab: int = 1024, seed: int = 0
) -> Asked:
    """Random ids for a prefix length and for branches (length, canvases (width, slots))."""
    rng = random.Random(seed)
    return Asked(
        ids(rng, prefix, vocab),
        tuple(
            (ids(rng, length, vocab), tuple(canvas(rng, width, slots, vocab) for width, slots in canvases))
            for length, canvases in branches
        ),
    )


def difference(one: Sequence[Sequence[Reading]], other: Sequence[Sequence[Reading]]) -> float:
    """Largest difference of a label logit or log mass."""
    worst = 0.0
    for mine, theirs in zip(one, other, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            for x, y in zip(a.logits, b.logits, strict=True):
                worst = max(worst, *(abs(p - q) for p, q in zip(x, y, strict=True)))
            if a.log_mass is not None and b.log_mass is not None:
                worst = max(worst, *(abs(p - q) for p, q in zip(a.log_mass, b.log_mass, strict=True)))
    return worst


def plain(model: DiffusionGemma, what: Asked) -> list[list[Reading]]:
    """No cache, no packing: each canvas in one forward of all its rows."""
    return [
        [read_unified(model, what.prefix, branch, one) for one in canvases]
        for branch, canvases in what.branches
    ]


def prefilled(model: DiffusionGemma, what: Asked, chunk: int = 512) -> PrefixKV:
    return model.prefill(what.prefix, chunk=chunk) if what.prefix else model.empty_prefix()


def every_way(model: DiffusionGemma, what: Asked, chunk: int = 512) -> dict[str, list[list[Reading]]]:
    kv = prefilled(model, what, chunk)
    branches = [Branch(kv, branch) for branch, _ in what.branches]
    packed = [(branch, canvases) for branch, (_, canvases) in zip(branches, what.branches, strict=True)]
    return {
        "packed": read(model, packed, keep=True, mass=True),
        "kept": read(model, packed, mass=True),
        "one by one": [
            [read(model, [(Branch(kv, branch), [one])], mass=True)[0][0] for one in canvases]
            for branch, canvases in what.branches
        ],
        "branch as prefix": [
            read(model, [(Branch(model.prefill(branch, kv, chunk=7)), canvases)], mass=True)[0]
            for branch, canvases in what.branches
        ],
    }


def agree(model: DiffusionGemma, what: Asked, chunk: int = 512) -> None:
    expected = plain(model, what)
    for way, readings in every_way(model, what, chunk).items():
        assert difference(readings, expected) <= TOLERANCE, way


@pytest.fixture(scope="module")
def model(tiny: MakeTiny) -> DiffusionGemma:
    return load_checkpoint(tiny(window=WINDOW))


@pytest.fixture(scope="module")
def smooth_model(smooth: Path) -> DiffusionGemma:
    return load_checkpoint(smooth)


SHAPES = st.tuples(
    st.integers(0, 40),
    st.lists(
        st.tuples(
            st.integers(1, 20),
            st.lists(st.tuples(st.integers(1, 17), st.integers(1, 3)), min_size=1, max_size=2),
        ),
        min_size=1,
        max_size=3,
    ),
)


@settings(max_examples=30)
@given(SHAPES, st.sampled_from([5, WINDOW - 1, WINDOW, WINDOW + 1, 512]), st.integers(0, 2**32))
def test_any_lengths(
    smooth_model: DiffusionGemma,
    shapes: tuple[int, list[tuple[int, list[tuple[int, int]]]]],
    chunk: int,
    seed: int,
) -> None:
    agree(smooth_model, asked(*shapes, seed=seed), chunk)


EDGES = (1, 2, WINDOW - 2, WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW, 40)


@pytest.mark.parametrize("prefix", [0, *EDGES])
def test_every_edge_of_the_window(model: DiffusionGemma, prefix: int) -> None:
    for branch in EDGES[:-1]:
        # Canvases narrower and wider than the window; one that is its slot alone.
        agree(model, asked(prefix, [(branch, [(1, 1), (6, 1), (WINDOW + 5, 3)])], seed=prefix))


def test_many_branches_and_samples_at_once(model: DiffusionGemma) -> None:
    shapes = [(3 + n % 9, [(6, 1)] * (1 + n % 4)) for n in range(12)]
    agree(model, asked(23, shapes, seed=5))


def test_branches_behind_different_prefixes(model: DiffusionGemma) -> None:
    every = [asked(length, [(5, [(6, 1)]), (11, [(7, 2)])], seed=length) for length in (0, 3, 9, 40)]
    work = [
        (Branch(prefilled(model, what), branch), canvases)
        for what in every
        for branch, canvases in what.branches
    ]
    expected = [readings for what in every for readings in plain(model, what)]
    assert difference(read(model, work), expected) <= TOLERANCE


def test_no_branch_at_all(model: DiffusionGemma) -> None:
    what = asked(13, [(0, [(6, 1), (6, 2)])], seed=6)
    work = [(Branch(prefilled(model, what)), what.branches[0][1])]
    for _ in range(2):
        assert difference(read(model, work, keep=True), plain(model, what)) <= TOLERANCE


def test_kept_branch_beside_a_new_one(model: DiffusionGemma) -> None:
    what = asked(20, [(9, [(6, 1)]), (4, [(6, 1)])], seed=7)
    kv = prefilled(model, what)
    work = [(Branch(kv, branch), canvases) for branch, canvases in what.branches]
    read(model, work[:1], keep=True)
    assert work[0][0].kv is not None
    assert difference(read(model, work, keep=True), plain(model, what)) <= TOLERANCE
    assert len(work[1][0].kv or []) == len(model.config.text.layers)


def test_branches_are_kept_only_on_request(model: DiffusionGemma) -> None:
    what = asked(5, [(9, [(6, 1)])], seed=8)
    branch = Branch(prefilled(model, what), what.branches[0][0])
    read(model, [(branch, what.branches[0][1])])
    assert branch == Branch(branch.prefix, branch.tokens)
    read(model, [(branch, what.branches[0][1])], keep=True)
    kept = branch.kv
    assert kept is not None
    assert {len(layer.k) for layer in kept} == {9}
    read(model, [(branch, what.branches[0][1])], keep=True)
    assert branch.kv is kept


def test_reading_leaves_the_prefix_as_it_was(model: DiffusionGemma) -> None:
    what = asked(20, [(9, [(6, 1)])] * 3, seed=9)
    kv = prefilled(model, what)
    before = [(layer.k.clone(), layer.v.clone()) for layer in kv.layers]
    for _ in range(2):
        read(model, [(Branch(kv, branch), canvases) for branch, canvases in what.branches], keep=True)
    for (k, v), layer in zip(before, kv.layers, strict=True):
        assert torch.equal(k, layer.k)
        assert torch.equal(v, layer.v)


def test_sliding_layers_keep_what_later_rows_can_see(model: DiffusionGemma) -> None:
    for length in (1, WINDOW - 1, WINDOW, 30):
        kv = model.prefill(list(range(length)), chunk=4)
        for layer, config in zip(kv.layers, model.config.text.layers, strict=True):
            assert len(layer.k) == len(layer.v) == (min(length, WINDOW - 1) if config.sliding else length)
            # Views would hold on to the rows that were cut off.
            assert layer.k.untyped_storage().nbytes() == layer.k.nbytes
        assert kv.nbytes == sum(layer.k.nbytes + layer.v.nbytes for layer in kv.layers)


def test_log_mass_is_the_labels_share_of_the_vocabulary(model: DiffusionGemma) -> None:
    vocab = model.config.text.vocab_size
    what = asked(11, [(7, [(6, 1)])], seed=10)
    (branch, (one,)) = what.branches[0]
    everything = Canvas(one.ids, one.slots, (tuple(range(vocab)),))
    work = [(Branch(prefilled(model, what), branch), [one, everything])]
    ((few, whole),) = read(model, work, mass=True)
    assert whole.log_mass is not None and few.log_mass is not None
    assert whole.log_mass[0] == pytest.approx(0, abs=1e-5)
    share = torch.tensor(whole.logits[0], dtype=torch.float64).softmax(0)[list(one.labels[0])].sum()
    assert few.log_mass[0] == pytest.approx(float(share.log()), abs=1e-5)
    assert read(model, work)[0][0].log_mass is None


def test_labels_come_in_the_order_asked_for(model: DiffusionGemma) -> None:
    what = asked(11, [(7, [(9, 3)])], seed=11)
    (branch, (one,)) = what.branches[0]
    turned = Canvas(one.ids, one.slots[::-1], tuple(labels[::-1] for labels in reversed(one.labels)))
    ((a, b),) = read(model, [(Branch(prefilled(model, what), branch), [one, turned])])
    flat_a = [logit for logits in a.logits for logit in logits]
    flat_b = [logit for logits in reversed(b.logits) for logit in reversed(logits)]
    assert flat_a == pytest.approx(flat_b, abs=TOLERANCE)


def test_noise_at_the_slot_matters(model: DiffusionGemma) -> None:
    """So that samples are different reads, and equal numbers above mean something."""
    what = asked(11, [(7, [(6, 1)])], seed=12)
    (branch, (one,)) = what.branches[0]
    other = list(one.ids)
    other[one.slots[0]] = (other[one.slots[0]] + 1) % 1024
    ((a, b),) = read(
        model, [(Branch(prefilled(model, what), branch), [one, Canvas(tuple(other), one.slots, one.labels)])]
    )
    assert difference([[a]], [[b]]) > 0.01


@pytest.mark.parametrize("vocab", [5, 2**14 + 1, 2**18])
def test_log_sums_do_not_depend_on_threads(vocab: int) -> None:
    rows = torch.randn(20, vocab, generator=torch.Generator().manual_seed(0)) * 5
    before = torch.get_num_threads()
    sums: list[torch.Tensor] = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            sums.append(torch.stack([log_sum(row) for row in rows]))
    finally:
        torch.set_num_threads(before)
    assert torch.allclose(sums[0].double(), rows.double().logsumexp(-1), rtol=1e-6)
    assert torch.equal(sums[0], sums[1])
    assert torch.equal(sums[0], sums[2])


@pytest.fixture(scope="module")
def embedded_model() -> DiffusionGemma:
    return load_checkpoint(embedded.path())


@pytest.mark.parametrize("prefix", [0, 1, 60])
def test_embedded_model(embedded_model: DiffusionGemma, prefix: int) -> None:
    vocab = embedded_model.config.text.vocab_size
    agree(embedded_model, asked(prefix, [(20, [(6, 1)] * 2), (7, [(16, 3)])], vocab, seed=prefix), chunk=50)


def test_embedded_model_past_its_window(embedded_model: DiffusionGemma) -> None:
    config = embedded_model.config.text
    # The branch begins inside the window's first length and ends past it.
    what = asked(config.sliding_window - 7, [(20, [(6, 1)])], config.vocab_size, seed=13)
    branch, canvases = what.branches[0]
    expected = plain(embedded_model, what)
    work = [(Branch(prefilled(embedded_model, what), branch), canvases)]
    for _ in range(2):
        assert difference(read(embedded_model, work, keep=True, mass=True), expected) <= TOLERANCE
