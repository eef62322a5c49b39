"""The OpenAPI description. The body is read by hand, so its schema is added by hand."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

from jev.schemas import ErrorBody, IssueList, SystemOneRequest, SystemOneResponse
from jev.schemas.chat import ChatChunk, ChatCompletion, ChatRequest
from jev.schemas.completion import Completion, CompletionRequest, OpenAIErrorBody
from jev.schemas.ollama import (
    OllamaChat,
    OllamaChatLine,
    OllamaDescription,
    OllamaError,
    OllamaGenerate,
    OllamaGenerateLine,
    OllamaShow,
)

_REF = "#/components/schemas/{model}"

_MEANINGS = {
    401: "The key is wrong",
    403: "There is no key",
    404: "No such model",
    408: "The body did not arrive in time",
    413: "The body is too large",
    415: "The content type or encoding is not served",
    429: "The caller sends too many requests",
    500: "The server failed",
    503: "No model can answer",
    529: "The queue is full",
}

ERRORS: dict[int | str, dict[str, Any]] = {
    422: {"model": IssueList, "description": "The request is not valid"},
    **{status: {"model": ErrorBody, "description": text} for status, text in _MEANINGS.items()},
}

_MULTIPART = {
    "type": "object",
    "required": ["request"],
    "properties": {"request": {"$ref": _REF.format(model="SystemOneRequest")}},
    "additionalProperties": {"type": "string", "format": "binary"},
}

_TIMEOUT = {
    "name": "timeout",
    "in": "header",
    "required": False,
    "description": "seconds after which the caller no longer wants the answer",
    "schema": {"type": "number", "exclusiveMinimum": 0},
}

SYSTEMONE: dict[str, Any] = {
    "responses": {200: {"model": SystemOneResponse, "description": "An answer to every question"}},
    "openapi_extra": {
        "requestBody": {
            "required": True,
            "description": "Optionally packed with `Content-Encoding: gzip` or `zstd`.",
            "content": {
                "application/json": {"schema": {"$ref": _REF.format(model="SystemOneRequest")}},
                "multipart/form-data": {"schema": _MULTIPART},
            },
        },
        "parameters": [_TIMEOUT],
    },
}


def _written(
    request: type[BaseModel], answer: type[BaseModel], error: type[BaseModel], stream: dict[str, Any] | None
) -> dict[str, Any]:
    """What is said of a route whose body is read by hand, in the shape of another API."""
    meanings = {400: "The request is not valid", **_MEANINGS}
    errors = {
        status: {"model": error, "description": text} for status, text in meanings.items() if status != 403
    }
    content = {"content": stream} if stream is not None else {}
    return {
        "responses": {200: {"model": answer, "description": "As asked", **content}, **errors},
        "openapi_extra": {
            "requestBody": {
                "required": True,
                "description": "Optionally packed with `Content-Encoding: gzip` or `zstd`.",
                "content": {"application/json": {"schema": {"$ref": _REF.format(model=request.__name__)}}},
            },
            "parameters": [_TIMEOUT],
        },
    }


def _errors(model: type[BaseModel], *statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": model, "description": _MEANINGS[status]} for status in statuses}


def _events(chunk: type[BaseModel], media_type: str) -> dict[str, Any]:
    return {media_type: {"schema": {"$ref": _REF.format(model=chunk.__name__)}}}


CHAT = _written(ChatRequest, ChatCompletion, OpenAIErrorBody, _events(ChatChunk, "text/event-stream"))
COMPLETION = _written(
    CompletionRequest, Completion, OpenAIErrorBody, _events(Completion, "text/event-stream")
)
OPENAI_ERRORS = _errors(OpenAIErrorBody, 401, 404, 429, 500, 503)
OLLAMA_ERRORS = _errors(OllamaError, 401, 429, 500, 503)
OLLAMA_CHAT = _written(
    OllamaChat, OllamaChatLine, OllamaError, _events(OllamaChatLine, "application/x-ndjson")
)
OLLAMA_GENERATE = _written(
    OllamaGenerate, OllamaGenerateLine, OllamaError, _events(OllamaGenerateLine, "application/x-ndjson")
)
OLLAMA_SHOW = _written(OllamaShow, OllamaDescription, OllamaError, None)

BODIES = (SystemOneRequest, ChatRequest, ChatChunk, CompletionRequest, OllamaChat, OllamaGenerate, OllamaShow)
"""Models of what no route declares by itself."""


def describe(app: FastAPI, *, bearer: bool) -> None:
    """Complete the app's OpenAPI document: the request's schema, and the key where one is needed."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = generate()
            components = document.setdefault("components", {})
            schemas = components.setdefault("schemas", {})
            for model in BODIES:
                body = model.model_json_schema(ref_template=_REF)
                schemas.update(body.pop("$defs", {}))
                schemas[model.__name__] = body
            if bearer:
                components["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
                for path, operations in document["paths"].items():
                    if path.startswith(("/v1/", "/api/")):
                        for operation in operations.values():
                            operation["security"] = [{"bearer": []}]
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi
