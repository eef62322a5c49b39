"""Fp32 products, gates and attention by the compiled kernels are torch's up to rounding, on every instruction
set that this machine has; a row's result is the same bits whatever stands beside it.
"""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from jev.model import native
from jev.model.attention import attend_parts
from jev.model.config import RopeConfig
from jev.model.layers import rms_norm, rope_tables

pytestmark = pytest.mark.skipif(not native.available(), reason="built without a C++ compiler")

EXAMPLES = settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# Products


@pytest.mark.parametrize(("height", "width"), [(128, 2816), (5, 100), (3, 7), (17, 64), (1, 1)])
def test_multiplies(path: str, height: int, width: int):
    x, w = normal(37, width), normal(height, width, seed=1)
    assert torch.allclose(native.dense(x, w), F.linear(x, w), rtol=1e-5, atol=1e-5 * width**0.5)


@EXAMPLES
@given(st.integers(1, 90), st.integers(1, 40), st.integers(1, 300), st.integers(1, 5), st.data())
def test_a_product_depends_on_its_row_and_its_column(
    path: str, rows: int, height: int, width: int, count: int, data: st.DataObject
):
    x, w = normal(rows, width), normal(height, width, seed=1)
    torch.set_num_threads(1)
    wanted = native.dense(x, w)
    torch.set_num_threads(count)
    some = torch.tensor(data.draw(st.lists(st.integers(0, rows - 1), min_size=1, max_size=20)))
    columns = torch.tensor(data.draw(st.lists(st.integers(0, height - 1), min_size=1, max_size=20)))
    assert torch.equal(native.dense(x[some], w[columns]), wanted[some][:, columns])


# Gates


def test_gates(path: str):
    gates, up = normal(11, 300) * 5, normal(11, 300, seed=1)
    gates[0, :4] = torch.tensor([100.0, -100.0, 0.0, 1e-30])
    wanted = F.gelu(gates, approximate="tanh") * up
    assert torch.allclose(native.gate(gates, up), wanted, rtol=1e-5, atol=2e-6)


@EXAMPLES
@given(st.integers(1, 60), st.integers(1, 500), st.integers(1, 5), st.data())
def test_a_gate_depends_on_its_value(path: str, rows: int, width: int, count: int, data: st.DataObject):
    gates, up = normal(rows, width) * 3, normal(rows, width, seed=1)
    wanted = native.gate(gates, up)
    torch.set_num_threads(count)
    some = torch.tensor(data.draw(st.lists(st.integers(0, rows - 1), min_size=1, max_size=20)))
    assert torch.equal(native.gate(gates[some], up[some]), wanted[some])


# Attention


def causal(rows: int) -> Tensor:
    return torch.zeros(rows, rows).masked_fill_(torch.ones(rows, rows).triu(1).bool(), -math.inf)


@pytest.mark.parametrize(
    ("rows", "heads", "kv", "dim", "prefix"),
    [(6, 16, 8, 256, 90), (33, 16, 2, 512, 70), (1, 4, 4, 16, 0), (70, 4, 2, 24, 5), (9, 3, 1, 7, 200)],
)
def test_attends(path: str, rows: int, heads: int, kv: int, dim: int, prefix: int):
    q = normal(rows, heads, dim) * 0.3
    parts = [(normal(prefix, kv, dim, seed=1) * 0.3, normal(prefix, kv, dim, seed=2), None)]
    parts.append((normal(rows, kv, dim, seed=3) * 0.3, normal(rows, kv, dim, seed=4), causal(rows)))
    got, wanted = native.attend(q, parts), attend_parts(q, parts)
    assert torch.allclose(got, wanted, rtol=1e-5, atol=1e-5)


@EXAMPLES
@given(
    st.integers(1, 40),
    st.sampled_from([(4, 2, 16), (4, 1, 24), (6, 6, 7)]),
    st.lists(st.integers(0, 30), max_size=4),
    st.integers(1, 5),
    st.integers(0, 99),
)
def test_attention_depends_on_what_a_row_sees(
    path: str, rows: int, shape: tuple[int, int, int], cuts: list[int], count: int, seed: int
):
    """Alone with the keys it sees, or among others with keys between that it does not see."""
    heads, kv, dim = shape
    keys = 50
    q, k, v = normal(rows, heads, dim), normal(keys, kv, dim, seed=1), normal(keys, kv, dim, seed=2)
    sees = normal(rows, keys, seed=seed) > 0
    sees[:, seed % keys] = True
    bias = torch.zeros(rows, keys).masked_fill_(~sees, -math.inf)
    torch.set_num_threads(1)
    wanted = [native.attend(q[n : n + 1], [(k[sees[n]], v[sees[n]], None)])[0] for n in range(rows)]
    torch.set_num_threads(count)
    edges = [0, *sorted(cuts), keys]
    parts = [(k[a:b], v[a:b], bias[:, a:b]) for a, b in pairwise(edges)]
    assert torch.equal(native.attend(q, parts), torch.stack(wanted))


def test_many_rows_and_keys_in_large_tasks_are_the_same(path: str):
    q, k, v = normal(100, 8, 32), normal(300, 1, 32, seed=1), normal(300, 1, 32, seed=2)
    for count in (1, 2, 5):  # tasks are smaller where there are more threads
        torch.set_num_threads(count)
        whole = native.attend(q, [(k, v, None)])
        assert torch.allclose(whole, attend_parts(q, [(k, v, None)]), atol=1e-5)
        for n in (0, 50, 99):
            assert torch.equal(native.attend(q[n : n + 1], [(k, v, None)])[0], whole[n])


