"""The three question types: `noul` (yes or no), `choice` and `score`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias, cast, overload

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, model_validator
from pydantic_core import CoreSchema, PydanticCustomError

from jev.schemas.text import Text

MAX_OPTIONS = 255
"""Most options of a `choice`."""
MAX_LEVELS = 10
"""Most levels of a `score`."""


def _wire_skips(init: Callable[..., None]) -> None:
    """Keep a constructor's shorthand (`Noul(true=...)`) out of JSON, where it would be unknown fields.

    Without this mark pydantic validates a question in a request by calling the constructor with its
    JSON keys as keyword arguments.
    """
    init.__pydantic_base_init__ = True  # pyright: ignore[reportFunctionMemberAccess]


class NoulCriteria(BaseModel):
    """What counts as yes and what counts as no; either side may be left out."""

    model_config = ConfigDict(extra="ignore")

    true: Text | None = None
    false: Text | None = None


class _Question(BaseModel):
    model_config = ConfigDict(extra="ignore")

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        # As metadata in Annotated a question must not replace the annotated type's own schema.
        return handler(source)


class Noul(_Question):
    """A yes/no question; its answer is P(yes).

    >>> Noul("Is the customer angry?")
    >>> Noul(true="asks for money back", false="anything else")
    """

    type: Literal["noul"] = "noul"
    instructions: Text | None = None
    criteria: NoulCriteria | None = None

    def __init__(
        self,
        instructions: Any = None,
        /,
        *,
        true: Any = None,
        false: Any = None,
        **fields: Any,
    ) -> None:
        _known(type(self), fields)
        if instructions is not None:
            fields["instructions"] = instructions
        if true is not None or false is not None:
            fields["criteria"] = {"true": true, "false": false}
        super().__init__(**fields)

    _wire_skips(__init__)

    @model_validator(mode="after")
    def _asks_something(self) -> Noul:
        described = self.criteria is not None and not (
            self.criteria.true is None and self.criteria.false is None
        )
        if self.instructions is None and not described:
            raise PydanticCustomError(
                "noul_empty", "A noul needs instructions or at least one described outcome"
            )
        return self


class Choice(_Question):
    """One of 1 to 255 named options; its answer is a probability for every option.

    >>> Choice("Which team?", ["billing", "technical", "sales"])
    >>> Choice({"refund": "wants money back", "other": None})
    """

    type: Literal["choice"] = "choice"
    instructions: Text | None = None
    criteria: dict[str, Text | None] = Field(min_length=1, max_length=MAX_OPTIONS)

    @overload
    def __init__(
        self, instructions: str, options: Sequence[str] | Mapping[str, Any], /, **fields: Any
    ) -> None: ...
    @overload
    def __init__(self, options: Sequence[str] | Mapping[str, Any], /, **fields: Any) -> None: ...
    @overload
    def __init__(self, **fields: Any) -> None: ...
    def __init__(self, *args: Any, **fields: Any) -> None:
        _known(type(self), fields)
        _place(args, fields)
        criteria = fields.get("criteria")
        if args and isinstance(criteria, (list, tuple)):
            names = cast(Sequence[str], criteria)
            if len(set(names)) != len(names):
                raise ValueError(f"the options of a choice must differ, got {list(names)!r}")
            fields["criteria"] = dict.fromkeys(names)
        super().__init__(**fields)

    _wire_skips(__init__)


class Score(_Question):
    """An ordered scale of 1 to 10 levels, lowest first; its answer is the expected index.

    >>> Score("How severe is it?", ["cosmetic", "annoying", "blocking"])
    """

    type: Literal["score"] = "score"
    instructions: Text | None = None
    criteria: list[Text] = Field(min_length=1, max_length=MAX_LEVELS)

    @overload
    def __init__(self, instructions: str, levels: Sequence[Any], /, **fields: Any) -> None: ...
    @overload
    def __init__(self, levels: Sequence[Any], /, **fields: Any) -> None: ...
    @overload
    def __init__(self, **fields: Any) -> None: ...
    def __init__(self, *args: Any, **fields: Any) -> None:
        _known(type(self), fields)
        _place(args, fields)
        super().__init__(**fields)

    _wire_skips(__init__)


def _known(question: type[BaseModel], fields: Mapping[str, Any]) -> None:
    """Refuse a misspelled argument, which as an unknown field of JSON would only be warned about."""
    for name in fields:
        if name not in question.model_fields:
            raise TypeError(f"{question.__name__}() got an unexpected keyword argument {name!r}")


def _place(args: tuple[Any, ...], fields: dict[str, Any]) -> None:
    """Put positional arguments where they belong: a string instructs, anything else lists."""
    if len(args) > 2:
        raise TypeError(f"expected at most instructions and criteria, got {len(args)} arguments")
    for value in args:
        name = "instructions" if isinstance(value, str) else "criteria"
        if name in fields:
            raise TypeError(f"{name} given twice")
        fields[name] = value


Question: TypeAlias = Annotated[Noul | Choice | Score, Field(discriminator="type")]
"""Any question, told apart by its `type`."""
