"""`POST /v1/chat/completions`, `POST /v1/completions` and `GET /v1/models/NAME`, in OpenAI's shape."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import Any, ClassVar, TypeAlias

from fastapi import APIRouter, Depends, Request
from starlette.responses import JSONResponse, Response

from jev.channels import Piece
from jev.reads import shutting_down
from jev.schemas import ListedModel, Warning
from jev.schemas.chat import CHAT_UNSUPPORTED, MESSAGE_UNSUPPORTED, ChatRequest, Denoising, TemplateOptions
from jev.schemas.completion import (
    COMPLETION_UNSUPPORTED,
    HOUSEKEEPING,
    CompletionRequest,
    StreamOptions,
    TextRequest,
)
from jev.schemas.parse_text import parse_text_request
from jev.server.openapi import CHAT, COMPLETION, OPENAI_ERRORS
from jev.server.routes import guard, service_of
from jev.server.waiting import unless_gone
from jev.server.writing.conversation import Conversation, of_chat, of_text
from jev.server.writing.errors import openai_error
from jev.server.writing.serve import Asked, Started, failure_of, model_named, start
from jev.server.writing.stream import StreamedResponse
from jev.server.writing.written import Done, Part, whole, with_pauses

PAUSE_SECONDS = 5.0
"""A stream says that it is alive when nothing else was said for so long."""

_KNOWN = {"stream_options": StreamOptions.model_fields}

openai_api = APIRouter(prefix="/v1", dependencies=[Depends(guard)], tags=["texts"])


@openai_api.post("/chat/completions", summary="Answer a conversation", **CHAT)
async def chat(request: Request) -> Response:
    """Write an answer, at once or as a stream of server-sent events."""
    return await _serve(request, _Chat)


@openai_api.post("/completions", summary="Go on from a prompt", **COMPLETION)
async def completion(request: Request) -> Response:
    """Write what follows, at once or as a stream of server-sent events."""
    return await _serve(request, _Completion)


@openai_api.get("/models/{name}", summary="Describe a model", responses=OPENAI_ERRORS)
async def model(name: str, request: Request) -> ListedModel:
    """Describe one of the models that `GET /v1/models` lists."""
    return ListedModel.of(model_named(request, name))


class _Chat:
    """Bodies of chats."""

    prefix, kind, chunk_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"

    @staticmethod
    def asked(data: Any) -> Asked:
        """A decoded body -> what it wants."""
        request, warnings = parse_text_request(
            data,
            ChatRequest,
            CHAT_UNSUPPORTED,
            idle=HOUSEKEEPING,
            within={"messages": MESSAGE_UNSUPPORTED},
            inner={**_KNOWN, "chat_template_kwargs": TemplateOptions.model_fields},
        )
        return _asked(request, of_chat(request), request.limit, warnings)

    @staticmethod
    def whole(said: dict[str, Any], finish: str) -> dict[str, Any]:
        """The choice of a whole answer."""
        message = {"role": "assistant", "content": said.pop("text"), "refusal": None, **said}
        return {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}

    @staticmethod
    def bit(said: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        """The choice of a bit of one."""
        if "text" in said:
            said["content"] = said.pop("text")
        return {"index": 0, "delta": said, "logprobs": None, "finish_reason": finish}

    first: ClassVar[dict[str, Any]] = {"role": "assistant", "content": ""}


class _Completion:
    """Bodies of completions."""

    prefix, kind, chunk_kind = "cmpl", "text_completion", "text_completion"

    @staticmethod
    def asked(data: Any) -> Asked:
        """A decoded body -> what it wants."""
        request, warnings = parse_text_request(
            data, CompletionRequest, COMPLETION_UNSUPPORTED, idle=HOUSEKEEPING, inner=_KNOWN
        )
        return _asked(request, of_text(request.text), request.max_tokens, warnings)

    @staticmethod
    def whole(said: dict[str, Any], finish: str) -> dict[str, Any]:
        """The choice of a whole text."""
        return {"index": 0, **said, "logprobs": None, "finish_reason": finish}

    @staticmethod
    def bit(said: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        """The choice of a bit of one."""
        return {"index": 0, "text": "", **said, "logprobs": None, "finish_reason": finish}

    first: ClassVar[dict[str, Any]] = {"text": ""}


_Shape: TypeAlias = type[_Chat] | type[_Completion]


async def _serve(request: Request, shape: _Shape) -> Response:
    alias = service_of(request).settings.reasoning_alias
    async with AsyncExitStack() as held:
        started = await start(request, shape.asked, held)
        writer = _Bodies(started, shape, alias)
        if started.asked.stream:
            return StreamedResponse(
                writer.events(),
                _data(openai_error(shutting_down()).model_dump()),
                held.pop_all(),
                "text/event-stream; charset=utf-8",
                started.headers,
            )
        async with aclosing(started.parts) as parts:
            piece, done = await unless_gone(request.receive, whole(parts))
        started.ended(done.tokens)
        return JSONResponse(writer.body(piece, done), headers=started.headers)


class _Bodies:
    """Writes what one request gets.

    Args:
        started: its text.
        shape: of the route.
        alias: whether reasoning is sent as `reasoning` too.
    """

    def __init__(self, started: Started, shape: _Shape, alias: bool) -> None:
        self._started = started
        self._shape = shape
        self._alias = alias
        self._about = {
            "id": f"{shape.prefix}-{started.id}",
            "created": int(time.time()),
            "model": started.model,
            "system_fingerprint": started.fingerprint,
        }

    def body(self, piece: Piece, done: Done) -> dict[str, Any]:
        """The body of a response that is no stream."""
        said = {"text": piece.text, **self._reasoning(piece)}
        body = {
            **self._about,
            "object": self._shape.kind,
            "choices": [self._shape.whole(said, done.finish)],
            "usage": self._usage(done),
        }
        return body if self._started.warning is None else {**body, "x_warning": self._started.warning}

    async def events(self) -> AsyncGenerator[bytes]:
        """The events of a stream; an error ends it as an event."""
        shape, warning = self._shape, self._started.warning
        yield self._event(
            [shape.bit(dict(shape.first))], **({} if warning is None else {"x_warning": warning})
        )
        try:
            async with (
                aclosing(self._started.parts) as parts,
                aclosing(with_pauses(parts, PAUSE_SECONDS)) as paced,
            ):
                async for part in paced:
                    for event in self._of(part):
                        yield event
        except Exception as error:
            yield _data(openai_error(failure_of(self._started, error)).model_dump())
            return
        yield b"data: [DONE]\n\n"

    def _of(self, part: Part | None) -> Iterator[bytes]:
        match part:
            case None:
                yield b": the canvas is being refined\n\n"
            case Piece():
                said = {"text": part.text} if part.text else {}
                yield self._event([self._shape.bit({**said, **self._reasoning(part)})])
            case Denoising():
                yield self._event([], x_denoising=part.model_dump())
            case Done():
                self._started.ended(part.tokens)
                yield self._event([self._shape.bit({}, part.finish)])
                if self._started.asked.usage:
                    yield self._event([], usage=self._usage(part))

    def _event(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        usage = {"usage": None} if self._started.asked.usage else {}
        kind = {"object": self._shape.chunk_kind}
        return _data({**self._about, **kind, "choices": choices, **usage, **more})

    def _reasoning(self, piece: Piece) -> dict[str, str]:
        if not piece.reasoning:
            return {}
        names = ("reasoning_content", "reasoning") if self._alias else ("reasoning_content",)
        return dict.fromkeys(names, piece.reasoning)

    def _usage(self, done: Done) -> dict[str, Any]:
        prompt = self._started.plan.prompt_tokens
        return {
            "prompt_tokens": prompt,
            "completion_tokens": done.tokens,
            "total_tokens": prompt + done.tokens,
            "completion_tokens_details": {"reasoning_tokens": done.reasoning_tokens},
        }


def _asked(
    request: TextRequest, conversation: Conversation, limit: int | None, warnings: Sequence[Warning]
) -> Asked:
    options = request.stream_options or StreamOptions()
    return Asked(
        conversation,
        request.model,
        limit,
        request.seed,
        request.stops,
        reasoning=request.include_reasoning,
        drafts=options.denoising,
        stream=request.stream,
        usage=options.include_usage,
        diffusion=request.diffusion(),
        ignored=request.ignored,
        warnings=warnings,
    )


def _data(value: dict[str, Any]) -> bytes:
    # Clients split lines at more than line feeds (U+2028, U+0085), so only ASCII is sent.
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"
