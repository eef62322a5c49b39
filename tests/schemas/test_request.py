"""Proves every limit of the request's fields: the last value inside passes, the first outside does not."""

from __future__ import annotations

from typing import Any

import pytest

from jev.schemas import (
    ATTACHMENT_FIELDS,
    MAX_QUESTIONS,
    BadRequestError,
    Noul,
    SystemOneRequest,
    parse_request,
)

NOUL = {"type": "noul", "instructions": "Is it?"}
BODY: dict[str, Any] = {"state": "s", "questions": {"a": NOUL}}
INLINE = {"type": "image", "format": "png", "data_base64": "AA=="}

OPTIONAL = {
    "model": "jev-latest",
    "assets": None,
    "instructions": None,
    "layout": "isolated",
    "samples": "auto",
    "auto_max": 4,
    "auto_threshold": 0.1,
    "seed": 42,
    "permutations": 1,
    "steps": 1,
    "think": 0,
    "chunk_rows": None,
    "chunk_prompt": "own",
    "calibration": None,
    "diagnostics": False,
    "strict": False,
    **{name: [] for name in ATTACHMENT_FIELDS},
}
"""Every optional field with its default."""


def parse(**fields: Any) -> SystemOneRequest:
    request, warnings = parse_request({**BODY, **fields})
    assert warnings == []
    return request


def refused(**fields: Any) -> list[list[str | int]]:
    """The paths that the refusal names, without repeats."""
    with pytest.raises(BadRequestError) as error:
        parse_request({**BODY, **fields})
    return [list(loc) for loc in dict.fromkeys(tuple(issue.loc) for issue in error.value.issues)]


def test_defaults() -> None:
    request = parse()
    assert {name: getattr(request, name) for name in OPTIONAL} == OPTIONAL
    assert set(OPTIONAL) | {"state", "questions"} == set(SystemOneRequest.model_fields)


@pytest.mark.parametrize("name", OPTIONAL)
def test_null_is_the_same_as_leaving_out(name: str) -> None:
    assert parse(**{name: None}) == parse()


def test_all_nulls_at_once() -> None:
    assert parse(**dict.fromkeys(OPTIONAL)) == parse()


def test_nulls_inside_a_question_and_an_asset() -> None:
    noul = {"type": "noul", "instructions": "?", "criteria": {"true": None, "false": None}}
    choice = {"type": "choice", "instructions": None, "criteria": {"a": None}}
    request = parse(questions={"a": noul, "b": choice}, assets={"p": {**INLINE, "part": None}})
    assert request.questions["b"].instructions is None
    assert request.assets is not None
    assert request.assets["p"].part is None


@pytest.mark.parametrize("name", ["state", "questions"])
def test_what_must_be_there(name: str) -> None:
    assert refused(**{name: None}) == [["body", name]]
    body = {key: value for key, value in BODY.items() if key != name}
    with pytest.raises(BadRequestError) as error:
        parse_request(body)
    (issue,) = error.value.issues
    assert (issue.loc, issue.type) == (["body", name], "missing")


INTEGERS = [
    ("auto_max", 1, 32),
    ("seed", -(2**31), 2**31 - 1),
    ("permutations", 1, 32),
    ("samples", 1, 32),
    ("chunk_rows", 8, 4096),
]


@pytest.mark.parametrize(("name", "least", "most"), INTEGERS)
def test_integers_at_their_limits(name: str, least: int, most: int) -> None:
    for value in (least, least + 1, most - 1, most):
        assert getattr(parse(**{name: value}), name) == value
    for value in (least - 1, most + 1, -(10**400), 10**400):
        assert refused(**{name: value}) == [["body", name]]


@pytest.mark.parametrize("name", [*(name for name, _, _ in INTEGERS), "steps", "think"])
@pytest.mark.parametrize("value", [True, "8", 8.0, 8.5, [8], {}])
def test_integers_are_never_converted(name: str, value: object) -> None:
    assert refused(**{name: value}) == [["body", name]]


@pytest.mark.parametrize(
    ("name", "only", "others"), [("steps", 1, [0, 2, 8, 9]), ("think", 0, [-1, 1, 4097])]
)
def test_fields_that_allow_one_value(name: str, only: int, others: list[int]) -> None:
    assert getattr(parse(**{name: only}), name) == only
    for value in others:
        assert refused(**{name: value}) == [["body", name]]


@pytest.mark.parametrize("value", [0, 0.0, 1e-300, 0.1, 3, 1e300])
def test_threshold(value: float) -> None:
    assert parse(auto_threshold=value).auto_threshold == value


