"""What a decision returns: answers by question, and for a typed class an instance of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar, cast

from pydantic import ValidationError

from jev.errors import ResponseError
from jev.schemas import (
    Answer,
    ChoiceAnswer,
    NoulAnswer,
    ScoreAnswer,
    SystemOneResponse,
    Usage,
    Warning,
)
from jev.typed import confidence_of, instance_of, probabilities_of

T = TypeVar("T")

# Room for numbers that were rounded or summed in another order.
TOLERANCE = 1e-6


@dataclass(frozen=True, kw_only=True, repr=False)
class Decision:
    """The answers to one request; `decision["id"]` is the answer to one question.

    Attributes:
        answers: by question id, in the order asked.
        model: resolved name of the model that answered.
        usage: tokens read.
        warnings: what the server ignored in the request.
        diagnostics: what was asked for with `diagnostics`, else None.
        request_id: the server's id for the request; None in process.
    """

    answers: dict[str, Answer]
    model: str
    usage: Usage
    warnings: tuple[Warning, ...] = ()
    diagnostics: dict[str, Any] | None = None
    request_id: str | None = None

    @property
    def nouls(self) -> dict[str, NoulAnswer]:
        """The answers to yes/no questions."""
        return {key: a for key, a in self.answers.items() if isinstance(a, NoulAnswer)}

    @property
    def choices(self) -> dict[str, ChoiceAnswer]:
        """The answers to choices."""
        return {key: a for key, a in self.answers.items() if isinstance(a, ChoiceAnswer)}

    @property
    def scores(self) -> dict[str, ScoreAnswer]:
        """The answers to scores."""
        return {key: a for key, a in self.answers.items() if isinstance(a, ScoreAnswer)}

    def __getitem__(self, question_id: str) -> Answer:
        return self.answers[question_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self.answers)

    def __len__(self) -> int:
        return len(self.answers)

    def __repr__(self) -> str:
        shown = ", ".join(f"{key!r}: {_shown(answer)}" for key, answer in self.answers.items())
        return f"{type(self).__name__}({{{shown}}}, model={self.model!r})"


@dataclass(frozen=True, kw_only=True, repr=False)
class TypedDecision(Decision, Generic[T]):
    """A decision whose answers also fill an instance of a typed class.

    Attributes:
        value: the instance; for a TypedDict a dict.
        probabilities: by field: P(yes), or a probability for each option or level index.
        confidence: by field, in [0, 1]; that of a bool is |2 P(yes) - 1|.
    """

    value: T
    probabilities: dict[str, float | dict[str, float] | dict[int, float]]
    confidence: dict[str, float]

    def __repr__(self) -> str:
        confidence = {key: round(value, 4) for key, value in self.confidence.items()}
        return f"TypedDecision({self.value!r}, confidence={confidence}, model={self.model!r})"


def decision_of(data: object, questions: Mapping[str, Any], *, request_id: str | None = None) -> Decision:
    """Check a response body against the questions that were asked.

    Args:
        data: the decoded body, or the response itself.
        questions: the questions as they were sent, by id.
        request_id: the server's id for the request.

    Raises:
        ResponseError: naming the place that is missing or wrong.
    """
    try:
        response = SystemOneResponse.model_validate(data, strict=True)
    except ValidationError as error:
        raise ResponseError(first_error(error)) from None
    answers: dict[str, Answer] = {}
    for key, question in questions.items():
        if key not in response.answers:
            raise ResponseError(f"answers.{key}: missing")
        answers[key] = response.answers[key]
        _check(f"answers.{key}", answers[key], question)
    return Decision(
        answers=answers,
        model=response.model,
        usage=response.usage,
        warnings=tuple(response.x_warnings or ()),
        diagnostics=response.x_diagnostics,
        request_id=request_id,
    )


def typed_of(cls: type[T], decision: Decision) -> TypedDecision[T]:
    """Fill an instance of `cls` with a decision's answers.

    Raises:
        ResponseError: when an answer does not fit its field.
    """
    return TypedDecision(
        **{field.name: getattr(decision, field.name) for field in fields(Decision)},
        value=instance_of(cls, decision.answers),
        probabilities=probabilities_of(decision.answers),
        confidence=confidence_of(decision.answers),
    )


def first_error(error: ValidationError) -> str:
    """Return the first place that is wrong in a body, and what is wrong there."""
    row = error.errors(include_url=False, include_input=False)[0]
    loc = list(row["loc"])
    if loc[:1] == ["answers"]:
        del loc[2:3]  # the tag that chose the answer's type; it is not in the JSON
    return f"{'.'.join(map(str, loc)) or 'body'}: {row['msg']}"


def _check(path: str, answer: Answer, question: Any) -> None:
    """Compare one answer with its question; both came from outside."""
    asked: Mapping[str, Any] = cast("Mapping[str, Any]", question) if isinstance(question, Mapping) else {}
    if answer.type != asked.get("type"):
        raise ResponseError(f"{path}.type: asked a {asked.get('type')}, got a {answer.type}")
    if isinstance(answer, NoulAnswer):
        _within(f"{path}.noul", answer.noul, 1)
        return
    criteria: Any = asked.get("criteria") or ()
    names = {str(i) for i in range(len(criteria))} if isinstance(answer, ScoreAnswer) else set(criteria)
    differing = sorted(answer.probabilities.keys() ^ names)
    if differing:
        raise ResponseError(f"{path}.probabilities: {differing[0]!r} is in only one of question and answer")
    for name, probability in answer.probabilities.items():
        _within(f"{path}.probabilities.{name}", probability, 1)
    _within(f"{path}.confidence", answer.confidence, 1)
    if isinstance(answer, ScoreAnswer):
        _within(f"{path}.score", answer.score, len(criteria) - 1)
    elif answer.choice not in names:
        raise ResponseError(f"{path}.choice: {answer.choice!r} is not one of the options")


def _within(path: str, number: float, high: float) -> None:
    if not -TOLERANCE <= number <= high + TOLERANCE:
        raise ResponseError(f"{path}: {number} is not between 0 and {high}")


def _shown(answer: Answer) -> str:
    if isinstance(answer, NoulAnswer):
        return f"noul {answer.noul:.4g}"
    if isinstance(answer, ChoiceAnswer):
        return f"choice {answer.choice!r} ({answer.probabilities[answer.choice]:.4g})"
    return f"score {answer.score:.4g} of 0..{len(answer.probabilities) - 1}"
