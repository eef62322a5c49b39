"""A class of any kind asks one question a field and is filled from the answers."""

import dataclasses
import enum
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, NotRequired, TypedDict

import pydantic
import pytest
import typing_extensions
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from jev import Choice, ChoiceAnswer, Noul, NoulAnswer, ResponseError, Score, ScoreAnswer
from jev.schemas import Answer
from jev.typed import confidence_of, instance_of, probabilities_of, questions_of

LEVELS = ["cosmetic", "annoying", "blocking"]

Urgent = Annotated[bool, "Is it urgent?"]
Team = Annotated[Literal["billing", "technical"], "Which team?"]
Severity = Annotated[float, Score(LEVELS)]
Level = Annotated[int, Score("How bad?", LEVELS)]


class Plain:
    urgent: Urgent
    team: Team
    severity: Severity
    level: Level
    about: ClassVar[str] = "tickets"


@dataclasses.dataclass(frozen=True)
class Data:
    urgent: Urgent
    team: Team
    severity: Severity
    level: Level = 0
    about: ClassVar[str] = "tickets"


class Model(BaseModel):
    model_config = ConfigDict(frozen=True)
    urgent: Urgent
    team: Team
    severity: Severity
    level: Level
    _note: str = PrivateAttr("tickets")


class Row(NamedTuple):
    urgent: Urgent
    team: Team
    severity: Severity
    level: Level


class Map(TypedDict):
    urgent: Urgent
    team: Team
    severity: NotRequired[Severity]
    level: Level


class LaterMap(typing_extensions.TypedDict):
    urgent: Urgent
    team: Team
    severity: Severity
    level: Level


def noul(p: float) -> NoulAnswer:
    return NoulAnswer(noul=p)


def choice(**probabilities: float) -> ChoiceAnswer:
    best = max(probabilities, key=lambda key: probabilities[key])
    return ChoiceAnswer(choice=best, probabilities=probabilities, confidence=0.5)


def score(*probabilities: float) -> ScoreAnswer:
    return ScoreAnswer(
        score=sum(i * p for i, p in enumerate(probabilities)),
        legend={str(i): "level" for i in range(len(probabilities))},
        probabilities={str(i): p for i, p in enumerate(probabilities)},
        confidence=0.25,
    )


ANSWERS: dict[str, Answer] = {
    "urgent": noul(0.75),
    "team": choice(billing=0.1, technical=0.9),
    "severity": score(0.5, 0.0, 0.5),
    "level": score(0.25, 0.25, 0.5),
}
VALUES = {"urgent": True, "team": "technical", "severity": 1.0, "level": 2}

KINDS = [Plain, Data, Model, Row, Map, LaterMap]


@pytest.mark.parametrize("cls", KINDS)
def test_every_kind_of_class_asks_the_same(cls: type[Any]) -> None:
    assert questions_of(cls) == {
        "urgent": Noul("Is it urgent?"),
        "team": Choice("Which team?", ["billing", "technical"]),
        "severity": Score("Severity?", LEVELS),
        "level": Score("How bad?", LEVELS),
    }


@pytest.mark.parametrize("cls", KINDS)
def test_every_kind_of_class_is_filled(cls: type[Any]) -> None:
    value = instance_of(cls, ANSWERS)
    if cls in (Map, LaterMap):
        assert value == VALUES
        assert type(value) is dict
    else:
        assert type(value) is cls
        assert {name: getattr(value, name) for name in VALUES} == VALUES
        assert type(value.severity) is float
        assert type(value.level) is int


def test_probabilities_and_confidence() -> None:
    assert probabilities_of(ANSWERS) == {
        "urgent": 0.75,
        "team": {"billing": 0.1, "technical": 0.9},
        "severity": {0: 0.5, 1: 0.0, 2: 0.5},
        "level": {0: 0.25, 1: 0.25, 2: 0.5},
    }
    assert confidence_of(ANSWERS) == {"urgent": 0.5, "team": 0.5, "severity": 0.25, "level": 0.25}
    assert confidence_of({"a": noul(0.0)}) == {"a": 1.0}


@pytest.mark.parametrize(("p", "value"), [(0.0, False), (0.4999, False), (0.5, True), (1.0, True)])
def test_a_bool_is_true_from_one_half(p: float, value: bool) -> None:
    class One:
        a: bool

    assert instance_of(One, {"a": noul(p)}).a is value


def test_the_likeliest_level_is_the_lowest_of_equals() -> None:
    class One:
        a: Level

    assert instance_of(One, {"a": score(0.4, 0.2, 0.4)}).a == 0


@pytest.mark.parametrize(
    ("name", "question"),
    [
        ("urgent", "Urgent?"),
        ("is_urgent", "Is urgent?"),
        ("needsReply", "Needs reply?"),
        ("uses_HTTP", "Uses HTTP?"),
        ("class_", "Class?"),
        ("step2Done", "Step2 done?"),
    ],
)
def test_a_bare_field_asks_its_name(name: str, question: str) -> None:
    cls = type("One", (), {"__annotations__": {name: bool}})
    assert questions_of(cls) == {name: Noul(question)}


class Colour(enum.Enum):
    RED = "rot"
    BLUE = "blau"
    CRIMSON = "rot"  # noqa: PIE796 - an alias, so no option of its own


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 2


class Mixed(enum.Enum):
    A = "a"
    B = 2


class Kind(enum.StrEnum):
    BUG = "bug"
    WISH = "wish"


