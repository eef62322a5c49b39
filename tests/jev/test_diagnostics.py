"""Proves that diagnostics change no answer, add up, and suffice to compute every number again."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from jev.model.read import Canvas
from jev.model.unified import read_unified
from jev.schemas import Choice, Noul, Question, Score, SystemOneRequest, SystemOneResponse

if TYPE_CHECKING:
    from jev.engine import Engine

QUESTIONS: dict[str, Question] = {
    "angry": Noul("Is the customer angry?"),
    "team": Choice("Which team?", {"billing": "money", "travel": None, "music": None}),
    "only": Choice(["only"]),
    "bad": Score("How bad?", ["fine", "annoying", "blocking"]),
}
LAYOUTS = [
    {"samples": 3, "permutations": 2},
    {"samples": "auto", "auto_threshold": 0, "auto_max": 2},
    {"samples": 2, "layout": "joint", "chunk_rows": 16},
    {"samples": 2, "layout": "joint", "chunk_rows": 16, "chunk_prompt": "shared"},
]


@pytest.fixture(scope="module")
def small(tiny: Path) -> Engine:
    from jev.engine import Engine as Loaded

    return Loaded.load(tiny)


def ask(engine: Engine, **fields: Any) -> SystemOneResponse:
    return engine.decide(
        SystemOneRequest(**{"state": "Charged twice!", "questions": QUESTIONS, "seed": 7, **fields})
    )


def report(engine: Engine, **fields: Any) -> dict[str, Any]:
    found = ask(engine, **{"diagnostics": "full", **fields}).x_diagnostics
    assert found is not None
    return json.loads(json.dumps(found, allow_nan=False))


@pytest.mark.parametrize("fields", LAYOUTS)
def test_answers_are_the_same_bits_with_and_without(small: Engine, fields: dict[str, Any]) -> None:
    without, short, full = (ask(small, **fields, diagnostics=how) for how in (False, True, "full"))
    assert without.x_diagnostics is None
    assert without.answers == short.answers == full.answers
    assert without.usage == short.usage == full.usage


def again(engine: Engine, found: dict[str, Any]) -> dict[str, list[list[float]]]:
    """Every read's distribution over the alternatives, from the reported ids alone."""
    reads: dict[str, list[list[float]]] = {}
    for unit in found["units"]:
        prefix = found["prefix_token_ids"][unit["prefix"]]
        for noise in unit["noise_token_ids"]:
            rows = list(unit["canvas_token_ids"])
            for position, id in zip(unit["slots"], noise, strict=True):
                rows[position] = id
            labels = tuple(map(tuple, unit["label_token_ids"]))
            reading = read_unified(
                engine.model,
                prefix,
                unit["branch_token_ids"],
                Canvas(tuple(rows), tuple(unit["slots"]), labels),
            )
            for name, logits, order in zip(
                unit["questions"], reading.logits, unit["label_order"], strict=True
            ):
                weights = np.exp(np.array(logits) - max(logits))
                probabilities = np.empty(len(order))
                probabilities[order] = weights / weights.sum()
                reads.setdefault(name, []).append(probabilities.tolist())
    return reads


@pytest.mark.parametrize("fields", LAYOUTS)
def test_every_number_can_be_computed_again(small: Engine, fields: dict[str, Any]) -> None:
    found = report(small, **fields)
    for name, rows in again(small, found).items():
        one = found["questions"][name]
        np.testing.assert_allclose(rows, one["read_probabilities"], rtol=0, atol=1e-5)


def test_on_the_embedded_model(engine: Engine) -> None:
    found = report(engine, samples=1, questions={"team": QUESTIONS["team"]})
    rows = again(engine, found)["team"]
    np.testing.assert_allclose(rows, found["questions"]["team"]["read_probabilities"], rtol=0, atol=1e-5)
    assert 0 < found["questions"]["team"]["label_mass"] <= 1