def test_scores_of_any_size(path: str):
    q, k, v = normal(3, 2, 16) * 100, normal(20, 1, 16, seed=1) * 10, normal(20, 1, 16, seed=2)
    wanted = attend_parts(q, [(k, v, None)])
    assert torch.allclose(native.attend(q, [(k, v, None)]), wanted, atol=1e-4)


# The rest of a layer: torch's, whose rows do not depend on each other either


@pytest.mark.parametrize("width", [2816, 256, 48])
def test_torch_keeps_rows_apart(width: int):
    """What is left to it in a row-invariant model: norms, softmax, choosing experts, rotation, soft caps."""
    x = normal(200, width) * 3
    positions = torch.arange(5000, 5200)

    def all_of(x: Tensor, positions: Tensor) -> list[Tensor]:
        chosen = F.softmax(x[:, :128], dim=-1).topk(8, dim=-1)
        return [
            rms_norm(x, None, 1e-6),
            rms_norm(x.view(len(x), -1, 16), None, 1e-6),
            F.softmax(x[:, :128], dim=-1),
            *chosen,
            chosen.values / chosen.values.sum(-1, keepdim=True),
            *rope_tables(positions, width, RopeConfig(1e4, 1.0)),
            *rope_tables(positions, width, RopeConfig(1e6, 0.25)),
            30 * torch.tanh(x[:, :5] / 30),
        ]

    torch.set_num_threads(1)
    wanted = all_of(x, positions)
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        for start, end in ((0, 1), (0, 6), (3, 9), (1, 75), (199, 200), (150, 200), (0, 200)):
            found = all_of(x[start:end].clone(), positions[start:end])
            for got, one in zip(found, wanted, strict=True):
                assert torch.equal(got, one[start:end])


# What does not fit


def test_no_rows():
    assert native.dense(torch.empty(0, 8), torch.zeros(3, 8)).shape == (0, 3)
    assert native.gate(torch.empty(0, 8), torch.empty(0, 8)).shape == (0, 8)
    keys = torch.zeros(5, 2, 8)
    assert native.attend(torch.empty(0, 4, 8), [(keys, keys, None)]).shape == (0, 32)


def test_refuses_what_does_not_fit():
    keys = torch.zeros(5, 2, 8)
    with pytest.raises(ValueError, match=r"\[rows, 8\]"):
        native.dense(torch.zeros(2, 7), torch.zeros(3, 8))
    with pytest.raises(ValueError, match="one shape"):
        native.gate(torch.zeros(2, 7), torch.zeros(2, 8))
    with pytest.raises(ValueError, match="3 heads"):
        native.attend(torch.zeros(1, 3, 8), [(keys, keys, None)])
    with pytest.raises(ValueError, match="need keys"):
        native.attend(torch.zeros(1, 4, 8), [(keys[:0], keys[:0], None)])
    for heads, dim in ((0, 8), (2, 0)):
        none = torch.zeros(5, heads, dim)
        with pytest.raises(ValueError, match="need keys"):
            native.attend(torch.zeros(1, 4, dim), [(none, none, None)])
    with pytest.raises(ValueError, match=r"\[M, 2, 16\]"):
        native.attend(torch.zeros(1, 4, 16), [(keys, keys, None)])
    with pytest.raises(ValueError, match=r"\[1, 5\]"):
        native.attend(torch.zeros(1, 4, 8), [(keys, keys, torch.zeros(1, 4))])


@pytest.mark.parametrize("default", [torch.bfloat16, torch.float64])
def test_results_are_fp32_whatever_torch_makes_by_default(default: torch.dtype):
    """What a program sets for itself: kernels write fp32, and behind the end of anything smaller."""
    x, keys = normal(9, 32), normal(9, 2, 16)
    weights = native.prepare("Q8_0", torch.zeros(32, 34, dtype=torch.uint8), 32)
    gate_up = native.prepare("Q8_0", torch.zeros(1, 64, 34, dtype=torch.uint8), 32)
    chosen = torch.zeros(9, 1, dtype=torch.int64)

    def results() -> list[Tensor]:
        return [
            native.dense(x, x),
            native.gate(x, x),
            native.attend(keys, [(keys, keys, None)]),
            weights.linear(x),
            weights.rows(chosen[:, 0]),
            native.experts(x, x[:, :1], chosen, gate_up, weights),
        ]

    wanted = results()
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        found = results()
    finally:
        torch.set_default_dtype(before)
    for got, one in zip(found, wanted, strict=True):
        assert got.dtype == torch.float32
        assert torch.equal(got, one)


def test_not_a_number_stays_in_its_row(path: str):
    x, w = normal(9, 40), normal(7, 40, seed=1)
    clean = native.dense(x, w)
    x[3, 5] = math.nan
    dirty = native.dense(x, w)
    others = torch.arange(9) != 3
    assert torch.equal(dirty[others], clean[others])
    assert dirty[3].isnan().all()
    q, k = normal(9, 2, 8), normal(9, 1, 8, seed=1)
    clean = native.attend(q, [(k, k, None)])
    q[3, 0, 0] = math.nan
    dirty = native.attend(q, [(k, k, None)])
    assert torch.equal(dirty[others], clean[others])
    assert dirty[3, :8].isnan().all()
