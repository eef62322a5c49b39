"""`POST /api/chat` and `POST /api/generate`, in Ollama's shape."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import Any, TypeAlias

from fastapi import APIRouter, Depends, Request
from starlette.responses import JSONResponse, Response

from jev.channels import Piece
from jev.reads import shutting_down
from jev.schemas import Warning
from jev.schemas.ollama import (
    ANY_SEED,
    GENERATE_UNSUPPORTED,
    LOADING_OPTIONS,
    OLLAMA_IDLE,
    OLLAMA_MESSAGE_UNSUPPORTED,
    OLLAMA_UNSUPPORTED,
    SAMPLING_OPTIONS,
    OllamaChat,
    OllamaGenerate,
    OllamaOptions,
    OllamaRequest,
)
from jev.schemas.parse_text import parse_text_request
from jev.server.openapi import OLLAMA_CHAT, OLLAMA_GENERATE
from jev.server.routes import guard
from jev.server.waiting import unless_gone
from jev.server.writing.conversation import Conversation, of_ollama_chat, of_ollama_prompt
from jev.server.writing.errors import ollama_error
from jev.server.writing.models import now
from jev.server.writing.serve import Asked, Started, failure_of, model_named, start
from jev.server.writing.stream import StreamedResponse
from jev.server.writing.written import Done, whole

_IDLE_OPTIONS = (*SAMPLING_OPTIONS, *LOADING_OPTIONS)
_KNOWN = {"options": {*OllamaOptions.model_fields, *_IDLE_OPTIONS}}

Said: TypeAlias = Callable[[Piece], dict[str, Any]]
"""A bit of a text -> the fields that carry it."""

ollama_api = APIRouter(prefix="/api", dependencies=[Depends(guard)], tags=["texts"])


@ollama_api.post("/chat", summary="Answer a conversation (Ollama)", **OLLAMA_CHAT)
async def chat(request: Request) -> Response:
    """Write an answer, as a stream of lines unless `stream` is false."""
    return await _serve(request, _chat_asked, _message)


@ollama_api.post("/generate", summary="Answer a prompt (Ollama)", **OLLAMA_GENERATE)
async def generate(request: Request) -> Response:
    """Write an answer, as a stream of lines unless `stream` is false."""
    return await _serve(request, _prompt_asked, _response)


async def _serve(request: Request, parse: Callable[[Any], Asked], said: Said) -> Response:
    arrived = time.monotonic_ns()
    async with AsyncExitStack() as held:
        try:
            # curl sends another content type unless it is told, and Ollama does not mind.
            started = await start(request, parse, held, any_kind=True)
        except _NothingToWrite as nothing:
            model_named(request, nothing.model)
            about = {"model": nothing.model, "created_at": now(), "done": True, "done_reason": "load"}
            return JSONResponse({**about, **said(Piece())})
        lines = _Lines(started, said, arrived)
        if started.asked.stream:
            return StreamedResponse(
                lines.stream(),
                _line(ollama_error(shutting_down()).model_dump()),
                held.pop_all(),
                "application/x-ndjson",
                started.headers,
            )
        async with aclosing(started.parts) as parts:
            piece, done = await unless_gone(request.receive, whole(parts))
        return JSONResponse(lines.last(piece, done), headers=started.headers)


class _Lines:
    """Writes what one request gets.

    Args:
        started: its text.
        said: puts bits of it into the route's fields.
        arrived: when the request came, on the clock of `time.monotonic_ns`.
    """

    def __init__(self, started: Started, said: Said, arrived: int) -> None:
        self._started = started
        self._said = said
        self._arrived = arrived
        self._begun = time.monotonic_ns()

    async def stream(self) -> AsyncGenerator[bytes]:
        """The lines; an error ends them as a line."""
        try:
            async with aclosing(self._started.parts) as parts:
                async for part in parts:
                    if isinstance(part, Piece):
                        yield _line(self._about() | self._said(part) | {"done": False})
                    elif isinstance(part, Done):
                        yield _line(self.last(Piece(), part))
        except Exception as error:
            yield _line(ollama_error(failure_of(self._started, error)).model_dump())

    def last(self, piece: Piece, done: Done) -> dict[str, Any]:
        """The last line, or the only one."""
        self._started.ended(done.tokens)
        now = time.monotonic_ns()
        return {
            **self._about(),
            **self._said(piece),
            "done": True,
            "done_reason": done.finish,
            "total_duration": now - self._arrived,
            "load_duration": 0,
            "prompt_eval_count": self._started.plan.prompt_tokens,
            "prompt_eval_duration": self._begun - self._arrived,
            "eval_count": done.tokens,
            "eval_duration": now - self._begun,
        }

    def _about(self) -> dict[str, Any]:
        about: dict[str, Any] = {"model": self._started.asked.model, "created_at": now()}
        warning = self._started.warning
        return about if warning is None else {**about, "x_warning": warning}


def _message(piece: Piece) -> dict[str, Any]:
    thinking = {"thinking": piece.reasoning} if piece.reasoning else {}
    return {"message": {"role": "assistant", "content": piece.text, **thinking}}


def _response(piece: Piece) -> dict[str, Any]:
    thinking = {"thinking": piece.reasoning} if piece.reasoning else {}
    return {"response": piece.text, **thinking}


class _NothingToWrite(Exception):
    """There is no prompt: the caller only wants the model to be loaded, which it is."""

    def __init__(self, model: str) -> None:
        super().__init__(model)
        self.model = model


def _chat_asked(data: Any) -> Asked:
    request, warnings = parse_text_request(
        data,
        OllamaChat,
        OLLAMA_UNSUPPORTED,
        idle=OLLAMA_IDLE,
        within={"messages": OLLAMA_MESSAGE_UNSUPPORTED},
        inner=_KNOWN,
    )
    if not request.messages:
        raise _NothingToWrite(request.model)
    return _asked(request, of_ollama_chat(request), data, warnings)


def _prompt_asked(data: Any) -> Asked:
    request, warnings = parse_text_request(
        data, OllamaGenerate, GENERATE_UNSUPPORTED, idle=OLLAMA_IDLE, inner=_KNOWN
    )
    if not (request.prompt or request.images):
        raise _NothingToWrite(request.model)
    return _asked(request, of_ollama_prompt(request), data, warnings)


def _asked(
    request: OllamaRequest, conversation: Conversation, data: dict[str, Any], warnings: Sequence[Warning]
) -> Asked:
    options, given = request.options, data.get("options") or {}
    return Asked(
        conversation,
        request.model,
        options.limit,
        None if options.seed == ANY_SEED else options.seed,
        options.stops,
        reasoning=bool(request.think),
        stream=request.stream,
        diffusion=options.diffusion(),
        within="options",
        ignored=[name for name in _IDLE_OPTIONS if given.get(name) is not None],
        warnings=warnings,
    )


def _line(value: dict[str, Any]) -> bytes:
    # Clients split lines at more than line feeds (U+2028, U+0085), so only ASCII is sent.
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"
