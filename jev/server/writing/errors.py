"""Errors in the shapes of OpenAI's and of Ollama's API."""

from __future__ import annotations

from collections.abc import Sequence

from jev.errors import APIError
from jev.schemas.completion import OpenAIError, OpenAIErrorBody
from jev.schemas.ollama import OllamaError

_TYPES = {
    401: "authentication_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
    529: "overloaded_error",
}

_CODES = {
    401: "invalid_api_key",
    405: "method_not_allowed",
    408: "timeout",
    413: "too_large",
    415: "unsupported_media_type",
    429: "rate_limit_exceeded",
    500: "server_error",
    503: "model_unavailable",
    529: "overloaded",
}

_ISSUE_CODES = {
    "missing": "missing_required_parameter",
    "unsupported_parameter": "unsupported_parameter",
    "tokens_exceeded": "context_length_exceeded",
    "json_invalid": "invalid_json",
}


def status_of(error: APIError) -> int:
    """The status of an error: what is wrong in a body is 400, and a missing key 401, as in those APIs."""
    return {422: 400, 403: 401}.get(error.status, error.status)


def openai_error(error: APIError) -> OpenAIErrorBody:
    """An error in OpenAI's shape; `param` is the first field that is wrong."""
    status = status_of(error)
    param = path_of(error.issues[0].loc) if error.issues else None
    code = _CODES.get(status)
    if error.issues:
        code = _ISSUE_CODES.get(error.issues[0].type, "invalid_value")
    elif status == 404:
        code = "model_not_found" if "model" in error.message else "not_found"
    kind = _TYPES.get(status, "invalid_request_error")
    return OpenAIErrorBody(error=OpenAIError(message=sentence_of(error), type=kind, param=param, code=code))


def ollama_error(error: APIError) -> OllamaError:
    """An error in Ollama's shape."""
    return OllamaError(error=sentence_of(error))


def sentence_of(error: APIError) -> str:
    """What is wrong, each field named."""
    named = [(path_of(issue.loc), issue.msg) for issue in error.issues]
    return "; ".join(f"{path}: {text}" if path else text for path, text in named) or error.message


def path_of(loc: Sequence[str | int]) -> str | None:
    """A place in a body as it would be written: `messages[0].content`."""
    text = "".join(f"[{one}]" if isinstance(one, int) else f".{one}" for one in loc[1:])
    return text.removeprefix(".") or None
