"""A class that cannot be asked or filled is a TypeError that names the class, the field and the remedy."""

import abc
import dataclasses
import enum
from typing import Annotated, Any, ClassVar, Literal

import pydantic
import pytest
from pydantic import BaseModel, Field

from jev import Choice, Noul, Score
from jev.typed import questions_of

LEVELS = ["cosmetic", "annoying", "blocking"]


class Colour(enum.Enum):
    RED = "rot"
    BLUE = "blau"


class Abstract(abc.ABC):
    a: bool

    @abc.abstractmethod
    def act(self) -> None: ...


class Closed:
    a: bool

    def __init__(self, other: int) -> None: ...


@dataclasses.dataclass
class WithInitVar:
    a: bool
    other: dataclasses.InitVar[int]


class Deep(BaseModel):
    a: bool = Field(validation_alias=pydantic.AliasPath("x", 0))


class Unknown:
    a: "Nowhere"  # type: ignore[name-defined]  # noqa: F821


class UnknownModel(BaseModel):
    a: "Nowhere"  # type: ignore[name-defined]  # noqa: F821


class Empty:
    about: ClassVar[int] = 1


def one(annotation: Any, default: Any = ...) -> type[Any]:
    namespace: dict[str, Any] = {"__annotations__": {"a": annotation}}
    if default is not ...:
        namespace["a"] = default
    return type("One", (), namespace)


def data(note: Any) -> type[Any]:
    return dataclasses.make_dataclass("One", [("a", bool, dataclasses.field(metadata={"jev": note}))])


@pytest.mark.parametrize(
    ("cls", "text"),
    [
        (one(str), r"One\.a: str cannot be asked; use bool, Literal\[\.\.\.\], an Enum, .* ClassVar"),
        (one(str, "default"), r"One\.a: str cannot be asked"),
        (one(bool | None), r"One\.a: bool \| None cannot be asked"),
        (one(list[bool]), r"One\.a: list\[bool\] cannot be asked"),
        (one(Any), r"One\.a: (typing\.)?Any cannot be asked"),
        (one(float), r"One\.a: float needs levels: Annotated\[float, Score\(\[\.\.\.\]\)\]"),
        (one(int), r"One\.a: int needs levels: Annotated\[int, Score"),
        (one(Annotated[float, "How?"]), r"One\.a: float needs levels"),
        (one(Annotated[bool, Score(LEVELS)]), r"One\.a: this annotation takes a Noul, got a Score"),
        (one(Annotated[int, Choice(["1", "2"])]), r"One\.a: this annotation takes a Score, got a Choice"),
        (one(Annotated[Literal["x"], Noul("?")]), r"One\.a: this annotation takes a Choice, got a Noul"),
        (one(Annotated[Literal["x", "y"], Choice(["x"])]), r"One\.a: the Choice has the options \['x'\]"),
        (one(Annotated[bool, "a?", "b?"]), r"One\.a: more than one question"),
        (one(Annotated[bool, Noul("a?"), Noul("b?")]), r"One\.a: more than one question"),
        (
            one(Annotated[bool, "a?", Noul("b?")]),
            r"One\.a: instructions are given both as text and in the Noul",
        ),
        (one(Literal["1", 1]), r"One\.a: '1' and 1 are both called '1'"),
        (one(Literal["x", None]), r"One\.a: None cannot be an option"),
        (one(Literal[b"x"]), r"One\.a: b'x' cannot be an option"),
        (one(Literal[tuple(range(256))]), r"One\.a: Dictionary should have at most 255 items"),
        (one(enum.Enum("Nothing", [])), r"One\.a: Dictionary should have at least 1 item"),
        (data(["Is it?"]), r"One\.a: metadata 'jev' must be text, a Noul, a Choice or a Score"),
        (Deep, r"Deep\.a: only a plain string can be the alias"),
        (Unknown, r"Unknown: an annotation cannot be resolved: .*Nowhere"),
        (UnknownModel, r"UnknownModel: an annotation cannot be resolved: .*Nowhere"),
        (Empty, r"Empty has no annotated fields"),
        (dict, r"dict has no annotated fields"),
        (Colour, r"Colour has no annotated fields"),
        (Abstract, r"Abstract is abstract"),
        (Closed, r"Closed cannot be built from its annotated fields"),
        (WithInitVar, r"WithInitVar cannot be built from its annotated fields"),
    ],
)
def test_a_class_that_cannot_be_asked_is_a_type_error_by_name(cls: type[Any], text: str) -> None:
    with pytest.raises(TypeError, match=text):
        questions_of(cls)