@pytest.mark.parametrize("fields", LAYOUTS)
def test_what_is_said_of_a_question(small: Engine, fields: dict[str, Any]) -> None:
    found = report(small, **fields)
    assert list(found["questions"]) == list(QUESTIONS)
    assert found["questions"]["only"] == {"reads": 0, "note": "a single alternative needs no read"}
    answers = ask(small, **fields).answers
    for name in ("angry", "team", "bad"):
        one, answer = found["questions"][name], answers[name]
        rows = np.array(one["read_probabilities"])
        mean = rows.mean(axis=0)
        given = (
            [answer.noul, 1 - answer.noul] if answer.type == "noul" else list(answer.probabilities.values())
        )
        assert given == pytest.approx(mean.tolist(), abs=1e-12)
        assert one["reads"] == len(rows)
        assert one["entropy"] == pytest.approx(-np.sum(mean * np.log(mean)), abs=1e-12)
        assert one["read_entropies"] == pytest.approx(
            (-np.sum(rows * np.log(rows), axis=1)).tolist(), abs=1e-12
        )
        winner = int(mean.argmax())
        assert one["stderr"] == pytest.approx(rows[:, winner].std(ddof=1) / math.sqrt(len(rows)), abs=1e-12)
        assert one["agreement"] == np.mean(rows.argmax(axis=1) == winner)
        assert one["read_winners"] == rows.argmax(axis=1).tolist()
        assert 0 < one["label_mass"] <= 1
    assert found["reads"] == sum(len(unit["noise_token_ids"]) for unit in found["units"])


def test_label_mass_is_the_labels_share_of_the_vocabulary(small: Engine) -> None:
    found = report(small, samples=1, questions={"angry": QUESTIONS["angry"]})
    (unit,) = found["units"]
    canvas = list(unit["canvas_token_ids"])
    canvas[unit["slots"][0]] = unit["noise_token_ids"][0][0]
    reading = read_unified(
        small.model,
        found["prefix_token_ids"][0],
        unit["branch_token_ids"],
        Canvas(tuple(canvas), tuple(unit["slots"]), (tuple(range(1024)),)),
    )
    weights = np.exp(np.array(reading.logits[0]))
    share = weights[unit["label_token_ids"][0]].sum() / weights.sum()
    assert found["questions"]["angry"]["label_mass"] == pytest.approx(share, rel=1e-4)


def test_request_as_it_was_understood(small: Engine) -> None:
    found = report(small, samples=3, permutations=2, diagnostics=True)
    assert found["layout"] == "isolated"
    assert found["seed"] == 7
    assert found["permutations"] == 2
    assert found["samples"] == {"policy": "fixed", "n": 3, "auto_max": 4, "auto_threshold": 0.1}
    assert found["questions"]["team"]["permutations"] == 2
    assert found["questions"]["angry"]["permutations"] == 1
    assert found["questions"]["angry"]["canvas_width"] == 6
    assert not {"units", "prefix_token_ids"} & set(found)
    assert "read_probabilities" not in found["questions"]["team"]
    auto = report(small, samples="auto")
    assert auto["samples"] == {"policy": "auto", "n": None, "auto_max": 4, "auto_threshold": 0.1}
    times = found["timing"]
    assert 0 <= times["prefill_ms"] + times["read_ms"] <= times["total_ms"] + 0.01


def test_prefixes(small: Engine) -> None:
    fields: dict[str, Any] = {"state": "A state of its own.", "samples": 1}
    cold, warm = report(small, **fields), report(small, **fields)
    assert cold["prefixes"] == {"used": 1, "cached": 0}
    assert warm["prefixes"] == {"used": 1, "cached": 1}
    assert cold["prefix_tokens"] == len(cold["prefix_token_ids"][0])
    own = report(small, **LAYOUTS[2])
    assert own["prefixes"]["used"] == len(own["units"]) > 1
    shared = report(small, **LAYOUTS[3])
    assert shared["prefixes"]["used"] == 1


def test_one_read_has_no_spread(small: Engine) -> None:
    one = report(small, samples=1)["questions"]["angry"]
    assert (one["stderr"], one["agreement"]) == (None, None)


def test_nothing_read(small: Engine) -> None:
    found = report(small, questions={"only": QUESTIONS["only"]})
    assert (found["reads"], found["units"], found["prefixes"]["used"]) == (0, [], 0)
