"""Proves that questions typed on the command line become the wire questions that the help promises."""

from __future__ import annotations

import pytest

from jev.cli.errors import UsageError
from jev.cli.questions import check_questions, parse_choice, parse_noul, parse_questions, parse_score
from jev.schemas import parse_request


@pytest.mark.parametrize(
    ("text", "name", "question"),
    [
        ("Is it urgent?", "Is it urgent?", "Is it urgent?"),
        ("urgent=Is it urgent?", "urgent", "Is it urgent?"),
        (" urgent = Is it urgent? ", "urgent", "Is it urgent?"),
        ("urgent: Is it urgent?", "urgent", "Is it urgent?"),
        ("is-it.urgent_2=Really?", "is-it.urgent_2", "Really?"),
        ("größe=Is it big?", "größe", "Is it big?"),
        ("eq=Is a=b here?", "eq", "Is a=b here?"),
        ("Is a=b here?", "Is a=b here?", "Is a=b here?"),
        ("At 12:30, is it open?", "At 12:30, is it open?", "At 12:30, is it open?"),
    ],
)
def test_noul(text: str, name: str, question: str) -> None:
    assert parse_noul(text) == (name, {"type": "noul", "instructions": question})


@pytest.mark.parametrize("text", ["", "  ", "urgent=", "urgent= "])
def test_noul_without_a_question_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="there is no question"):
        parse_noul(text)


@pytest.mark.parametrize(
    ("text", "name", "instructions"),
    [
        ("team=billing,technical", "team", None),
        (" team = billing , technical ", "team", None),
        ("team: Which team?=billing,technical", "team", "Which team?"),
        ("team:   Which team? = billing,technical", "team", "Which team?"),
        ("Which team?=billing,technical", "Which team?", "Which team?"),
    ],
)
def test_choice_and_score_share_their_syntax(text: str, name: str, instructions: str | None) -> None:
    given = {} if instructions is None else {"instructions": instructions}
    options = {"billing": None, "technical": None}
    assert parse_choice(text) == (name, {"type": "choice", **given, "criteria": options})
    assert parse_score(text) == (name, {"type": "score", **given, "criteria": list(options)})


def test_order_of_options_and_levels_is_kept() -> None:
    assert list(parse_choice("x=c,a,b")[1]["criteria"]) == ["c", "a", "b"]
    assert parse_score("x=c,a,b,a")[1]["criteria"] == ["c", "a", "b", "a"]


@pytest.mark.parametrize("parse", [parse_choice, parse_score])
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("team", "one '='"),
        ("team=a=b,c", "one '='"),
        ("team=", "two or more names"),
        ("team=billing", "two or more names"),
        ("team=a,,b", "two or more names"),
        ("team=a,b,", "two or more names"),
        ("=a,b", "nothing before '='"),
    ],
)
def test_bad_lists_name_the_text_and_show_how(parse, text: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason) as caught:
        parse(text)
    assert repr(text) in str(caught.value)
    assert "; write --" in str(caught.value)


def test_equal_options_are_refused() -> None:
    with pytest.raises(UsageError, match="must differ"):
        parse_choice("x=a,b,a")


def test_one_id_for_two_questions_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--choice 'x=a,b': there is a question called 'x' already"):
        parse_questions(["x=Is it?"], ["x=a,b"], [])


def test_all_of_it_is_a_request_that_the_server_takes() -> None:
    questions = parse_questions(["Is it urgent?"], ["team=a,b"], ["mood: How?=low,high"])
    request, warnings = parse_request({"state": "s", "questions": questions})
    assert list(request.questions) == ["Is it urgent?", "team", "mood"]
    assert warnings == []


@pytest.mark.parametrize(
    ("questions", "path"), [([], "questions:"), ("x", "questions:"), ({"a": "Is it?"}, "questions.a:")]
)
def test_questions_of_a_file_need_their_shape(questions: object, path: str) -> None:
    with pytest.raises(UsageError, match=path):
        check_questions(questions)
