"""From a decoded body to a checked request for a text, whatever API it follows."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ValidationError

from jev.schemas.controls import Neutral
from jev.schemas.errors import Issue
from jev.schemas.parse import MAX_WARNINGS, BadRequestError
from jev.schemas.response import Warning

M = TypeVar("M", bound=BaseModel)


def parse_text_request(
    data: Any,
    model: type[M],
    unsupported: Neutral,
    *,
    idle: Collection[str] = (),
    within: Mapping[str, Neutral] | None = None,
    inner: Mapping[str, Collection[str]] | None = None,
) -> tuple[M, list[Warning]]:
    """Check a decoded body, and name the fields it has that nobody knows.

    Args:
        data: the body.
        model: its fields.
        unsupported: fields that are refused.
        idle: fields that are known and have no effect.
        within: fields that are refused of the objects in a list, by the list's name.
        inner: fields that are known of an object, by its name.

    Returns the request and one warning for each unknown field (at most 32 of them).

    Raises:
        BadRequestError: naming the fields that are not served, missing, of the wrong kind or out of range.
    """
    issues = list(_refused(data, unsupported, ()))
    if isinstance(data, dict):
        given = cast(dict[str, Any], data)
        for name, neutral in (within or {}).items():
            entries = given.get(name)
            for index, one in enumerate(cast(list[Any], entries) if isinstance(entries, list) else []):
                issues += _refused(one, neutral, (name, index))
    if issues:
        raise BadRequestError(issues)
    try:
        request = model.model_validate(data)
    except ValidationError as error:
        raise BadRequestError(_issues(error)) from None
    known = {*model.model_fields, *unsupported, *idle}
    return request, list(islice(_all_unknown(cast(dict[str, Any], data), known, inner or {}), MAX_WARNINGS))


def _refused(data: Any, neutral: Neutral, at: tuple[str | int, ...]) -> Iterator[Issue]:
    """An issue for each field that asks for what is not served."""
    if not isinstance(data, dict):
        return
    given = cast(dict[str, Any], data)
    for name, (values, why) in neutral.items():
        if given.get(name) is not None and not any(_same(given[name], value) for value in values):
            yield Issue(loc=["body", *at, name], msg=why, type="unsupported_parameter")


def _same(given: Any, value: Any) -> bool:
    return type(given) is type(value) and given == value


def _issues(error: ValidationError) -> Iterator[Issue]:
    """The issues of a pydantic error, with paths as in the JSON; values are left out."""
    for row in error.errors(include_url=False, include_context=False, include_input=False):
        loc = [one for one in row["loc"] if not (isinstance(one, str) and one.startswith("<"))]
        message = row["msg"].removeprefix("Value error, ")
        if row["type"] == "model_type":  # pydantic's own message names the class
            message = "Input should be an object"
        yield Issue(loc=["body", *loc], msg=message, type=row["type"])


def _all_unknown(
    data: Mapping[str, Any], known: Collection[str], inner: Mapping[str, Collection[str]]
) -> Iterator[Warning]:
    yield from _unknown(data, known, ())
    for name, fields in inner.items():
        if isinstance(one := data.get(name), dict):
            yield from _unknown(cast(dict[str, Any], one), fields, (name,))


def _unknown(data: Mapping[str, Any], known: Collection[str], at: tuple[str, ...]) -> Iterator[Warning]:
    for key in data:
        if key in known:
            continue
        close = difflib.get_close_matches(key[:64], known, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        yield Warning(loc=[*at, key[:64]], msg=f"Unknown field {key[:64]!r} was ignored{hint}")
