"""Proves the limits of the three question types and that their shorthands build what the wire says."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from jev.schemas import MAX_LEVELS, MAX_OPTIONS, Choice, Noul, Question, Score

question: TypeAdapter[Any] = TypeAdapter(Question)


def refusal(data: Any) -> tuple[tuple[int | str, ...], str]:
    with pytest.raises(ValidationError) as refused:
        question.validate_python(data)
    (error,) = refused.value.errors()
    return error["loc"], error["type"]


@pytest.mark.parametrize(
    ("built", "wire"),
    [
        (Noul("Is it?"), {"type": "noul", "instructions": "Is it?"}),
        (Noul({"ask": 1}), {"type": "noul", "instructions": {"ask": 1}}),
        (
            Noul("Is it?", true="it is", false=["it", "is not"]),
            {
                "type": "noul",
                "instructions": "Is it?",
                "criteria": {"true": "it is", "false": ["it", "is not"]},
            },
        ),
        (Noul(false="no"), {"type": "noul", "criteria": {"false": "no"}}),
        (
            Choice("Which?", ["a", "b"]),
            {"type": "choice", "instructions": "Which?", "criteria": {"a": None, "b": None}},
        ),
        (Choice(("a", "b")), {"type": "choice", "criteria": {"a": None, "b": None}}),
        (
            Choice({"a": "first", "b": None, "c": {"k": 1}}),
            {"type": "choice", "criteria": {"a": "first", "b": None, "c": {"k": 1}}},
        ),
        (
            Choice(instructions={"q": 1}, criteria={"a": None}),
            {"type": "choice", "instructions": {"q": 1}, "criteria": {"a": None}},
        ),
        (
            Score("How?", ["low", {"level": "high"}]),
            {"type": "score", "instructions": "How?", "criteria": ["low", {"level": "high"}]},
        ),
        (Score(["low"]), {"type": "score", "criteria": ["low"]}),
    ],
)
def test_shorthand_is_the_wire_form(built: Any, wire: dict[str, Any]) -> None:
    assert question.validate_python(wire) == built
    assert question.validate_python(built.model_dump(mode="json")) == built


@pytest.mark.parametrize(
    "wire",
    [
        {"type": "noul", "instructions": "?"},
        {"type": "choice", "criteria": {"a": None}},
        {"type": "score", "criteria": ["a"]},
    ],
)
@pytest.mark.parametrize("key", ["true", "false", "self", "args", "cls", "fields", "__init__", "options"])
def test_constructor_words_are_unknown_fields_on_the_wire(wire: dict[str, Any], key: str) -> None:
    assert question.validate_python({**wire, key: "x"}) == question.validate_python(wire)


def test_options_keep_their_order_and_spelling() -> None:
    names = ["b", "a", "", " a", "A", "ä", "<|turn>", "1"]
    assert list(Choice("?", names).criteria) == names
    assert (
        list(question.validate_python({"type": "choice", "criteria": dict.fromkeys(names)}).criteria) == names
    )


def test_repeated_options() -> None:
    with pytest.raises(ValueError, match="must differ"):
        Choice("?", ["a", "b", "a"])


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (lambda: Choice("?", ["a"], ["b"]), "at most"),  # type: ignore[call-overload]
        (lambda: Choice("?", "again"), "given twice"),
        (lambda: Score(["a"], ["b"]), "given twice"),  # type: ignore[call-overload]
        (lambda: Score("?", ["a"], instructions="again"), "given twice"),
    ],
)
def test_arguments_that_do_not_fit(build: Any, named: str) -> None:
    with pytest.raises(TypeError, match=named):
        build()


@pytest.mark.parametrize(
    "data",
    [
        {"type": "noul"},
        {"type": "noul", "instructions": None, "criteria": None},
        {"type": "noul", "criteria": {}},
        {"type": "noul", "criteria": {"true": None, "false": None}},
        {"type": "noul", "criteria": {"maybe": "x"}},
    ],
)
def test_noul_that_asks_nothing(data: dict[str, Any]) -> None:
    assert refusal(data) == (("noul",), "noul_empty")


@pytest.mark.parametrize("side", ["true", "false"])
def test_noul_may_describe_one_side_alone(side: str) -> None:
    noul = question.validate_python({"type": "noul", "criteria": {side: "described"}})
    assert getattr(noul.criteria, side) == "described"


def test_empty_instructions_are_instructions() -> None:
    assert question.validate_python({"type": "noul", "instructions": ""}).instructions == ""


@pytest.mark.parametrize("count", [1, 2, MAX_OPTIONS])
def test_choice_takes_1_to_255_options(count: int) -> None:
    names = [f"o{n}" for n in range(count)]
    assert len(Choice(names).criteria) == count


@pytest.mark.parametrize(("count", "kind"), [(0, "too_short"), (MAX_OPTIONS + 1, "too_long")])
def test_choice_of_no_or_too_many_options(count: int, kind: str) -> None:
    criteria = {f"o{n}": None for n in range(count)}
    assert refusal({"type": "choice", "criteria": criteria}) == (("choice", "criteria"), kind)


@pytest.mark.parametrize("count", [1, 2, MAX_LEVELS])
def test_score_takes_1_to_10_levels(count: int) -> None:
    assert len(Score([str(n) for n in range(count)]).criteria) == count


@pytest.mark.parametrize(("count", "kind"), [(0, "too_short"), (MAX_LEVELS + 1, "too_long")])
def test_score_of_no_or_too_many_levels(count: int, kind: str) -> None:
    assert refusal({"type": "score", "criteria": ["x"] * count}) == (("score", "criteria"), kind)


@pytest.mark.parametrize(
    ("data", "loc", "kind"),
    [
        ({"type": "choice"}, ("choice", "criteria"), "missing"),
        ({"type": "choice", "criteria": None}, ("choice", "criteria"), "dict_type"),
        ({"type": "choice", "criteria": ["a"]}, ("choice", "criteria"), "dict_type"),
        ({"type": "choice", "criteria": {"a": 1}}, ("choice", "criteria", "a"), "text_type"),
        ({"type": "score"}, ("score", "criteria"), "missing"),
        ({"type": "score", "criteria": {"a": "b"}}, ("score", "criteria"), "list_type"),
        ({"type": "score", "criteria": ["a", None]}, ("score", "criteria", 1), "text_type"),
        ({"type": "noul", "instructions": 3}, ("noul", "instructions"), "text_type"),
        ({"type": "noul", "criteria": "x"}, ("noul", "criteria"), "model_type"),
        ({"type": "noul", "criteria": {"true": 0}}, ("noul", "criteria", "true"), "text_type"),
        ({"type": "Noul", "instructions": "?"}, (), "union_tag_invalid"),
        ({"instructions": "?"}, (), "union_tag_not_found"),
        ("Is it?", (), "model_attributes_type"),
    ],
)
def test_values_of_the_wrong_kind(data: Any, loc: tuple[int | str, ...], kind: str) -> None:
    assert refusal(data) == (loc, kind)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: Noul("Angry?", ture="shouts"), "ture"),
        (lambda: Choice(["a", "b"], instruction="Which one?"), "instruction"),
        (lambda: Score(["a", "b"], level=3), "level"),
    ],
)
def test_a_misspelled_argument_is_a_type_error(make: Any, name: str) -> None:
    """In JSON it is an unknown field, which a server warns about; in code nobody would be told."""
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
        make()
