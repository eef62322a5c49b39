"""From bytes to a checked request: JSON, limits, unknown fields."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, cast

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from jev.schemas.attachments import Attachment
from jev.schemas.errors import Issue, capped, issues_of
from jev.schemas.questions import Choice, Noul, NoulCriteria, Score
from jev.schemas.request import ATTACHMENT_FIELDS, Asset, SystemOneRequest
from jev.schemas.response import Warning

MAX_WARNINGS = 32

_QUESTION_MODELS: dict[str, type[BaseModel]] = {"noul": Noul, "choice": Choice, "score": Score}


class BadRequestError(ValueError):
    """A request body that cannot be served; `issues` says where and why."""

    def __init__(self, issues: Iterable[Issue]) -> None:
        self.issues = capped(list(issues))
        super().__init__("; ".join(f"{'.'.join(map(str, i.loc))}: {i.msg}" for i in self.issues))

    @classmethod
    def at(cls, *loc: str | int, msg: str, type: str = "value_error") -> BadRequestError:
        """Build the error for one place in the body; `loc` is the path below "body"."""
        return cls([Issue(loc=["body", *loc], msg=msg, type=type)])


def parse_json(body: bytes) -> Any:
    """Decode a JSON body.

    Raises:
        BadRequestError: for malformed JSON, NaN or Infinity, nesting deeper than about 200,
            bytes that are not UTF-8 and lone surrogates.
    """
    try:
        return from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise BadRequestError.at(msg=f"JSON decode error: {error}", type="json_invalid") from None


def parse_request(data: Any) -> tuple[SystemOneRequest, list[Warning]]:
    """Check a decoded body and name the fields it has that nobody knows.

    Returns the request and one warning for each unknown field (at most 32 of them).

    Raises:
        BadRequestError: naming the fields that are missing, of the wrong kind or out of range (at
            most 100); with `"strict": true` also unknown fields (at most 32).
    """
    try:
        request = SystemOneRequest.model_validate(data)
    except ValidationError as error:
        raise BadRequestError(issues_of(error)) from None
    # Cut off before the spelling is compared, which is slow: a body may have very many.
    warnings = list(islice(_unknown_fields(data), MAX_WARNINGS))
    if warnings and request.strict:
        raise BadRequestError(Issue(loc=["body", *w.loc], msg=w.msg, type=w.type) for w in warnings)
    return request, warnings


def _unknown_fields(data: dict[str, Any]) -> Iterator[Warning]:
    yield from _unknown(data, SystemOneRequest, [])
    for key, question in data["questions"].items():
        if isinstance(question, BaseModel):
            continue
        yield from _unknown(question, _QUESTION_MODELS[question["type"]], ["questions", key])
        if question["type"] == "noul" and isinstance(question.get("criteria"), dict):
            yield from _unknown(question["criteria"], NoulCriteria, ["questions", key, "criteria"])
    assets = cast(dict[str, Any], data.get("assets") or {})
    for key, asset in assets.items():
        yield from _unknown(asset, Asset, ["assets", key])

    for field in ATTACHMENT_FIELDS:
        for index, entry in enumerate(cast(list[Any], data.get(field) or [])):
            if isinstance(entry, dict):
                yield from _unknown(cast(dict[str, Any], entry), Attachment, [field, index])


def _unknown(given: dict[str, Any], model: type[BaseModel], at: list[str | int]) -> Iterator[Warning]:
    for key in given:
        if key in model.model_fields:
            continue
        close = difflib.get_close_matches(key[:64], model.model_fields, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        yield Warning(loc=[*at, key], msg=f"Unknown field {key[:64]!r} was ignored{hint}")
