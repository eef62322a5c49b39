"""The body of `POST /v1/systemone`: a state, typed questions and optional controls."""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    ValidationInfo,
    field_validator,
    model_validator,
)

from jev.schemas.attachments import MAX_ATTACHMENTS, Attachment, InlineImage
from jev.schemas.questions import Question
from jev.schemas.text import Text

MAX_SAMPLES = 32
MAX_QUESTIONS = 1024
"""Most questions of one request."""

INT32 = 2**31

ATTACHMENT_FIELDS = ("images", "files", "documents", "videos", "audios")
"""Fields with attachments, in the order in which they follow the state."""

_COUNTED = ATTACHMENT_FIELDS[1:]

Samples = Annotated[int, Field(strict=True, ge=1, le=MAX_SAMPLES)]
QuestionId = Annotated[str, Field(min_length=1, max_length=512)]
Placeholder = Annotated[str, Field(min_length=1)]


def too_many(count: int) -> str:
    """What is said at the field whose attachments, with those of the fields before it, are `count`."""
    names = f"{', '.join(_COUNTED[:-1])} and {_COUNTED[-1]}"
    return f"With this field there are {count} attachments in {names}; the limit is {MAX_ATTACHMENTS}"


class Asset(BaseModel):
    """An image that a placeholder string in the request stands for."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["image"]
    format: Literal["png", "jpg", "jpeg"] | None = None
    data_base64: str | None = None
    part: str | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Asset:
        if (self.data_base64 is None) == (self.part is None):
            raise ValueError("an asset needs exactly one of data_base64 and part")
        if self.data_base64 is not None and self.format is None:
            raise ValueError("an inline asset needs its format")
        return self


class SystemOneRequest(BaseModel):
    """A state and the questions about it. Every field but `state` and `questions` is optional.

    Values out of range are refused, never clamped. An explicit `null` for an optional field is
    the same as leaving it out.
    """

    model_config = ConfigDict(extra="ignore")

    model: str = Field(default="jev-latest", min_length=1)
    state: Text
    questions: dict[QuestionId, Question] = Field(min_length=1, max_length=MAX_QUESTIONS)
    assets: Annotated[dict[Placeholder, Asset], Field(min_length=1)] | None = None

    instructions: Text | None = Field(
        default=None, description="request-wide text placed before the questions"
    )
    layout: Literal["isolated", "joint"] = Field(
        default="isolated",
        description="isolated: every question alone; joint: all questions share one canvas",
    )
    samples: Samples | Literal["auto"] = Field(default="auto", description="canvas reads a question")
    auto_max: StrictInt = Field(default=4, ge=1, le=MAX_SAMPLES, description="reads when auto extends")
    auto_threshold: float = Field(
        default=0.1, ge=0, allow_inf_nan=False, strict=True, description="nats of entropy over the labels"
    )
    seed: StrictInt = Field(default=42, ge=-INT32, le=INT32 - 1, description="decides the slot noise")
    permutations: StrictInt = Field(
        default=1, ge=1, le=MAX_SAMPLES, description="orders of a choice's options to average over"
    )
    steps: StrictInt = Field(default=1, ge=1, le=8)
    think: StrictInt = Field(default=0, ge=0, le=4096)
    chunk_rows: StrictInt | None = Field(
        default=None, ge=8, le=4096, description="joint: canvas rows a chunk"
    )
    chunk_prompt: Literal["own", "shared"] = "own"
    calibration: str | None = None
    diagnostics: StrictBool | Literal["full"] = False
    strict: StrictBool = Field(default=False, description="refuse unknown fields instead of warning")

    images: list[InlineImage] = Field(default_factory=list[InlineImage], max_length=MAX_ATTACHMENTS)
    files: list[Attachment] = Field(default_factory=list[Attachment], description="attachments of any kind")
    documents: list[Attachment] = Field(default_factory=list[Attachment])
    videos: list[Attachment] = Field(default_factory=list[Attachment])
    audios: list[Attachment] = Field(default_factory=list[Attachment])

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        given = cast(dict[str, Any], data)
        return {k: v for k, v in given.items() if v is not None or k in ("state", "questions")}

    @field_validator(*_COUNTED)
    @classmethod
    def _few_attachments(cls, entries: list[Attachment], info: ValidationInfo) -> list[Attachment]:
        # What is checked before this field is in `info.data`, so the one that goes over is refused.
        count = len(entries) + sum(len(info.data.get(name, [])) for name in _COUNTED)
        if count > MAX_ATTACHMENTS:
            raise ValueError(too_many(count))
        return entries

    @field_validator("steps")
    @classmethod
    def _one_step(cls, steps: int) -> int:
        if steps != 1:
            raise ValueError("Only 1 is supported: a read is one denoising step")
        return steps

    @field_validator("think")
    @classmethod
    def _no_thoughts(cls, think: int) -> int:
        if think != 0:
            raise ValueError("Only 0 is supported: a read has no thoughts before it")
        return think
