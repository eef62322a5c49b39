"""What requests for texts have in common, whatever API they follow: controls, and fields that are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias, cast

from pydantic import BaseModel, ConfigDict, Discriminator, Field, StrictBool, StrictInt, Tag, model_validator

MAX_STOPS = 4
MAX_STOP = 256
"""Characters of a stop string."""

MAX_SEED = 2**63 - 1
MAX_STEPS = 1000

Neutral: TypeAlias = Mapping[str, tuple[tuple[Any, ...], str]]
"""Fields that are not served: the values that ask for nothing, and what is said about any other."""

Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP)]


def _string_or_list(value: Any) -> str | None:
    return "<string>" if isinstance(value, str) else "<list>" if isinstance(value, list) else None


STRING_OR_LIST = Discriminator(
    _string_or_list,
    custom_error_type="string_or_list",
    custom_error_message="Input should be a string or an array",
)
"""Tells a string from a list, so that an error is about the one that is there; tags in <> leave its path."""

Stops: TypeAlias = Annotated[
    Annotated[StopString, Tag("<string>")]
    | Annotated[list[StopString], Field(max_length=MAX_STOPS), Tag("<list>")],
    STRING_OR_LIST,
]


class Request(BaseModel):
    """A body whose fields may be null, which is the same as leaving them out."""

    model_config = ConfigDict(extra="ignore")

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        return {key: value for key, value in cast(dict[str, Any], data).items() if value is not None}


class Diffusion(Request):
    """How canvases are refined; what is left out is the checkpoint's default."""

    max_denoising_steps: StrictInt | None = Field(
        default=None, ge=1, le=MAX_STEPS, description="most steps of a canvas"
    )
    diffusion_sampler: Literal["entropy-bound", "confidence-threshold"] | None = None
    threshold: Number | None = Field(
        default=None,
        ge=0,
        le=1,
        description="confidence-threshold: least probability of a token that is kept",
    )
    entropy_bound: Number | None = Field(
        default=None, gt=0, description="entropy-bound: nats that the kept tokens may have together"
    )
    t_min: Number | None = Field(
        default=None, ge=0, description="temperature that the last step comes close to"
    )
    t_max: Number | None = Field(default=None, gt=0, description="temperature of the first step; over t_min")
    stability: StrictInt | None = Field(
        default=None, ge=0, le=MAX_STEPS, description="steps that must agree before a canvas is final early"
    )
    confidence: Number | None = Field(
        default=None, gt=0, description="mean entropy in nats under which a canvas may be final early"
    )
    max_canvas: StrictInt | None = Field(default=None, ge=1, description="width of a canvas")
    min_canvas: StrictInt | None = Field(
        default=None, ge=1, description="least width of a last canvas that is not full"
    )
    full_canvas: StrictBool | None = Field(
        default=None, description="whether the last canvas is as wide as the others"
    )
    self_conditioning: StrictBool | None = Field(
        default=None, description="whether a step is told what the one before predicted"
    )

    def diffusion(self) -> dict[str, Any]:
        """What is given, by the names of `jev.model.writing.Options`."""
        given = self.model_dump(include=set(Diffusion.model_fields), exclude_none=True)
        if "diffusion_sampler" in given:
            given["sampler"] = given.pop("diffusion_sampler")
        return given
