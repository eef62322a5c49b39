"""Products by the compiled kernels are those of the decoded weights with activations rounded to int8, on
every instruction set that this machine has; a row's result depends on nothing but the row.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import subprocess
import sys

import pytest
import torch
from random_blocks import decoded, random_blocks, rounded
from torch import Tensor

from jev.model import native
from jev.model.moe import gated, mix
from jev.model.native import library

pytestmark = pytest.mark.skipif(not native.available(), reason="built without a C++ compiler")

KINDS = tuple(native.TYPES)


def width_of(kind: str) -> int:
    """A width that 256 divides only where the type wants it."""
    return 768 if kind.endswith("_K") else 704


def activations(rows: int, width: int, seed: int = 0) -> Tensor:
    """Rows of very different sizes, one of them zeros."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, width, generator=generator) * torch.logspace(-6, 4, rows)[:, None]
    x[rows // 2] = 0
    return x


@pytest.mark.parametrize("kind", KINDS)
def test_decodes_as_gguf(path: str, kind: str):
    raw = random_blocks(kind, 3, 37, width_of(kind))
    weights = native.prepare(kind, raw, width_of(kind))
    # Whole panels of 16 rows, each rounded up to 64 bytes, and no bit more.
    assert weights.nbytes <= raw.nbytes / 37 * 48 + 9 * 64
    index = torch.tensor([36, 0, 17, 17, 5])
    for matrix in range(3):
        assert torch.equal(weights.rows(index, matrix), decoded(kind, raw[matrix])[index])


@pytest.mark.parametrize("kind", KINDS)
def test_multiplies(path: str, kind: str):
    raw = random_blocks(kind, 50, width_of(kind))
    x = activations(21, width_of(kind))
    got = native.prepare(kind, raw, width_of(kind)).linear(x)
    wanted = rounded(x) @ decoded(kind, raw).double().T
    error = (got - wanted).norm(dim=1) / wanted.norm(dim=1).clamp_min(1e-30)
    # Not 1e-6: a value halfway between two integers may be rounded to either.
    assert error.max() < 1e-3
    assert error.median() < 1e-6


@pytest.mark.parametrize("kind", KINDS)
def test_no_sum_overflows(path: str, kind: str):
    # The largest quants and activations of one sign: int16 sums of other layouts would overflow.
    raw = random_blocks(kind, 16, width_of(kind))
    size = native.BLOCKS[kind][1]
    blocks = raw.view(16, -1, size)
    first = {"Q4_K": 16, "Q5_K": 16, "Q6_K": 0, "Q5_0": 2, "Q5_1": 4, "Q8_0": 2}[kind]
    last = 192 if kind == "Q6_K" else size
    for fill in (255, 0, 128, 127):
        blocks[..., first:last] = fill
        x = torch.full((5, width_of(kind)), 3.0)
        x[1:3] *= -1
        got = native.prepare(kind, raw, width_of(kind)).linear(x)
        wanted = rounded(x) @ decoded(kind, raw).double().T
        assert torch.allclose(got.double(), wanted, rtol=1e-5, atol=1e-4 * float(wanted.abs().max()))


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_depends_on_itself_alone(path: str, kind: str, threads: None):
    width = width_of(kind)
    weights = native.prepare(kind, random_blocks(kind, 70, width), width)
    x = activations(35, width)
    torch.set_num_threads(1)
    wanted = weights.linear(x)
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        for rows in (*range(1, 20), 35):
            assert torch.equal(weights.linear(x[:rows]), wanted[:rows])
            assert torch.equal(weights.linear(x[-rows:]), wanted[-rows:])


@pytest.mark.parametrize("kinds", [("Q4_K", "Q5_0"), ("Q4_K", "Q8_0"), ("Q6_K", "Q5_1")])
def test_mixes_experts(path: str, kinds: tuple[str, str], threads: None):
    count, hidden, inner, rows, k = 6, 512, 96, 80, 2
    raw = random_blocks(kinds[0], count, 2 * inner, hidden), random_blocks(kinds[1], count, hidden, inner)
    gate_up, down = (
        native.prepare(kind, one, one_width)
        for kind, one, one_width in zip(kinds, raw, (hidden, inner), strict=True)
    )
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(rows, hidden, generator=generator) * 0.1
    index = torch.stack([torch.randperm(count - 1, generator=generator)[:k] for _ in range(rows)])
    index[:, 0] = 0  # one expert has all rows, the last none
    weights = torch.rand(rows, k, generator=generator)
    got = native.experts(x, weights, index, gate_up, down)
    full = [decoded(kind, one) for kind, one in zip(kinds, raw, strict=True)]
    wanted = mix(x, weights, index, count, lambda n, some: gated(some, full[0][n], full[1][n]))
    assert (got - wanted).norm() < 0.02 * wanted.norm()
    for threaded in (1, 2, 3):
        torch.set_num_threads(threaded)
        for some in (1, 2, 7, 33, rows):
            assert torch.equal(
                native.experts(x[:some], weights[:some], index[:some], gate_up, down), got[:some]
            )


def test_experts_are_no_further_from_fp32_than_their_rounding(path: str):
    hidden, inner = 256, 64
    raw = random_blocks("Q4_K", 1, 2 * inner, hidden), random_blocks("Q8_0", 1, hidden, inner)
    gate_up, down = native.prepare("Q4_K", raw[0], hidden), native.prepare("Q8_0", raw[1], inner)
    x = activations(9, hidden)
    got = native.experts(x, torch.ones(9, 1), torch.zeros(9, 1, dtype=torch.int64), gate_up, down)
    gate, up = (rounded(x) @ decoded("Q4_K", raw[0][0]).double().T).chunk(2, dim=1)
    middle = torch.nn.functional.gelu(gate, approximate="tanh") * up
    wanted = rounded(middle.float()) @ decoded("Q8_0", raw[1][0]).double().T
    some = wanted.norm(dim=1) > 1e-6
    assert ((got - wanted).norm(dim=1)[some] / wanted.norm(dim=1)[some]).max() < 2e-3


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_values_that_are_no_numbers_stay_in_their_row(path: str, bad: float):
    raw = random_blocks("Q4_K", 1, 128, 256), random_blocks("Q5_0", 1, 256, 64)
    gate_up, down = native.prepare("Q4_K", raw[0], 256), native.prepare("Q5_0", raw[1], 64)
    x = activations(9, 256)
    index, weights = torch.zeros(9, 1, dtype=torch.int64), torch.ones(9, 1)
    clean = gate_up.linear(x), native.experts(x, weights, index, gate_up, down)
    x[3, 77] = bad
    dirty = gate_up.linear(x), native.experts(x, weights, index, gate_up, down)
    others = torch.arange(9) != 3
    for before, after in zip(clean, dirty, strict=True):
        assert torch.equal(before[others], after[others])
        assert after[3].isnan().all()


def test_huge_and_tiny_values(path: str):
    weights = native.prepare("Q8_0", random_blocks("Q8_0", 16, 64), 64)
    x = torch.tensor([1e-45, 1e-38, 1e30, 3e38])[:, None].expand(4, 64).contiguous()
    got = weights.linear(x)
    assert not got[:3].isnan().any()
    assert torch.equal(got[0], torch.zeros(16))


def test_no_rows_and_strides(path: str):
    weights = native.prepare("Q8_0", random_blocks("Q8_0", 16, 64), 64)
    assert weights.linear(torch.empty(0, 64)).shape == (0, 16)
    wide = activations(4, 128)
    assert torch.equal(weights.linear(wide[::2, ::2]), weights.linear(wide[::2, ::2].contiguous()))
    assert native.experts(
        torch.empty(0, 32),
        torch.empty(0, 2),
        torch.empty(0, 2, dtype=torch.int64),
        native.prepare("Q8_0", random_blocks("Q8_0", 2, 64, 32), 32),
        native.prepare("Q8_0", random_blocks("Q8_0", 2, 32, 32), 32),
    ).shape == (0, 32)


def test_refuses_what_does_not_fit():
    raw = random_blocks("Q8_0", 2, 64, 32)
    gate_up, down = (
        native.prepare("Q8_0", raw, 32),
        native.prepare("Q8_0", random_blocks("Q8_0", 2, 32, 32), 32),
    )
    x, weights, index = torch.zeros(3, 32), torch.ones(3, 1), torch.zeros(3, 1, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"\[rows, 32\]"):
        gate_up.linear(torch.zeros(3, 64))
    with pytest.raises(ValueError, match="34 bytes are not 64 weights"):
        native.prepare("Q8_0", raw, 64)
    with pytest.raises(ValueError, match="Q3_K"):
        native.prepare("Q3_K", raw, 32)
    with pytest.raises(ValueError, match="same experts"):
        native.experts(x, weights, index, gate_up, gate_up)
    with pytest.raises(ValueError, match=r"\[3, k\]"):
        native.experts(x, weights[:2], index, gate_up, down)
    for wrong in (-1, 2, 2**40):
        with pytest.raises(IndexError):
            native.experts(x, weights, index + wrong, gate_up, down)
        with pytest.raises(IndexError):
            down.rows(torch.tensor([wrong if wrong != 2 else 32]))


def child(kind: str, x: Tensor, wanted: Tensor) -> None:
    """What a forked process computes."""
    weights = native.prepare(kind, random_blocks(kind, 512, x.shape[1]), x.shape[1])
    os._exit(0 if torch.equal(weights.linear(x), wanted) else 1)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_has_threads_of_its_own(threads: None):
    torch.set_num_threads(2)
    x = activations(9, 256)
    wanted = native.prepare("Q4_K", random_blocks("Q4_K", 512, 256), 256).linear(x)
    process = multiprocessing.get_context("fork").Process(target=child, args=("Q4_K", x, wanted))
    process.start()
    process.join(60)
    assert process.exitcode == 0


@pytest.mark.parametrize(("value", "printed"), [("off", "False off"), ("generic", "True generic")])
def test_the_environment_chooses(value: str, printed: str):
    code = "from jev.model import native; print(native.available(), native.kernels())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"JEV_KERNELS": value},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == printed


def test_a_library_of_another_version_is_named_and_not_used(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(library._SIGNATURES, "jev_of_tomorrow", (None, []))
    with pytest.warns(RuntimeWarning, match="has no jev_of_tomorrow, it is of another version"):
        assert library.load() is None


def test_an_unknown_choice_is_named_and_ignored():
    code = "from jev.model import native; print(native.available())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"JEV_KERNELS": "sse9"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "True"
    assert "JEV_KERNELS is ignored: this machine has no kernels 'sse9'" in done.stderr
