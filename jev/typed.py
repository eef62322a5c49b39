"""Typed classes: each annotated field asks a question, and the answers fill an instance.

    class Ticket:
        urgent: Annotated[bool, "Is it urgent?"]                        # noul: P(yes) >= 0.5
        team: Annotated[Literal["billing", "technical"], "Which team?"] # choice: the option's value
        severity: Annotated[float, Score(["cosmetic", "blocking"])]     # score: the expected level
        level: Annotated[int, Score(["cosmetic", "blocking"])]          # score: the likeliest level

The class may be a plain annotated class, a dataclass, a pydantic model, a NamedTuple or a TypedDict.
An Enum works like a Literal: its options are its values if they are all strings, else its names. A
field asks its text, else the instructions of its Noul, Choice or Score, else pydantic's
`description`, else its own name. A dataclass may also say `field(metadata={"jev": ...})`.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, ClassVar, TypeVar, cast, get_origin, get_type_hints

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from jev._annotations import AnyQuestion, AskedField, field_of
from jev.errors import ResponseError
from jev.schemas import Answer, Choice, ChoiceAnswer, Noul, NoulAnswer, Score

T = TypeVar("T")


def questions_of(cls: type[Any]) -> dict[str, AnyQuestion]:
    """Return the questions that a class asks, by field name.

    Raises:
        TypeError: naming the class and the field that cannot be asked.
    """
    return {name: field.question for name, field in _fields(cls).items()}


def instance_of(cls: type[T], answers: Mapping[str, Answer]) -> T:
    """Return an instance of `cls` (for a TypedDict a dict) filled with answers.

    Validators of a pydantic model run as always, and their errors pass through.

    Raises:
        TypeError: see `questions_of`.
        ResponseError: when an answer is missing or of another kind than its field.
    """
    values: dict[str, Any] = {}
    for name, field in _fields(cls).items():
        if name not in answers:
            raise ResponseError(f"answers.{name}: missing")
        try:
            values[name] = field.read(answers[name])
        except TypeError as error:
            raise ResponseError(f"answers.{name}: {error}") from None
    return cast("T", _build(cls, values))


def probabilities_of(answers: Mapping[str, Answer]) -> dict[str, Any]:
    """Return probabilities by question: P(yes), or one by option, or one by level index."""
    found: dict[str, Any] = {}
    for name, answer in answers.items():
        if isinstance(answer, NoulAnswer):
            found[name] = answer.noul
        elif isinstance(answer, ChoiceAnswer):
            found[name] = dict(answer.probabilities)
        else:
            found[name] = {int(level): p for level, p in answer.probabilities.items()}
    return found


def confidence_of(answers: Mapping[str, Answer]) -> dict[str, float]:
    """Return a confidence in [0, 1] by question; that of a noul is |2 P(yes) - 1|."""
    return {
        name: abs(2 * answer.noul - 1) if isinstance(answer, NoulAnswer) else answer.confidence
        for name, answer in answers.items()
    }


@lru_cache(maxsize=256)
def _fields(cls: type[Any]) -> dict[str, AskedField]:
    try:
        members = list(_members(cls))
    except NameError as error:
        raise TypeError(f"{cls.__name__}: an annotation cannot be resolved: {error}") from None
    if not members:
        raise TypeError(f"{cls.__name__} has no annotated fields, so it asks nothing")
    fields = {name: field_of(f"{cls.__name__}.{name}", name, *rest) for name, *rest in members}
    _check_buildable(cls, fields)
    return fields


def _members(cls: type[Any]) -> Iterator[tuple[str, Any, list[object]]]:
    """Yield each field's name, annotation, and the metadata that stands beside the annotation."""
    if issubclass(cls, BaseModel):
        if not cls.__pydantic_complete__:
            cls.model_rebuild()
        for name, info in cls.model_fields.items():
            yield name, info.annotation, [*info.metadata, info]
        return
    hints = get_type_hints(cls, include_extras=True)
    if dataclasses.is_dataclass(cls):
        for field in dataclasses.fields(cls):
            if field.init:
                yield field.name, hints[field.name], list(_beside(cls, field))
        return
    for name, annotation in hints.items():
        if annotation is not ClassVar and get_origin(annotation) is not ClassVar:
            yield name, annotation, []


def _beside(cls: type[Any], field: dataclasses.Field[Any]) -> Iterator[object]:
    if "jev" in field.metadata:
        note = field.metadata["jev"]
        if not isinstance(note, (str, Noul, Choice, Score)):
            raise TypeError(
                f"{cls.__name__}.{field.name}: metadata 'jev' must be text, a Noul, a Choice or a Score"
            )
        yield note
    if isinstance(field.default, FieldInfo):  # pydantic.dataclasses
        yield field.default


def _check_buildable(cls: type[Any], fields: Mapping[str, AskedField]) -> None:
    """Refuse a class whose instance could not be made, before anything is asked."""
    if inspect.isabstract(cls):
        raise TypeError(f"{cls.__name__} is abstract, so it has no instances")
    if issubclass(cls, BaseModel):
        for name in fields:
            _alias(cls, name)
    elif not _is_typeddict(cls) and _has_init(cls):
        try:
            inspect.signature(cls).bind(**dict.fromkeys(fields))
        except TypeError as error:
            raise TypeError(f"{cls.__name__} cannot be built from its annotated fields: {error}") from None


def _build(cls: type[Any], values: Mapping[str, Any]) -> Any:
    if issubclass(cls, BaseModel):
        return cls(**{_alias(cls, name): value for name, value in values.items()})
    if _is_typeddict(cls) or _has_init(cls):
        return cls(**values)
    instance = cls()
    for name, value in values.items():
        setattr(instance, name, value)
    return instance


def _is_typeddict(cls: type[Any]) -> bool:
    return hasattr(cls, "__total__") and issubclass(cls, dict)


def _has_init(cls: type[Any]) -> bool:
    return cls.__init__ is not object.__init__ or cls.__new__ is not object.__new__


def _alias(cls: type[BaseModel], name: str) -> str:
    """Return the keyword that fills a field of a pydantic model."""
    alias = cls.model_fields[name].validation_alias
    if alias is None or cls.model_config.get("validate_by_alias") is False:
        return name
    if not isinstance(alias, str):
        raise TypeError(f"{cls.__name__}.{name}: only a plain string can be the alias of a field")
    return alias
