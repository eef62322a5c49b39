"""The 200 body of `POST /v1/systemone`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field


class NoulAnswer(BaseModel):
    """P(yes) in [0, 1]."""

    model_config = ConfigDict(frozen=True)

    type: Literal["noul"] = "noul"
    noul: float

    @property
    def yes(self) -> bool:
        """Whether yes is at least as likely as no."""
        return self.noul >= 0.5


class ChoiceAnswer(BaseModel):
    """The most likely option and a probability for each, keyed by option name."""

    model_config = ConfigDict(frozen=True)

    type: Literal["choice"] = "choice"
    choice: str
    probabilities: dict[str, float]
    confidence: float


class ScoreAnswer(BaseModel):
    """The expected level index, with the levels and a probability for each, keyed "0", "1", ..."""

    model_config = ConfigDict(frozen=True)

    type: Literal["score"] = "score"
    score: float
    legend: dict[str, Any]
    probabilities: dict[str, float]
    confidence: float

    @property
    def level(self) -> int:
        """Index of the most likely level (the lowest of equals)."""
        return int(max(self.probabilities, key=lambda key: (self.probabilities[key], -int(key))))


Answer: TypeAlias = Annotated[NoulAnswer | ChoiceAnswer | ScoreAnswer, Field(discriminator="type")]


Tokens: TypeAlias = Annotated[int, Field(ge=0, lt=2**53)]
"""A count that every JSON reader and every database takes."""


class Usage(BaseModel):
    """Tokens read: prompt rows once each (re-reads are free) and canvas rows of one read."""

    model_config = ConfigDict(frozen=True)

    input_tokens: Tokens
    output_tokens: Tokens


class Warning(BaseModel):
    """Something in the request that was ignored."""

    model_config = ConfigDict(frozen=True)

    loc: list[str | int]
    msg: str
    type: str = "unknown_field"


class SystemOneResponse(BaseModel):
    """Answers by question id, in request order. Fields beyond the public API start with `x_`."""

    model: str
    answers: dict[str, Answer]
    usage: Usage
    x_warnings: list[Warning] | None = None
    x_diagnostics: dict[str, Any] | None = None


class ModelInfo(BaseModel):
    """One row of `GET /v1/models`."""

    name: str
    description: str
    release_date: str


class ModelList(BaseModel):
    """The body of `GET /v1/models`."""

    models: list[ModelInfo]


class ListedModel(BaseModel):
    """A model as OpenAI's clients list it; `created` in seconds since 1970."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "jev"

    @classmethod
    def of(cls, model: ModelInfo) -> ListedModel:
        """The model, created at the beginning of the day of its release."""
        return cls(id=model.name, created=_seconds(model.release_date))


class ServedModels(ModelList):
    """The body of `GET /v1/models`, with the same models once more for OpenAI's clients."""

    object: Literal["list"] = "list"
    data: list[ListedModel]

    @classmethod
    def of(cls, models: Sequence[ModelInfo]) -> ServedModels:
        """List the models."""
        return cls(models=list(models), data=[ListedModel.of(one) for one in models])


def _seconds(day: str) -> int:
    """The beginning of a day in UTC, in seconds since 1970; 0 for what is no day."""
    try:
        return int(datetime.combine(date.fromisoformat(day), datetime.min.time(), UTC).timestamp())
    except ValueError:
        return 0