@pytest.mark.parametrize(
    ("annotation", "options"),
    [
        (Colour, {"rot": Colour.RED, "blau": Colour.BLUE}),
        (Size, {"SMALL": Size.SMALL, "LARGE": Size.LARGE}),
        (Mixed, {"A": Mixed.A, "B": Mixed.B}),
        (Kind, {"bug": Kind.BUG, "wish": Kind.WISH}),
        (Literal["a", ""], {"a": "a", "": ""}),
        (Literal[1, -2], {"1": 1, "-2": -2}),
        (Literal[True, False], {"true": True, "false": False}),
        (Literal["x", 3, True, Colour.BLUE], {"x": "x", "3": 3, "true": True, "blau": Colour.BLUE}),
        (Literal["only"], {"only": "only"}),
    ],
)
def test_options_come_back_as_the_values_they_stand_for(annotation: Any, options: dict[str, Any]) -> None:
    cls = type("One", (), {"__annotations__": {"a": annotation}})
    assert questions_of(cls) == {"a": Choice("A?", list(options))}
    for option, value in options.items():
        answer = ChoiceAnswer(choice=option, probabilities=dict.fromkeys(options, 0.5), confidence=0)
        found = getattr(instance_of(cls, {"a": answer}), "a")  # noqa: B009 - the class is made here
        assert found == value
        assert type(found) is type(value)


Which = typing_extensions.TypeAliasType("Which", Annotated[Literal["x", "y"], "Which?"])


class Described(BaseModel):
    from_field: bool = Field(description="Described?")
    text_wins: Annotated[bool, "Asked?"] = Field(description="Described?")
    object_wins: Annotated[bool, Noul("Asked?", true="yes, it was")] = Field(False, description="Described?")
    filled: Annotated[bool, Noul(true="yes, it was")] = Field(description="Described?")
    limited: Annotated[float, Field(ge=0, description="How far?"), Score(LEVELS)]


def test_where_instructions_come_from() -> None:
    assert questions_of(Described) == {
        "from_field": Noul("Described?"),
        "text_wins": Noul("Asked?"),
        "object_wins": Noul("Asked?", true="yes, it was"),
        "filled": Noul("Described?", true="yes, it was"),
        "limited": Score("How far?", LEVELS),
    }


def test_text_beside_an_object_instructs_it() -> None:
    class One:
        a: Annotated[Literal["x", "y"], "Which?", Choice({"y": "why", "x": None})]

    assert questions_of(One) == {"a": Choice("Which?", {"y": "why", "x": None})}
    question = questions_of(One)["a"]
    assert isinstance(question, Choice)
    assert list(question.criteria) == ["y", "x"]


def test_dataclass_metadata() -> None:
    @dataclasses.dataclass
    class One:
        a: bool = dataclasses.field(metadata={"jev": "Is it?"})
        b: float = dataclasses.field(metadata={"jev": Score("How?", LEVELS), "other": 1})
        c: dict[str, int] = dataclasses.field(init=False, default_factory=dict)

    assert questions_of(One) == {"a": Noul("Is it?"), "b": Score("How?", LEVELS)}
    assert instance_of(One, {"a": noul(1), "b": score(0, 1)}) == One(True, 1.0)


def test_pydantic_dataclass() -> None:
    @pydantic.dataclasses.dataclass
    class One:
        a: bool = Field(description="Is it?")

    assert questions_of(One) == {"a": Noul("Is it?")}
    assert instance_of(One, {"a": noul(0)}) == One(a=False)


def test_pydantic_aliases_and_validators() -> None:
    class One(BaseModel):
        is_it: bool = Field(alias="isIt")
        how: Annotated[float, Score(LEVELS), Field(validation_alias="the how", le=1)]

    assert list(questions_of(One)) == ["is_it", "how"]
    value = instance_of(One, {"is_it": noul(1), "how": score(0, 1)})
    assert (value.is_it, value.how) == (True, 1.0)
    with pytest.raises(pydantic.ValidationError):
        instance_of(One, {"is_it": noul(1), "how": score(0, 0, 1)})


def test_questions_in_a_pydantic_model_leave_its_own_validation_alone() -> None:
    class One(BaseModel):
        a: Annotated[float, Score(LEVELS)]
        b: Annotated[bool, Noul("Is it?")]
        c: Annotated[Literal["x"], Choice(["x"])]
        own: Score | None = None

    assert One(a=1.5, b=False, c="x", own=Score(LEVELS)).a == 1.5
    assert One.model_validate({"a": 0, "b": True, "c": "x", "own": {"criteria": LEVELS}}).own == Score(LEVELS)
    with pytest.raises(pydantic.ValidationError):
        One(a="far", b=True, c="x")  # type: ignore[arg-type]
    assert One.model_json_schema()["properties"]["a"] == {"title": "A", "type": "number"}


def test_inherited_fields_and_type_aliases() -> None:
    class Base:
        a: bool

    class One(Base):
        b: Which

    assert questions_of(One) == {"a": Noul("A?"), "b": Choice("Which?", ["x", "y"])}


def test_a_class_with_its_own_init() -> None:
    class One:
        a: bool

        def __init__(self, *, a: bool) -> None:
            self.told = a

    assert instance_of(One, {"a": noul(1)}).told is True


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"urgent": score(1)}, r"answers\.urgent: expected a NoulAnswer, got a ScoreAnswer"),
        ({"severity": noul(1)}, r"answers\.severity: expected a ScoreAnswer, got a NoulAnswer"),
        ({"team": choice(sales=1)}, r"answers\.team: 'sales' is not one of the options"),
        ({"level": None}, r"answers\.level: missing"),
    ],
)
def test_answers_that_do_not_fit_are_response_errors(change: dict[str, Any], text: str) -> None:
    answers = {key: value for key, value in {**ANSWERS, **change}.items() if value is not None}
    with pytest.raises(ResponseError, match=text):
        instance_of(Plain, answers)
