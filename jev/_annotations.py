"""From one annotated field of a class to a question, and from its answer back to a value."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal, NotRequired, Required, TypeAlias, TypeVar, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from jev.schemas import Answer, Choice, ChoiceAnswer, Noul, NoulAnswer, Score, ScoreAnswer

AnyQuestion: TypeAlias = Noul | Choice | Score
A = TypeVar("A", NoulAnswer, ChoiceAnswer, ScoreAnswer)
Q = TypeVar("Q", Noul, Choice, Score)


SUPPORTED = "bool, Literal[...], an Enum, or float or int with Score([...])"


@dataclass(frozen=True)
class AskedField:
    """One field of a typed class.

    Attributes:
        question: what the field asks.
        read: turns the question's answer into the field's value; raises TypeError for an answer
            of another type or with an option that the field does not have.
    """

    question: AnyQuestion
    read: Callable[[Answer], Any]


def field_of(where: str, name: str, annotation: Any, beside: Sequence[object] = ()) -> AskedField:
    """Return what a field asks and how its answer is read.

    Args:
        where: the field for error messages, as "Class.field".
        name: the field's name; it is the question when there are no instructions.
        annotation: its annotation, `Annotated` and all.
        beside: metadata from outside the annotation, such as a pydantic `FieldInfo`.

    Raises:
        TypeError: when the field cannot be asked; the message says what to write instead.
    """
    bare, metadata = _unwrap(annotation)
    given, instructions = _metadata(where, [*metadata, *beside])
    instructions = instructions or humanise(name)
    try:
        if bare is bool:
            return AskedField(_filled(where, Noul, given, instructions) or Noul(instructions), _read_noul)
        if bare is float or bare is int:
            question = _filled(where, Score, given, instructions)
            if question is None:
                raise TypeError(
                    f"{where}: {bare.__name__} needs levels: Annotated[{bare.__name__}, Score([...])]"
                )
            return AskedField(question, _read_score if bare is float else _read_level)
        values = _options(where, bare)
        question = _filled(where, Choice, given, instructions)
        if question is None:
            question = Choice(instructions=instructions, criteria=dict.fromkeys(values))
        elif set(question.criteria) != set(values):
            raise TypeError(
                f"{where}: the Choice has the options {list(question.criteria)}, "
                f"the annotation has {list(values)}"
            )
    except ValidationError as error:
        reason = "; ".join(row["msg"] for row in error.errors(include_url=False))
        raise TypeError(f"{where}: {reason}") from None
    return AskedField(question, lambda answer: _read_choice(answer, values))


def humanise(name: str) -> str:
    """Turn a field's name into a question: `needs_reply` becomes "Needs reply?"."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).split("_")
    text = " ".join(word if len(word) > 1 and word.isupper() else word.lower() for word in words if word)
    return f"{text[:1].upper()}{text[1:]}?"


def _unwrap(annotation: Any) -> tuple[Any, list[object]]:
    """Take off Annotated, Required, NotRequired and type aliases; return what was annotated too."""
    metadata: list[object] = []
    while True:
        origin = get_origin(annotation)
        if origin is Annotated:
            metadata = [*annotation.__metadata__, *metadata]
            annotation = annotation.__origin__
        elif origin in (Required, NotRequired):
            annotation = get_args(annotation)[0]
        elif hasattr(annotation, "__value__"):  # a `type X = ...` alias, from typing or typing_extensions
            annotation = annotation.__value__
        else:
            return annotation, metadata


def _metadata(where: str, metadata: Sequence[object]) -> tuple[AnyQuestion | None, str | None]:
    """Find the question object and the instructions among metadata of all kinds."""
    questions = [item for item in metadata if isinstance(item, (Noul, Choice, Score))]
    texts = [item for item in metadata if isinstance(item, str)]
    if len(questions) > 1 or len(texts) > 1:
        raise TypeError(
            f"{where}: more than one question; give one text and at most one Noul, Choice or Score"
        )
    question = questions[0] if questions else None
    if question is not None and question.instructions is not None:
        if texts:
            raise TypeError(
                f"{where}: instructions are given both as text and in the {type(question).__name__}"
            )
        return question, None
    # A description is for every reader of the class, so it gives way to what is meant for the model.
    texts += [item.description for item in metadata if isinstance(item, FieldInfo) and item.description]
    return question, texts[0] if texts else None


def _filled(where: str, kind: type[Q], given: AnyQuestion | None, instructions: str) -> Q | None:
    """Return the given question with instructions, or None when none was given."""
    if given is None:
        return None
    if not isinstance(given, kind):
        raise TypeError(f"{where}: this annotation takes a {kind.__name__}, got a {type(given).__name__}")
    if given.instructions is not None:
        return given
    return given.model_copy(update={"instructions": instructions})


def _options(where: str, annotation: Any) -> Mapping[str, Any]:
    """Return the values that an annotation allows, by the option that stands for each."""
    if get_origin(annotation) is Literal:
        members: list[Any] = list(get_args(annotation))
    elif isinstance(annotation, type) and issubclass(annotation, Enum):
        members = list(annotation)
    else:
        shown = annotation.__name__ if isinstance(annotation, type) else annotation
        raise TypeError(
            f"{where}: {shown} cannot be asked; use {SUPPORTED}, "
            "or declare what is no question as a ClassVar or a private attribute"
        )
    options: dict[str, Any] = {}
    for member in members:
        option = _option(where, member)
        if option in options:
            raise TypeError(f"{where}: {options[option]!r} and {member!r} are both called {option!r}")
        options[option] = member
    return options


def _option(where: str, value: object) -> str:
    if isinstance(value, Enum):
        values = [member.value for member in type(value)]
        return value.value if all(isinstance(v, str) for v in values) else value.name
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int)):
        return str(value)
    raise TypeError(f"{where}: {value!r} cannot be an option; use str, int, bool or Enum values")


def _read_noul(answer: Answer) -> bool:
    return _of(NoulAnswer, answer).yes


def _read_score(answer: Answer) -> float:
    return _of(ScoreAnswer, answer).score


def _read_level(answer: Answer) -> int:
    return _of(ScoreAnswer, answer).level


def _read_choice(answer: Answer, values: Mapping[str, Any]) -> Any:
    option = _of(ChoiceAnswer, answer).choice
    if option not in values:
        raise TypeError(f"{option!r} is not one of the options")
    return values[option]


def _of(kind: type[A], answer: Answer) -> A:
    if not isinstance(answer, kind):
        raise TypeError(f"expected a {kind.__name__}, got a {type(answer).__name__}")
    return answer