@pytest.mark.parametrize("value", [-1e-9, -1, float("inf"), float("nan"), 10**400, "0.1", True, []])
def test_threshold_out_of_range(value: object) -> None:
    assert refused(auto_threshold=value) == [["body", "auto_threshold"]]


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("layout", ["isolated", "joint"]),
        ("chunk_prompt", ["own", "shared"]),
        ("diagnostics", [True, False, "full"]),
        ("strict", [True, False]),
        ("samples", ["auto"]),
    ],
)
def test_choices(name: str, allowed: list[object]) -> None:
    for value in allowed:
        assert getattr(parse(**{name: value}), name) == value
    for value in ("", "other", "true", "AUTO", 0, 1.0, [], {}):
        assert refused(**{name: value}) == [["body", name]]


@pytest.mark.parametrize("name", ["model", "calibration"])
def test_names(name: str) -> None:
    assert getattr(parse(**{name: "x"}), name) == "x"
    for value in (1, True, [], {}):
        assert refused(**{name: value}) == [["body", name]]
    assert refused(model="") == [["body", "model"]]


@pytest.mark.parametrize("name", ["state", "instructions"])
def test_text_fields(name: str) -> None:
    for value in ("", "text", {}, {"a": [1, None]}, [], ["x"]):
        assert getattr(parse(**{name: value}), name) == value
    for value in (0, 1.5, True):
        assert refused(**{name: value}) == [["body", name]]


@pytest.mark.parametrize("count", [1, MAX_QUESTIONS])
def test_as_many_questions_as_allowed(count: int) -> None:
    questions = {f"q{n}": NOUL for n in range(count)}
    assert list(parse(questions=questions).questions) == list(questions)


@pytest.mark.parametrize("count", [0, MAX_QUESTIONS + 1])
def test_no_or_too_many_questions(count: int) -> None:
    assert refused(questions={f"q{n}": NOUL for n in range(count)}) == [["body", "questions"]]


@pytest.mark.parametrize("name", ["x", "x" * 512, " ", "body", "noul", "[key]", "questions", "ä🙂\n", "0"])
def test_question_ids(name: str) -> None:
    assert parse(questions={name: NOUL}).questions == {name: Noul("Is it?")}


@pytest.mark.parametrize("name", ["", "x" * 513])
def test_question_ids_out_of_range(name: str) -> None:
    assert refused(questions={name: NOUL}) == [["body", "questions", name]]


@pytest.mark.parametrize("value", [[], "q", 1, True])
def test_questions_are_an_object(value: object) -> None:
    assert refused(questions=value) == [["body", "questions"]]


@pytest.mark.parametrize("name", ATTACHMENT_FIELDS)
def test_attachments_are_lists(name: str) -> None:
    inline, uploaded = getattr(parse(**{name: [{"name": "a.txt", "data": "aGk="}, {"file": "file-1"}]}), name)
    assert (inline.name, inline.data, uploaded.file) == ("a.txt", "aGk=", "file-1")
    for entry in ({"name": "a"}, {"data": "aGk="}, {"name": "a", "data": "aGk=", "file": "f"}, 5, None):
        assert refused(**{name: [entry]})[0][:3] == ["body", name, 0]
    for bad in ("", "a/b", "a\\b", "..", "a\nb", "x" * 256):
        assert refused(**{name: [{"name": bad, "data": "aGk="}]}) == [["body", name, 0, "name"]]
    assert refused(**{name: [{"file": "f"}] * 9}) == [["body", name]]
    for value in ({}, "x", 1, True):
        assert refused(**{name: value}) == [["body", name]]


@pytest.mark.parametrize("format", ["png", "jpg", "jpeg"])
def test_inline_assets(format: str) -> None:
    request = parse(assets={"p": {**INLINE, "format": format}})
    assert request.assets is not None
    assert request.assets["p"].format == format


def test_asset_that_names_a_part() -> None:
    request = parse(assets={"p": {"type": "image", "part": "file1"}})
    assert request.assets is not None
    assert request.assets["p"].part == "file1"


@pytest.mark.parametrize(
    ("asset", "below"),
    [
        ({"format": "png", "data_base64": "AA=="}, ["type"]),
        ({**INLINE, "type": "video"}, ["type"]),
        ({**INLINE, "format": "gif"}, ["format"]),
        ({**INLINE, "data_base64": 1}, ["data_base64"]),
        ({"type": "image", "data_base64": "AA=="}, []),
        ({"type": "image", "format": "png"}, []),
        ({**INLINE, "part": "file1"}, []),
        ("AA==", []),
    ],
)
def test_assets_that_are_none(asset: object, below: list[str]) -> None:
    assert refused(assets={"p": asset}) == [["body", "assets", "p", *below]]


def test_empty_assets() -> None:
    assert refused(assets={}) == [["body", "assets"]]


def test_placeholder_of_nothing() -> None:
    """It would stand between any two characters."""
    assert refused(assets={"": INLINE}) == [["body", "assets", ""]]
