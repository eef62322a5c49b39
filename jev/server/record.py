"""What is known about one HTTP request, for its log line and its metrics."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

from starlette.types import Scope

_SCOPE_KEY = "jev.record"


def new_request_id() -> str:
    """Return a fresh id: `req_` and 32 hexadecimal digits."""
    return f"req_{uuid.uuid4().hex}"


@dataclass(slots=True)
class RequestRecord:
    """Filled in while a request is served. Holds numbers only, never anything the caller wrote.

    Attributes:
        id: of the request.
        questions: how many it asks.
        tokens: that it asks of the model at least.
        queue_seconds: how long it waited.
        text_tokens: tokens of the text that it got.
        gone: whether the client went away from a response that had begun.
    """

    id: str = field(default_factory=new_request_id)
    questions: int | None = None
    tokens: int | None = None
    queue_seconds: float | None = None
    text_tokens: int | None = None
    gone: bool = False

    def attach(self, scope: Scope) -> None:
        """Make the record findable from the request's ASGI scope."""
        scope[_SCOPE_KEY] = self

    @staticmethod
    def of(scope: Scope) -> RequestRecord:
        """Return the record that the middleware attached."""
        return scope[_SCOPE_KEY]
