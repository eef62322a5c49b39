"""`POST /v1/chat/completions` in OpenAI's shape."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias, cast

from pydantic import BaseModel, Discriminator, Field, StrictBool, StrictInt, Tag, model_validator

from jev.schemas.completion import UNSUPPORTED, Finish, TextRequest, TextUsage
from jev.schemas.controls import STRING_OR_LIST, Neutral, Request

MAX_MESSAGES = 4096
MAX_PARTS = 256

_NO_TOOLS = "Tools are not supported"

CHAT_UNSUPPORTED: Neutral = {
    **UNSUPPORTED,
    "tools": (([],), _NO_TOOLS),
    "functions": (([],), _NO_TOOLS),
    "tool_choice": (("none",), _NO_TOOLS),
    "function_call": (("none",), _NO_TOOLS),
    "web_search_options": ((), _NO_TOOLS),
    "logprobs": ((False,), "Log probabilities are not supported"),
    "top_logprobs": ((0,), "Log probabilities are not supported"),
    "modalities": ((["text"],), "The answer is text"),
    "audio": ((), "The answer is text"),
    "prediction": ((), "Predicted output is not supported"),
    "moderation": ((), "Moderation is not supported"),
    "continue_final_message": ((False,), "The answer is always a new message"),
    "add_generation_prompt": ((True,), "The answer is always a new message"),
}

MESSAGE_UNSUPPORTED: Neutral = {
    "tool_calls": (([],), _NO_TOOLS),
    "function_call": ((), _NO_TOOLS),
    "audio": ((), "Only text and pictures are read here; /v1/systemone reads recordings"),
}


class TextPart(BaseModel):
    """Text."""

    type: Literal["text"]
    text: str


class ImageURL(Request):
    """A picture as a base64 data URL."""

    url: str
    detail: Literal["auto", "low", "high", "original"] = Field(default="auto", description="has no effect")


class ImagePart(BaseModel):
    """A picture."""

    type: Literal["image_url"]
    image_url: ImageURL


class RefusalPart(BaseModel):
    """What an assistant said instead of an answer."""

    type: Literal["refusal"]
    refusal: str


def _kind(part: Any) -> str | None:
    kind = cast(dict[str, Any], part).get("type") if isinstance(part, dict) else getattr(part, "type", None)
    return f"<{kind}>" if isinstance(kind, str) else None


Part: TypeAlias = Annotated[
    Annotated[TextPart, Tag("<text>")]
    | Annotated[ImagePart, Tag("<image_url>")]
    | Annotated[RefusalPart, Tag("<refusal>")],
    Discriminator(
        _kind,
        custom_error_type="part_type",
        custom_error_message="The type of a part should be 'text' or 'image_url'",
    ),
]

Content: TypeAlias = Annotated[
    Annotated[str, Tag("<string>")]
    | Annotated[list[Part], Field(min_length=1, max_length=MAX_PARTS), Tag("<list>")],
    STRING_OR_LIST,
]


class Message(Request):
    """One message. Of an assistant, thoughts are left out; names have no effect."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Content = ""

    @model_validator(mode="after")
    def _has_content(self) -> Message:
        if "content" not in self.model_fields_set and self.role != "assistant":
            raise ValueError("A message needs content")
        if isinstance(self.content, list):
            kinds = {part.type for part in self.content}
            if "image_url" in kinds and self.role != "user":
                raise ValueError("Only messages of the user can have pictures")
            if "refusal" in kinds and self.role != "assistant":
                raise ValueError("Only messages of the assistant can be refusals")
        return self


class TemplateOptions(Request):
    """What the chat layout is told."""

    enable_thinking: StrictBool = False


class ChatRequest(TextRequest):
    """A conversation to answer."""

    messages: list[Message] = Field(min_length=1, max_length=MAX_MESSAGES)
    max_completion_tokens: StrictInt | None = Field(default=None, ge=1, description="as max_tokens")
    chat_template_kwargs: TemplateOptions | None = Field(
        default=None, description="`enable_thinking`: whether the model may think first"
    )
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = Field(
        default=None, description="any but none = the model may think first"
    )
    verbosity: Literal["low", "medium", "high"] | None = Field(default=None, description="has no effect")

    @model_validator(mode="after")
    def _one_limit(self) -> ChatRequest:
        both = self.max_tokens is not None and self.max_completion_tokens is not None
        if both and self.max_tokens != self.max_completion_tokens:
            raise ValueError("max_tokens and max_completion_tokens differ")
        return self

    @property
    def limit(self) -> int | None:
        """Most tokens."""
        return self.max_completion_tokens if self.max_tokens is None else self.max_tokens

    @property
    def thinks(self) -> str | None:
        """The field that lets the model think first; None = it may not."""
        if self.chat_template_kwargs is not None and self.chat_template_kwargs.enable_thinking:
            return "chat_template_kwargs"
        return "reasoning_effort" if self.reasoning_effort not in (None, "none") else None

    @property
    def ignored(self) -> list[str]:
        """Names of what is given and has no effect."""
        return [*super().ignored, *(["verbosity"] if self.verbosity else [])]


class ChatMessage(BaseModel):
    """The answer, and if wanted what the model thought before."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    refusal: None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class ChatChoice(BaseModel):
    """The answer and why it ends."""

    index: Literal[0]
    message: ChatMessage
    logprobs: None = None
    finish_reason: Finish


class ChatCompletion(BaseModel):
    """The body of `POST /v1/chat/completions`."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str | None = None
    choices: list[ChatChoice]
    usage: TextUsage
    x_warning: str | None = None


class ChatDelta(BaseModel):
    """A bit of the answer."""

    index: Literal[0]
    delta: ChatMessage
    logprobs: None = None
    finish_reason: Finish | None


class Denoising(BaseModel):
    """A canvas while it is refined."""

    block: int = Field(description="number of the canvas, from 0")
    step: int
    steps: int = Field(description="most steps")
    text: str = Field(description="the whole canvas as it is now, thoughts too")
    kept: list[tuple[int, int]] = Field(description="spans of characters that the next step starts from")
    entropy: float = Field(description="mean over the canvas, in nats")
    final: bool = Field(description="whether the canvas is finished; its text follows in a usual chunk")


class ChatChunk(BaseModel):
    """An event of a stream."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str | None = None
    choices: list[ChatDelta] = Field(max_length=1)
    usage: TextUsage | None = None
    x_warning: str | None = None
    x_denoising: Denoising | None = None
