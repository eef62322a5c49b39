"""One row of a batch or of labelled data: a state, perhaps attachments, questions and reviewed answers."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr

from jev.schemas.attachments import MAX_ATTACHMENTS
from jev.schemas.questions import Question
from jev.schemas.request import MAX_QUESTIONS, QuestionId
from jev.schemas.text import Text

Reviewed: TypeAlias = StrictBool | StrictInt | StrictStr
"""A reviewed answer: true or false for a noul, an option's name for a choice, a level's index for a score."""

Soft: TypeAlias = dict[str, Annotated[StrictFloat | StrictInt, Field(ge=0)]]
"""Soft labels of one question: a weight for each alternative by name (see `alternatives`)."""


MAX_WEIGHT = 1e9
"""Largest weight of a row; sums of a million of them, and their squares, are still exact enough."""


class Row(BaseModel):
    """A row to decide, to measure with, or to learn from. Only `state` or `attachments` must be there.

    Attributes:
        id: the caller's name for the row; a number is taken as it is written.
        state: what the questions are about.
        attachments: paths of files, relative to the data's folder.
        questions: the row's own questions; without them the job's apply.
        answers: reviewed answers by question id; a question without one is not scored.
        weight: how much the row counts in training and in means.
        soft: soft labels by question id, such as a teacher's probabilities.
    """

    model_config = ConfigDict(extra="ignore")

    id: Annotated[str | None, Field(coerce_numbers_to_str=True)] = None
    state: Text = ""
    attachments: list[str] = Field(default_factory=list[str], max_length=MAX_ATTACHMENTS)
    questions: dict[QuestionId, Question] | None = Field(default=None, min_length=1, max_length=MAX_QUESTIONS)
    answers: dict[str, Reviewed] | None = None
    weight: float = Field(default=1.0, ge=0, le=MAX_WEIGHT, allow_inf_nan=False)
    soft: dict[str, Soft] | None = None
    metadata: dict[str, Any] | None = None
