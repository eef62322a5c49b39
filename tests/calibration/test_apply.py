"""Calibrated probabilities are p^(1/T) exp(b), normalised; a temperature never changes which one wins."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import softmax

from jev.calibration.apply import calibrated
from jev.calibration.file import Entry


def entry(k: int, **fields: Any) -> Entry:
    base = {"signature": "0" * 64, "ids": ["a"], "type": "choice", "labels": [str(i) for i in range(k)]}
    return Entry.model_validate({**base, "method": "temperature", "rows": 100, "states": 100, **fields})


@st.composite
def distributions(draw: st.DrawFn) -> list[float]:
    logits = draw(st.lists(st.floats(-30, 30), min_size=2, max_size=12))
    return softmax(logits).tolist()


temperatures = st.floats(0.2, 20)


@given(distributions(), temperatures)
def test_it_is_a_softmax_of_scaled_logarithms(p: list[float], t: float) -> None:
    found = calibrated(p, entry(len(p), temperature=t))
    assert found == pytest.approx(softmax(np.log(p) / t).tolist(), abs=1e-12)
    assert sum(found) == pytest.approx(1, abs=1e-12)


@given(distributions(), temperatures, st.data())
def test_a_bias_is_added_in_nats(p: list[float], t: float, data: st.DataObject) -> None:
    bias = data.draw(st.lists(st.floats(-5, 5), min_size=len(p), max_size=len(p)))
    found = calibrated(p, entry(len(p), temperature=t, bias=bias, method="temperature+bias"))
    assert found == pytest.approx(softmax(np.log(p) / t + bias).tolist(), abs=1e-12)


@given(distributions(), temperatures)
def test_a_temperature_keeps_the_order(p: list[float], t: float) -> None:
    found = calibrated(p, entry(len(p), temperature=t))
    order = np.argsort(p, kind="stable")
    assert (np.diff(np.array(found)[order]) >= -1e-15).all()
    clear = max(p) - sorted(p)[-2] > 1e-9
    assert not clear or np.argmax(found) == np.argmax(p)


@given(distributions(), st.floats(1.01, 20))
def test_over_one_it_softens_and_under_one_it_sharpens(p: list[float], t: float) -> None:
    assert max(calibrated(p, entry(len(p), temperature=t))) <= max(p) + 1e-12
    assert max(calibrated(p, entry(len(p), temperature=1 / min(t, 5)))) >= max(p) - 1e-12


@given(distributions())
def test_one_changes_no_bit(p: list[float]) -> None:
    assert calibrated(p, entry(len(p), method="none")) == p


@given(distributions(), temperatures, st.randoms())
def test_options_in_another_order_get_the_same(p: list[float], t: float, random: Any) -> None:
    order = list(range(len(p)))
    random.shuffle(order)
    found = calibrated(p, entry(len(p), temperature=t))
    mixed = calibrated([p[i] for i in order], entry(len(p), temperature=t))
    assert mixed == pytest.approx([found[i] for i in order], rel=1e-12)


@pytest.mark.parametrize("t", [0.2, 1.5, 20.0])
def test_what_is_impossible_stays_so(t: float) -> None:
    assert calibrated([0.0, 1.0, 0.0], entry(3, temperature=t)) == [0.0, 1.0, 0.0]
    assert calibrated([0.0, 0.5, 0.5], entry(3, temperature=t)) == [0.0, 0.5, 0.5]
