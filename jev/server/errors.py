"""From exceptions to responses: one place decides the status, body and headers of every error."""

from __future__ import annotations

import math
import re

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from jev.errors import APIError, InvalidRequestError, NotFoundError, ServerError
from jev.schemas import BadRequestError, ErrorBody, ErrorDetail, Issue, IssueList
from jev.server.writing.errors import ollama_error, openai_error, status_of

OPENAI_PATHS = re.compile("/v1/(chat/completions|completions|models/[^/]+)")
"""Routes whose errors have OpenAI's shape."""

OLLAMA_PREFIX = "/api/"
"""Routes below it have errors in Ollama's shape."""

CLIENT_GONE = 499
"""The status logged for a client that went away; nothing is left to receive it."""


class ClientGoneError(Exception):
    """The client closed the connection before it got an answer."""


class RequestTimeoutError(APIError):
    """The body did not arrive in time."""

    status = 408
    error_type = "timeout"
    default_message = "The request body did not arrive in time"


def error_response(error: APIError, path: str = "") -> Response:
    """Return the response for an error: its status, a JSON body and the headers that belong to it.

    Args:
        error: the error.
        path: of the request; routes in the shape of another API have errors in that shape too.
    """
    status = error.status
    if OPENAI_PATHS.fullmatch(path):
        status, body = status_of(error), openai_error(error)
    elif path.startswith(OLLAMA_PREFIX):
        status, body = status_of(error), ollama_error(error)
    else:
        body = body_of_error(error)
    return JSONResponse(body.model_dump(), status_code=status, headers=_headers(error))


def body_of_error(error: APIError) -> IssueList | ErrorBody:
    """Return the JSON body for an error."""
    if error.status == 422:
        issues = error.issues or [Issue(loc=["body"], msg=error.message, type=error.error_type)]
        return IssueList(detail=list(issues))
    return ErrorBody(detail=ErrorDetail(error_type=error.error_type, message=error.message))


def _headers(error: APIError) -> dict[str, str]:
    headers: dict[str, str] = {}
    if error.retry_after is not None:
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after)))
    elif error.status in (429, 529):
        headers["Retry-After"] = "1"
    if error.status in (401, 403):
        headers["WWW-Authenticate"] = "Bearer"
    if error.status == 408:
        headers["Connection"] = "close"  # the rest of the body must not be taken for the next request
    return headers


def install_error_handlers(app: FastAPI) -> None:
    """Register the handlers for everything that a route may raise on purpose."""

    async def api_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, APIError)
        return error_response(error, request.url.path)

    async def bad_request(request: Request, error: Exception) -> Response:
        assert isinstance(error, BadRequestError)
        return error_response(InvalidRequestError.of(error.issues), request.url.path)

    async def routing(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        response = error_response(_routing_error(error), request.url.path)
        response.headers.update(error.headers or {})
        return response

    async def client_gone(request: Request, error: Exception) -> Response:
        return Response(status_code=CLIENT_GONE)

    app.add_exception_handler(APIError, api_error)
    app.add_exception_handler(BadRequestError, bad_request)
    app.add_exception_handler(HTTPException, routing)
    app.add_exception_handler(ClientGoneError, client_gone)


def _routing_error(error: HTTPException) -> APIError:
    if error.status_code == 404:
        return NotFoundError("No such route")
    if error.status_code == 405:
        return InvalidRequestError("This route does not serve that method", status=405)
    return ServerError(str(error.detail), status=error.status_code)
