"""Texts and models in Ollama's shape: `/api/chat`, `/api/generate`, `/api/tags`, `/api/show`, `/api/ps`."""

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
    StopString,
)

MAX_IMAGES = 8
MAX_STOPS = 16

_NO_TOOLS = "Tools are not supported"
_NO_FORMAT = "Structured output is not supported; /v1/systemone answers typed questions"

OLLAMA_UNSUPPORTED: Neutral = {
    "format": (("",), _NO_FORMAT),
    "tools": (([],), _NO_TOOLS),
    "logprobs": ((False,), "Log probabilities are not supported"),
    "top_logprobs": ((0,), "Log probabilities are not supported"),
}

GENERATE_UNSUPPORTED: Neutral = {
    **OLLAMA_UNSUPPORTED,
    "suffix": (("",), "A text cannot be fitted between two others"),
    "template": (("",), "The chat layout is the checkpoint's"),
    "context": (([],), "Send the conversation to /api/chat instead"),
}

OLLAMA_MESSAGE_UNSUPPORTED: Neutral = {"tool_calls": (([],), _NO_TOOLS), "tool_name": (("",), _NO_TOOLS)}

OLLAMA_IDLE = ("keep_alive", "truncate", "shift")
"""Fields of Ollama's API that do not concern the text."""

SAMPLING_OPTIONS = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "tfs_z",
    "typical_p",
    "repeat_last_n",
    "repeat_penalty",
    "presence_penalty",
    "frequency_penalty",
    "mirostat",
    "mirostat_tau",
    "mirostat_eta",
    "penalize_newline",
    "num_keep",
)
"""Controls of models that write token by token; they have no effect here."""

LOADING_OPTIONS = (
    "numa",
    "num_ctx",
    "num_batch",
    "num_gpu",
    "main_gpu",
    "low_vram",
    "f16_kv",
    "logits_all",
    "vocab_only",
    "use_mmap",
    "use_mlock",
    "embedding_only",
    "num_thread",
)
"""Options of loading a model, which the server has done before."""

ANY_SEED = -1
"""A seed that asks for a random one."""


OllamaStops: TypeAlias = Annotated[
    Annotated[StopString, Tag("<string>")]
    | Annotated[list[StopString], Field(max_length=MAX_STOPS), Tag("<list>")],
    STRING_OR_LIST,
]


class OllamaOptions(Diffusion):
    """How a text is written. Other options of Ollama have no effect."""

    num_predict: StrictInt | None = Field(
        default=None, ge=-2, description="most tokens; below 1 or too many = what has room"
    )
    seed: StrictInt | None = Field(default=None, ge=ANY_SEED, le=MAX_SEED, description="-1 = a random one")
    stop: OllamaStops | None = None
    temperature: Number | None = Field(default=None, ge=0, description="has no effect")
    top_k: Number | None = Field(default=None, description="has no effect")
    top_p: Number | None = Field(default=None, ge=0, le=1, description="has no effect")
    min_p: Number | None = Field(default=None, ge=0, le=1, description="has no effect")

    @property
    def stops(self) -> tuple[str, ...]:
        """The strings that end the text."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def limit(self) -> int | None:
        """Most tokens; None = what has room."""
        return self.num_predict if self.num_predict is not None and self.num_predict > 0 else None


class OllamaRequest(Request):
    """What chats and single prompts share."""

    model: str = Field(default="jev-latest", min_length=1)
    stream: StrictBool = True
    think: Literal[True, False, "low", "medium", "high", "max"] = Field(
        default=False, description="whether the model may think first; its thoughts are sent apart"
    )
    options: OllamaOptions = Field(default_factory=OllamaOptions)


Images = Annotated[list[str], Field(max_length=MAX_IMAGES)]


class OllamaMessage(Request):
    """One message; pictures are base64 and stand before its text."""

    role: Literal["system", "user", "assistant"]
    content: str = ""
    images: Images = Field(default_factory=list[str])


class OllamaChat(OllamaRequest):
    """A conversation to answer; without messages the model only has to be there."""

    messages: list[OllamaMessage] = Field(default_factory=list[OllamaMessage], max_length=4096)


class OllamaGenerate(OllamaRequest):
    """A prompt to answer; without one the model only has to be there."""

    prompt: str = ""
    system: str = ""
    raw: StrictBool = Field(default=False, description="go on from the prompt, without any chat layout")
    images: Images = Field(default_factory=list[str])

    @model_validator(mode="after")
    def _fits_the_layout(self) -> OllamaGenerate:
        if self.raw and (self.images or self.system):
            raise ValueError("images and system need the chat layout, which raw leaves out")
        return self


class OllamaShow(Request):
    """Which model to describe."""

    model: str | None = None
    name: str | None = None


class OllamaTimes(BaseModel):
    """What the last line of a text says about it; durations are nanoseconds."""

    model: str
    created_at: str
    done: bool
    done_reason: str | None = None
    total_duration: int | None = None
    load_duration: int | None = None
    prompt_eval_count: int | None = None
    prompt_eval_duration: int | None = None
    eval_count: int | None = None
    eval_duration: int | None = None
    x_warning: str | None = None


class OllamaReply(BaseModel):
    """A message, or a bit of one."""

    role: Literal["assistant"]
    content: str
    thinking: str | None = None


class OllamaChatLine(OllamaTimes):
    """The body of `POST /api/chat`; of a stream, each of its lines."""

    message: OllamaReply


class OllamaGenerateLine(OllamaTimes):
    """The body of `POST /api/generate`; of a stream, each of its lines."""

    response: str
    thinking: str | None = None


class OllamaError(BaseModel):
    """The body of every error of Ollama's routes."""

    error: str


class OllamaDetails(BaseModel):
    """What kind of model it is."""

    parent_model: str = ""
    format: str = ""
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class OllamaModel(BaseModel):
    """A model that is served."""

    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: OllamaDetails


class OllamaModels(BaseModel):
    """The body of `GET /api/tags` and `GET /api/ps`."""

    models: list[OllamaModel]


class OllamaDescription(BaseModel):
    """The body of `POST /api/show`."""

    modelfile: str
    parameters: str
    template: str
    details: OllamaDetails
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str


class OllamaVersion(BaseModel):
    """The body of `GET /api/version`."""

    version: str
