"""Proves that any body becomes a request or a refusal that names the place and repeats no value."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jev.schemas import BadRequestError, Choice, Noul, SystemOneRequest, Warning, parse_json, parse_request
from jev.schemas.errors import MAX_ISSUES
from jev.schemas.parse import MAX_WARNINGS

NOUL = {"type": "noul", "instructions": "Is it?"}
BODY: dict[str, Any] = {"state": "s", "questions": {"a": NOUL}}
SECRET = "s3cr3t"


def issues(data: Any) -> list[tuple[list[str | int], str]]:
    with pytest.raises(BadRequestError) as error:
        parse_request(data)
    return [(issue.loc, issue.type) for issue in error.value.issues]


def warned(**fields: Any) -> list[Warning]:
    return parse_request({**BODY, **fields})[1]


# JSON


def test_json_as_it_is() -> None:
    assert parse_json(' {"a": [1, 2.5, "ä", null, true], "a": {}} '.encode()) == {"a": {}}
    assert parse_json(b"[]") == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"{",
        b"{'a': 1}",
        b'{"a": 1,}',
        b'{"a": 1} x',
        b"NaN",
        b'{"a": Infinity}',
        b'{"a": -Infinity}',
        b'"\xff"',
        b'"\\ud800"',
        b'{"\\udc00": 1}',
        b"\xef\xbb\xbf{}",
        '{"a": 1}'.encode("utf-16"),
        b"[" * 100_000 + b"]" * 100_000,
        b'{"a":' * 5000 + b"1" + b"}" * 5000,
        b"9" * 10_000,
        b'"\x00"',
    ],
)
def test_json_that_is_none(body: bytes) -> None:
    with pytest.raises(BadRequestError) as error:
        parse_json(body)
    (issue,) = error.value.issues
    assert (issue.loc, issue.type) == (["body"], "json_invalid")
    assert issue.msg.startswith("JSON decode error: ")
    assert len(issue.msg) < 200


@given(st.binary(max_size=60))
def test_any_bytes(body: bytes) -> None:
    try:
        data = parse_json(body)
    except BadRequestError:
        return
    try:
        parse_request(data)
    except BadRequestError:
        return


# Places


def test_every_place_is_named_at_once() -> None:
    body = {
        "state": 1,
        "seed": "x",
        "questions": {
            "noul": {"type": "noul", "criteria": {"true": 1}},
            "choice": {"type": "choice", "instructions": 2, "criteria": {"ok": None, "bad": 3}},
            "[key]": {"type": "score", "criteria": ["a", 4, "b", None]},
            "q": {"type": "other"},
            "r": {},
            "": NOUL,
        },
        "assets": {"[key]": {"type": "image", "format": "bmp", "part": "p"}},
    }
    assert issues(body) == [
        (["body", "state"], "text_type"),
        (["body", "questions", "noul", "criteria", "true"], "text_type"),
        (["body", "questions", "choice", "instructions"], "text_type"),
        (["body", "questions", "choice", "criteria", "bad"], "text_type"),
        (["body", "questions", "[key]", "criteria", 1], "text_type"),
        (["body", "questions", "[key]", "criteria", 3], "text_type"),
        (["body", "questions", "q"], "union_tag_invalid"),
        (["body", "questions", "r"], "union_tag_not_found"),
        (["body", "questions", ""], "string_too_short"),
        (["body", "assets", "[key]", "format"], "literal_error"),
        (["body", "seed"], "int_type"),
    ]


def reach(body: Any, loc: list[str | int]) -> None:
    """Follow a path; its last step may lead to what is missing."""
    assert loc[0] == "body"
    for number, step in enumerate(loc[1:], start=1):
        if number == len(loc) - 1 and isinstance(body, dict):
            return
        body = body[step]


NAMES = st.sampled_from(
    ["noul", "choice", "score", "[key]", "criteria", "questions", "type", "str", "dict[str,any]", "", "a"]
)
BAD = st.sampled_from([None, 0, 1.5, True, "x", [], {}, [1], {"a": 1}])
QUESTION = st.one_of(
    BAD,
    st.fixed_dictionaries(
        {"type": st.sampled_from(["noul", "choice", "score", "x"])},
        optional={
            "instructions": BAD,
            "criteria": BAD | st.dictionaries(NAMES, BAD, max_size=3) | st.lists(BAD, max_size=12),
        },
    ),
)
BODIES = st.fixed_dictionaries(
    {},
    optional={
        "state": BAD,
        "questions": BAD | st.dictionaries(NAMES, QUESTION, max_size=4),
        "assets": BAD | st.dictionaries(NAMES, BAD, max_size=2),
        **dict.fromkeys(("samples", "diagnostics", "seed", "layout", "auto_threshold", "images"), BAD),
    },
)


@given(BODIES)
def test_paths_lead_through_the_body_as_sent(body: dict[str, Any]) -> None:
    try:
        parse_request(body)
    except BadRequestError as error:
        assert error.issues
        for issue in error.issues:
            reach(body, issue.loc)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(NAMES | st.text(max_size=3), inner, max_size=4)
        ),
        max_leaves=20,
    )
)
def test_any_json_is_a_request_or_a_refusal(data: Any) -> None:
    try:
        request, warnings = parse_request(data)
    except BadRequestError as error:
        assert error.issues
        return
    assert isinstance(request, SystemOneRequest)
    json.dumps([warning.model_dump() for warning in warnings])


# Privacy


@pytest.mark.parametrize(
    "fields",
    [
        {"state": 12345678},
        {"questions": {"a": {"type": SECRET}}},
        {"questions": {"a": {"type": [SECRET]}}},
        {"questions": {"a": SECRET}},
        {"questions": {"a": {"type": "noul", "instructions": 12345678}}},
        {"questions": {"a": {"type": "noul", "criteria": SECRET}}},
        {"questions": {"a": {"type": "choice", "criteria": SECRET}}},
        {"questions": {"a": {"type": "choice", "criteria": {"o": 12345678}}}},
        {"questions": {"a": {"type": "score", "criteria": [12345678]}}},
        {"questions": SECRET},
        *({name: SECRET} for name in ("seed", "samples", "diagnostics", "layout", "steps", "images")),
        *({name: 12345678} for name in ("samples", "steps", "think", "chunk_rows", "auto_max")),
        {"auto_threshold": SECRET},
        {"assets": {"p": {"type": SECRET}}},
        {"assets": {"p": {"type": "image", "format": SECRET, "data_base64": SECRET}}},
        {"assets": {"p": {"type": "image", "data_base64": SECRET}}},
    ],
)
def test_refusals_repeat_no_value(fields: dict[str, Any]) -> None:
    with pytest.raises(BadRequestError) as error:
        parse_request({**BODY, **fields})
    said = str(error.value) + json.dumps([issue.model_dump() for issue in error.value.issues])
    assert SECRET not in said
    assert "12345678" not in said


def test_refusals_stay_short() -> None:
    found = issues({**BODY, "assets": {f"a{n}": {} for n in range(5000)}})
    assert len(found) == MAX_ISSUES + 1
    with pytest.raises(BadRequestError) as error:
        parse_request({**BODY, "questions": {"a": {"type": "x" * 1_000_000}}})
    assert len(str(error.value)) < 200


# Unknown fields


@pytest.mark.parametrize(
    ("field", "meant"),
    [
        ("sample", "samples"),
        ("Seed", "seed"),
        ("instruction", "instructions"),
        ("auto_treshold", "auto_threshold"),
        ("permutation", "permutations"),
        ("diagnostic", "diagnostics"),
    ],
)
def test_misspelt_field(field: str, meant: str) -> None:
    (warning,) = warned(**{field: 1})
    assert warning.loc == [field]
    assert warning.type == "unknown_field"
    assert warning.msg == f"Unknown field {field!r} was ignored; did you mean {meant!r}?"


def test_field_that_is_like_no_other() -> None:
    (warning,) = warned(zzz=1)
    assert warning.msg == "Unknown field 'zzz' was ignored"


def test_unknown_fields_at_every_depth() -> None:
    found = warned(
        extra=None,
        questions={
            "a": {**NOUL, "instruction": "x", "criteria": {"true": "y", "yes": "z"}},
            "b": {"type": "choice", "criteria": {"any": None, "name": None}, "options": []},
            "c": {"type": "score", "criteria": [{"any": "thing"}], "levels": 3},
        },
        assets={"p": {"type": "image", "part": "x", "size": 3}},
    )
    assert [warning.loc for warning in found] == [
        ["extra"],
        ["questions", "a", "instruction"],
        ["questions", "a", "criteria", "yes"],
        ["questions", "b", "options"],
        ["questions", "c", "levels"],
        ["assets", "p", "size"],
    ]


def test_text_has_no_unknown_fields() -> None:
    assert warned(state={"sample": 1}, instructions={"seed": 2}) == []


def test_strict_refuses_what_would_be_warned_of() -> None:
    found = issues({**BODY, "strict": True, "sample": 1, "questions": {"a": {**NOUL, "note": ""}}})
    assert found == [
        (["body", "sample"], "unknown_field"),
        (["body", "questions", "a", "note"], "unknown_field"),
    ]
    assert parse_request({**BODY, "strict": True})[1] == []


def test_very_many_unknown_fields_cost_little() -> None:
    body = {**BODY, **{f"chunk_row{n}": n for n in range(200_000)}}
    started = time.perf_counter()
    _, warnings = parse_request(body)
    assert time.perf_counter() - started < 2  # comparing all of their spellings takes 20 s
    assert len(warnings) == MAX_WARNINGS
    assert len(issues({**body, "strict": True})) == MAX_WARNINGS


def test_long_field_names_are_cut_in_the_text() -> None:
    (warning,) = warned(**{"x" * 10_000: 1})
    assert len(warning.msg) < 120


# Constructors and the wire mean the same


def test_request_built_in_python() -> None:
    built = SystemOneRequest(state="s", questions={"a": Noul("Is it?"), "b": Choice(["x", "y"])})
    parsed, _ = parse_request(json.loads(built.model_dump_json()))
    assert parsed == built
    mixed, warnings = parse_request({"state": "s", "questions": dict(built.questions)})
    assert (mixed, warnings) == (built, [])
