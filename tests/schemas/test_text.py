"""Proves what the model reads for a text value, and that nothing else passes as text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from jev.schemas import Text, render_text

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
STRUCTURED = st.lists(JSON, max_size=4) | st.dictionaries(st.text(), JSON, max_size=4)

text: TypeAdapter[Any] = TypeAdapter(Text)


@pytest.mark.parametrize(
    ("value", "rendered"),
    [
        ("", ""),
        ("  as it is\n\n", "  as it is\n\n"),
        ('{"not": "touched"}', '{"not": "touched"}'),
        ({}, "{}"),
        ([], "[]"),
        ({"b": 1, "a": [1.5, None, True]}, '{"b":1,"a":[1.5,null,true]}'),
        ({"grüße": "日本語 🙂"}, '{"grüße":"日本語 🙂"}'),
        ({"quote": 'a"b\\c\n'}, '{"quote":"a\\"b\\\\c\\n"}'),
        ([{"x": []}, {"y": {}}], '[{"x":[]},{"y":{}}]'),
    ],
)
def test_rendering(value: Any, rendered: str) -> None:
    assert render_text(value) == rendered


@given(STRUCTURED)
def test_structured_text_is_compact_json_that_reads_back(value: Any) -> None:
    rendered = render_text(text.validate_python(value))
    assert json.loads(rendered) == value
    assert rendered == json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@given(st.text())
def test_strings_are_kept_to_the_character(value: str) -> None:
    assert render_text(text.validate_python(value)) == value


@pytest.mark.parametrize("value", [None, True, False, 0, 1, 1.5, b"bytes", ("a",), {1}, object()])
def test_what_is_no_text(value: Any) -> None:
    with pytest.raises(ValidationError) as refused:
        text.validate_python(value)
    (error,) = refused.value.errors()
    assert (error["type"], error["loc"]) == ("text_type", ())


@pytest.mark.parametrize(
    "value",
    [
        [float("inf")],
        {"a": float("-inf")},
        [float("nan")],
        [10**5000],
        "lone \ud800",
        {"deep": ["\udfff"]},
        {"\ud800": 1},
        [object()],
        [b"bytes"],
    ],
)
def test_what_cannot_be_sent(value: Any) -> None:
    with pytest.raises(ValidationError) as refused:
        text.validate_python(value)
    (error,) = refused.value.errors()
    assert (error["type"], error["loc"]) == ("text_invalid", ())
    assert len(error["msg"]) < 300


def test_nesting_without_end() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(ValidationError, match="cannot be sent"):
        text.validate_python(value)
