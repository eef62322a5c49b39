"""Two questions have one signature exactly if the model reads the same words for them."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from jev.calibration.signature import signatures
from jev.engine import Engine
from jev.plan import Plan
from jev.schemas import Choice, Noul, Question, Score, SystemOneRequest

QUESTIONS: dict[str, Question] = {
    "noul": Noul("Is it?"),
    "noul again": Noul("Is it?", true=None),
    "noul described": Noul("Is it?", true="so"),
    "noul otherwise": Noul("Is it?", false="so"),
    "made of criteria": Noul(true="so"),
    "the same written": Noul("Does this hold: so?", true="so"),
    "choice": Choice("Which?", ["a", "b", "c"]),
    "choice turned": Choice("Which?", ["b", "c", "a"]),
    "choice described": Choice("Which?", {"a": "x", "b": None, "c": None}),
    "choice spelt out": Choice("Which?", ["a (x)", "b", "c"]),
    "score": Score("Which?", ["a", "b", "c"]),
    "json": Score("Which?", [{"a": 1}, "b", "c"]),
    "json as text": Score("Which?", ['{"a":1}', "b", "c"]),
}


def asked(questions: dict[str, Question] | None = None, **fields: Any) -> SystemOneRequest:
    return SystemOneRequest(state="s", questions=questions or QUESTIONS, **fields)


def words(plan: Plan) -> dict[str, tuple[Any, ...]]:
    """By question what the model reads behind and before the state, and what its labels stand for."""
    return {
        group.questions[0]: tuple(
            (unit.prefix, unit.branch, unit.canvas, unit.slots[0].labels) for unit in group.units
        )
        for group in plan.groups
    }


def test_signatures_agree_exactly_where_prompts_do(small: Engine) -> None:
    request = asked()
    signs, read = signatures(request), words(small.prepare(request))
    assert set(signs) == set(QUESTIONS)
    same = 0
    for one, other in itertools.combinations(QUESTIONS, 2):
        assert (signs[one] == signs[other]) == (read[one] == read[other]), (one, other)
        same += signs[one] == signs[other]
    assert same == 4


@pytest.mark.parametrize(
    ("field", "value", "changed"),
    [
        ("instructions", "Be strict.", set(QUESTIONS)),
        ("instructions", "  ", set()),
        ("permutations", 3, {name for name in QUESTIONS if name.startswith("choice")}),
        ("seed", 7, set()),
        ("samples", 4, set()),
        ("diagnostics", True, set()),
        ("model", "jev-preview", set()),
        ("layout", "joint", {"only"}),
    ],
)
def test_what_the_model_sees_counts_and_nothing_else(
    small: Engine, field: str, value: Any, changed: set[str]
) -> None:
    questions = {"only": QUESTIONS["choice"]} if field == "layout" else QUESTIONS
    plain, other = asked(questions), asked(questions, **{field: value})
    before, after = signatures(plain), signatures(other)
    assert {name for name in questions if before[name] != after[name]} == changed
    if field != "layout":
        read = words(small.prepare(plain)), words(small.prepare(other))
        assert {name for name in questions if read[0][name] != read[1][name]} == changed


def test_ids_and_neighbours_do_not_count_in_the_isolated_layout() -> None:
    alone = signatures(asked({"renamed": QUESTIONS["choice"]}))
    assert alone["renamed"] == signatures(asked())["choice"]


def test_ids_and_neighbours_count_in_the_joint_layout() -> None:
    two: dict[str, Question] = {"a": QUESTIONS["noul"], "b": QUESTIONS["score"]}
    base = signatures(asked(two, layout="joint"))
    assert base["a"] != base["b"]
    others = [
        asked({"a": two["a"]}, layout="joint"),
        asked({"b": two["b"], "a": two["a"]}, layout="joint"),
        asked({"a": two["a"], "c": two["b"]}, layout="joint"),
        asked(two, layout="joint", chunk_rows=32),
        asked(two, layout="joint", chunk_prompt="shared"),
    ]
    assert all(signatures(other)["a"] != base["a"] for other in others)
    assert signatures(asked(two, layout="joint", seed=3)) == base


def test_a_single_alternative_has_none() -> None:
    assert signatures(asked({"one": Choice("Which?", ["a"]), "two": Noul("Is it?")})).keys() == {"two"}


def test_a_question_that_an_asset_stands_in_has_none() -> None:
    asset = {"<img>": {"type": "image", "format": "png", "data_base64": "AAAA"}}
    questions: dict[str, Question] = {
        "shown": Noul("Is <img> a cat?"),
        "listed": Choice("Which?", {"a": {"like": "<img>"}, "b": None}),
        "plain": Noul("Is it a cat?"),
    }
    assert signatures(asked(questions, assets=asset)).keys() == {"plain"}
