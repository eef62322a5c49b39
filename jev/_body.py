"""From Python arguments to a request body: the same for HTTP and in process."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import Field
from typing import Any, ClassVar, Literal, Protocol, TypeAlias, TypedDict

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_jsonable_python

from jev._attachments import Attachable
from jev.errors import InvalidRequestError
from jev.schemas import Choice, Noul, Score
from jev.typed import questions_of

DEFAULT_MODEL = "jev-latest"


class DataclassInstance(Protocol):
    """Any dataclass object."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


State: TypeAlias = str | Mapping[str, Any] | Sequence[Any] | BaseModel | DataclassInstance
"""What a decision is about: text, or anything that becomes a JSON object or array."""

Questions: TypeAlias = Mapping[str, Noul | Choice | Score | Mapping[str, Any]]
"""Questions by id; a question may also be written as the dictionary that goes on the wire."""


class DecideOptions(TypedDict, total=False):
    """The options of `decide`. One that is None or left out is not sent: the server's default holds.

    Attributes:
        attachments: files that belong to the state, at most 8: paths (`Path("invoice.pdf")`), bytes,
            `(name, bytes)`, file objects in binary mode, PIL images, and files from `upload`.
        model: name of the model to ask; by default the client's.
        instructions: text for all questions, placed before them.
        layout: "isolated" reads every question alone, "joint" all of them on one canvas.
        samples: reads a question, 1 to 32, or "auto".
        auto_max: reads when "auto" extends.
        auto_threshold: nats of entropy above which "auto" extends.
        seed: decides the slot noise.
        permutations: orders of a choice's options to average over.
        calibration: name of a calibration that the server has loaded.
        diagnostics: True for reads, entropies and timings; "full" also for token and noise ids.
        strict: whether unknown fields are refused instead of named in `Decision.warnings`.
        timeout: seconds for this call; by default the client's. No meaning in process.
        headers: HTTP headers for this call. No meaning in process.
        extra_body: fields to put into the body as they are; they win over all others.
    """

    attachments: Sequence[Attachable] | None
    model: str | None
    instructions: str | Mapping[str, Any] | Sequence[Any] | None
    layout: Literal["isolated", "joint"] | None
    samples: int | Literal["auto"] | None
    auto_max: int | None
    auto_threshold: float | None
    seed: int | None
    permutations: int | None
    calibration: str | None
    diagnostics: bool | Literal["full"] | None
    strict: bool | None
    timeout: float | None
    headers: Mapping[str, str] | None
    extra_body: Mapping[str, Any] | None


_KNOWN = frozenset(DecideOptions.__annotations__)
_NOT_SENT = frozenset({"attachments", "timeout", "headers", "extra_body"})


def build_body(
    state: State, questions: Questions | type[Any], options: DecideOptions, *, model: str = DEFAULT_MODEL
) -> dict[str, Any]:
    """Return the body of `POST /v1/systemone` as plain JSON values, without attachments (see `Draft`).

    Args:
        state: see `State`.
        questions: questions by id, or a typed class (see `jev.typed`).
        options: see `DecideOptions`.
        model: the model to ask where `options` names none.

    Raises:
        TypeError: for an unknown option, or questions of the wrong kind.
        InvalidRequestError: for a value that JSON does not have; `issues` says where.
    """
    unknown = sorted(options.keys() - _KNOWN)
    if unknown:
        raise TypeError(f"decide() got an unexpected keyword argument {unknown[0]!r}")
    asked = questions_of(questions) if isinstance(questions, type) else questions
    body: dict[str, Any] = {"model": model, "state": _json(state, "state"), "questions": _questions(asked)}
    if not isinstance(body["state"], (str, dict, list)):
        raise InvalidRequestError.at(
            "state", msg=f"Input should be a string, an object or an array, got {type(state).__name__}"
        )
    for name, value in options.items():
        if value is not None and name not in _NOT_SENT:
            body[name] = _json(value, name)
    for name, value in (options.get("extra_body") or {}).items():
        body[name] = _json(value, name)
    return body


def encode(body: Mapping[str, Any]) -> bytes:
    """Return a body as compact UTF-8 JSON.

    Raises:
        InvalidRequestError: for NaN, infinities and lone surrogates.
    """
    try:
        return json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError.at(msg=f"Input cannot be sent: {error}", type="json_invalid") from None


def _questions(questions: object) -> dict[str, Any]:
    if not isinstance(questions, Mapping):
        kind = type(questions).__name__
        raise TypeError(f"questions must be a mapping from id to question or an annotated class, got {kind}")
    wire: dict[str, Any] = {}
    for key, question in questions.items():  # pyright: ignore[reportUnknownVariableType]
        if not isinstance(key, str):
            raise TypeError(f"a question id must be a string, got {key!r}")
        if isinstance(question, (Noul, Choice, Score)):
            wire[key] = _wire_question(question)
        elif isinstance(question, Mapping):
            wire[key] = _json(question, "questions", key)
        else:
            kind = type(question).__name__  # pyright: ignore[reportUnknownArgumentType]
            raise TypeError(f"question {key!r} must be a Noul, Choice, Score or dictionary, got {kind}")
    return wire


def _wire_question(question: Noul | Choice | Score) -> dict[str, Any]:
    wire = _set_fields(question)
    if isinstance(question, Noul) and question.criteria is not None:
        wire["criteria"] = _set_fields(question.criteria)
    return wire


def _set_fields(model: BaseModel) -> dict[str, Any]:
    # Not exclude_none, which also looks inside: nulls of structured text belong to the text.
    return {key: value for key, value in model.model_dump().items() if value is not None}


def _json(value: Any, *loc: str) -> Any:
    """Turn `value` into what JSON has: dict, list, str, int, float, bool and None."""
    try:
        return to_jsonable_python(value, fallback=_container)
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        raise InvalidRequestError.at(
            *loc, msg=f"Input cannot be sent: {error}", type="json_invalid"
        ) from None


def _container(value: Any) -> Any:
    """Accept every mapping and sequence, not only the built-in ones."""
    if isinstance(value, Mapping):
        return dict(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    if isinstance(value, Sequence):
        return list(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    raise ValueError(f"{type(value).__name__} is not JSON")
