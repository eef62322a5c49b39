"""From an HTTP error response back to the error that the server raised."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import httpx
from pydantic import ValidationError

from jev import errors
from jev.retry import retry_after_of
from jev.schemas import BadRequestError, Issue, parse_json

REQUEST_ID_HEADERS = ("x-typesafe-request-id", "x-request-id")

_CLASSES: dict[int, type[errors.APIError]] = {
    400: errors.InvalidRequestError,
    405: errors.InvalidRequestError,
    **{
        cls.status: cls
        for cls in (
            errors.InvalidRequestError,
            errors.AuthenticationError,
            errors.PermissionDeniedError,
            errors.NotFoundError,
            errors.TooLargeError,
            errors.UnsupportedMediaTypeError,
            errors.RateLimitError,
            errors.ModelUnavailableError,
            errors.OverloadedError,
        )
    },
}


def request_id_of(response: httpx.Response) -> str | None:
    """Return the server's id for a request, where it sends one."""
    return next((response.headers[name] for name in REQUEST_ID_HEADERS if name in response.headers), None)


def api_error(response: httpx.Response, now: float) -> errors.APIError:
    """Rebuild the error that a response of status 400 or more stands for.

    Understands this API's two shapes and those of other servers: `error` or `detail` as a string
    or an object, `message`, or no JSON at all. `now` is in seconds since 1970.
    """
    status = response.status_code
    message, error_type, issues = _read_error(response)
    cls = _CLASSES.get(status) or (errors.ServerError if status >= 500 else errors.APIError)
    if error_type is None and cls is errors.APIError:
        error_type = "http_error"
    return cls(
        message or f"{status} {response.reason_phrase}".strip(),
        issues=issues,
        status=status,
        error_type=error_type,
        request_id=request_id_of(response),
        retry_after=retry_after_of(response.headers, now),
    )


def _read_error(response: httpx.Response) -> tuple[str | None, str | None, list[Issue]]:
    """Return the message, the error type and the issues of an error body."""
    try:
        data = parse_json(response.content)
    except BadRequestError:
        # A gateway's HTML says less than its status does.
        text = " ".join(response.text.split())[:200]
        return (None if text.startswith("<") else text or None), None, []
    body = _mapping(data)
    error, detail = body.get("error"), body.get("detail")
    texts = [
        error,
        _mapping(error).get("message"),
        body.get("message"),
        detail,
        _mapping(detail).get("message"),
    ]
    message = next((text for text in texts if isinstance(text, str) and text), None)
    kinds = [_mapping(detail).get("error_type"), body.get("error_type"), _mapping(error).get("type")]
    error_type = next((kind for kind in kinds if isinstance(kind, str) and kind), None)
    rows = cast("list[object]", detail) if isinstance(detail, list) else []
    issues = [issue for row in rows if (issue := _issue(row))]
    if issues and message is None:
        message = errors.InvalidRequestError.of(issues).message
    return message, error_type, issues


def _mapping(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}


def _issue(row: object) -> Issue | None:
    try:
        return Issue.model_validate(row)
    except ValidationError:
        return None
