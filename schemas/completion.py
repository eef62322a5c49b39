"""`POST /v1/completions` in OpenAI's shape, and what it shares with chats."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, Field, StrictBool, StrictInt, Tag, model_validator

from jev.schemas.controls import (
    MAX_SEED,
    STRING_OR_LIST,
    Diffusion,
    Neutral,
    Number,
    Request,
    Stops,
)

SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)
"""Controls of models that write token by token; they are checked, and have no effect here."""

HOUSEKEEPING = (
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "prompt_cache_options",
    "parallel_tool_calls",
)
"""Fields of OpenAI's API that do not concern the text."""

_ONE = "Only 1 is supported: a request has one text"
_NO_STRUCTURE = "Structured output is not supported; /v1/systemone answers typed questions"
_NO_BIAS = "Tokens cannot be favoured or banned"

UNSUPPORTED: Neutral = {
    "n": ((1,), _ONE),
    "best_of": ((1,), _ONE),
    "use_beam_search": ((False,), "Beam search is not supported"),
    "logit_bias": (({},), _NO_BIAS),
    "bad_words": (([],), _NO_BIAS),
    "allowed_token_ids": (([],), _NO_BIAS),
    "stop_token_ids": (([],), "Stop strings are supported, stop tokens are not"),
    "ignore_eos": ((False,), "A text ends where the model ends it"),
    "min_tokens": ((0,), "A text ends where the model ends it, so there is no least length"),
    "response_format": (({"type": "text"},), _NO_STRUCTURE),
    "structured_outputs": ((), _NO_STRUCTURE),
    "guided_json": ((), _NO_STRUCTURE),
    "guided_regex": ((), _NO_STRUCTURE),
    "guided_choice": ((), _NO_STRUCTURE),
    "guided_grammar": ((), _NO_STRUCTURE),
    "prompt_logprobs": ((), "Log probabilities are not supported"),
}


class StreamOptions(Request):
    """What a stream carries besides the text."""

    include_usage: StrictBool = False
    include_obfuscation: StrictBool = Field(default=False, description="has no effect")
    denoising: StrictBool = Field(default=False, description="also send each canvas while it is refined")


class TextRequest(Diffusion):
    """What chats and completions share."""

    model: str = Field(default="jev-latest", min_length=1)
    max_tokens: StrictInt | None = Field(
        default=None, ge=1, description="most tokens; none or too many = what has room behind the prompt"
    )
    stream: StrictBool = False
    stream_options: StreamOptions | None = None
    stop: Stops | None = None
    seed: StrictInt | None = Field(
        default=None, ge=0, le=MAX_SEED, description="decides every draw; none = a random one, see x-jev-seed"
    )
    include_reasoning: StrictBool = Field(default=False, description="whether thoughts are sent, apart")

    temperature: Number | None = Field(default=None, ge=0, le=2, description="has no effect")
    top_p: Number | None = Field(default=None, ge=0, le=1, description="has no effect")
    top_k: StrictInt | None = Field(default=None, ge=-1, description="has no effect")
    min_p: Number | None = Field(default=None, ge=0, le=1, description="has no effect")
    presence_penalty: Number | None = Field(default=None, ge=-2, le=2, description="has no effect")
    frequency_penalty: Number | None = Field(default=None, ge=-2, le=2, description="has no effect")
    repetition_penalty: Number | None = Field(default=None, gt=0, description="has no effect")

    @model_validator(mode="after")
    def _only_of_streams(self) -> TextRequest:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options needs stream: true")
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        """The strings that end the text."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def ignored(self) -> list[str]:
        """Names of what is given and has no effect."""
        return [name for name in SAMPLING if getattr(self, name) is not None]


class CompletionRequest(TextRequest):
    """A prompt to go on from, without any chat layout."""

    prompt: Annotated[
        Annotated[str, Tag("<string>")]
        | Annotated[list[str], Field(min_length=1, max_length=1), Tag("<list>")],
        STRING_OR_LIST,
    ]

    @property
    def text(self) -> str:
        """The prompt."""
        return self.prompt if isinstance(self.prompt, str) else self.prompt[0]


COMPLETION_UNSUPPORTED: Neutral = {
    **UNSUPPORTED,
    "echo": ((False,), "The prompt is not sent back"),
    "suffix": (("",), "A text cannot be fitted between two others"),
    "logprobs": ((), "Log probabilities are not supported"),
}


class TokenDetails(BaseModel):
    """Of the tokens that were written: those of thoughts."""

    reasoning_tokens: int


class TextUsage(BaseModel):
    """Tokens of a text; what is behind its end, its stop string or `max_tokens` is not counted."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    completion_tokens_details: TokenDetails


Finish: TypeAlias = Literal["stop", "length"]


class CompletionChoice(BaseModel):
    """The text."""

    index: Literal[0]
    text: str
    reasoning_content: str | None = None
    reasoning: str | None = None
    logprobs: None = None
    finish_reason: Finish | None


class Completion(BaseModel):
    """The body of `POST /v1/completions`; of a stream, each of its chunks."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str | None = None
    choices: list[CompletionChoice]
    usage: TextUsage | None = None
    x_warning: str | None = None
    x_denoising: dict[str, Any] | None = None


class OpenAIError(BaseModel):
    """What went wrong: one sentence, its kind, and the field."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIErrorBody(BaseModel):
    """The body of every error of OpenAI's routes."""

    error: OpenAIError
