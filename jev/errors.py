"""Every error that jev raises on purpose.

    JevError
    ├── ConnectionError            the server could not be reached (SDK)
    │   └── TimeoutError           it did not answer in time
    ├── ResponseError              it answered something that is not the API (SDK)
    ├── MissingExtraError          a feature needs an extra that is not installed
    └── APIError                   an HTTP error status, on either side of the wire
        ├── InvalidRequestError    422 (and 400, 405)
        ├── AuthenticationError    401
        ├── PermissionDeniedError  403
        ├── NotFoundError          404
        ├── TooLargeError          413
        ├── UnsupportedMediaTypeError 415
        ├── RateLimitError         429
        ├── ModelUnavailableError  503
        ├── OverloadedError        529
        └── ServerError            any other 5xx

The server raises these and maps them to statuses; the client rebuilds the same classes from the
wire, so that the same `except` works in process and over HTTP.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import ClassVar

from jev.schemas import Issue


class JevError(Exception):
    """Base of every error that jev raises on purpose."""


class MissingExtraError(JevError, ImportError):
    """A feature needs an extra that is not installed; the message names it."""


class ConnectionError(JevError, builtins.ConnectionError):
    """The server could not be reached, or the connection broke."""


class TimeoutError(ConnectionError, builtins.TimeoutError):
    """The server did not answer within the timeout."""


class ResponseError(JevError):
    """The server's answer is not a valid response of this API."""


class APIError(JevError):
    """An HTTP error.

    Attributes:
        status: the HTTP status.
        error_type: the machine-readable kind.
        message: one sentence.
        issues: for a bad body, what is wrong and where.
        request_id: the server's id for the request, where known.
        retry_after: seconds to wait before trying again, where known.
    """

    status: int = 500
    error_type: str = "server_error"
    default_message: ClassVar[str] = "The request failed"

    def __init__(
        self,
        message: str | None = None,
        *,
        issues: Sequence[Issue] = (),
        status: int | None = None,
        error_type: str | None = None,
        request_id: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        self.message = message or self.default_message
        self.issues = list(issues)
        self.status = status or self.status
        self.error_type = error_type or self.error_type
        self.request_id = request_id
        self.retry_after = retry_after
        super().__init__(self.message)


class InvalidRequestError(APIError):
    """The request cannot be served as it is; `issues` names each place."""

    status = 422
    error_type = "invalid_request_error"
    default_message = "The request is not valid"

    @classmethod
    def at(cls, *loc: str | int, msg: str, type: str = "value_error") -> InvalidRequestError:
        """Build the error for one place in the body; `loc` is the path below "body"."""
        return cls.of([Issue(loc=["body", *loc], msg=msg, type=type)])

    @classmethod
    def of(cls, issues: Sequence[Issue]) -> InvalidRequestError:
        """Build the error for several places in the body."""
        text = "; ".join(f"{'.'.join(map(str, issue.loc))}: {issue.msg}" for issue in issues)
        return cls(text, issues=issues)


class AuthenticationError(APIError):
    """The key is wrong."""

    status = 401
    error_type = "authentication_error"
    default_message = "The API key is not valid"


class PermissionDeniedError(APIError):
    """There is no key, or it is not a bearer token."""

    status = 403
    error_type = "authentication_error"
    default_message = "Send an API key as 'Authorization: Bearer KEY'"


class NotFoundError(APIError):
    """No such route or model."""

    status = 404
    error_type = "not_found_error"
    default_message = "Not found"


class TooLargeError(APIError):
    """The body is over a size limit."""

    status = 413
    error_type = "too_large"
    default_message = "The body is too large"


class UnsupportedMediaTypeError(APIError):
    """The content type or encoding is not one that is served."""

    status = 415
    error_type = "unsupported_media_type"
    default_message = "The content type is not supported"


class RateLimitError(APIError):
    """The key sends requests faster than its limit."""

    status = 429
    error_type = "rate_limit_error"
    default_message = "Too many requests"


class ModelUnavailableError(APIError):
    """No model can answer: it is loading, gone, or lacks a part that the request needs."""

    status = 503
    error_type = "model_unavailable"
    default_message = "The model is not available"


class OverloadedError(APIError):
    """The queue is full; `retry_after` says when to try again."""

    status = 529
    error_type = "overloaded_error"
    default_message = "The server is overloaded"


class ServerError(APIError):
    """Something failed inside the server."""
