"""Around every request: an id, the last line of defence against exceptions, a log line and metrics."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jev.crash import crash_report
from jev.errors import ModelUnavailableError, PermissionDeniedError, ServerError
from jev.server.errors import CLIENT_GONE, error_response
from jev.server.logs import log_request
from jev.server.metrics import Metrics
from jev.server.origin import stranger
from jev.server.record import RequestRecord

logger = logging.getLogger(__name__)

METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))


class RequestMiddleware:
    """Outermost layer of the app.

    Args:
        app: what it wraps.
        metrics: where finished requests are counted.
        paths: the routes there are; any other path is counted and logged as "unmatched".
        allowed: names of the server for `stranger`; None = whoever has a key is served.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        metrics: Metrics,
        paths: Collection[str],
        allowed: Collection[str] | None = None,
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._paths = paths
        self._allowed = allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = RequestRecord()
        record.attach(scope)
        app = self._app
        if self._allowed is not None and (reason := stranger(scope, self._allowed)) is not None:
            app = error_response(PermissionDeniedError(reason), scope["path"])
        began = time.perf_counter()
        status: int | None = None

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                name = record.id.encode()
                ids = [(b"x-typesafe-request-id", name), (b"x-request-id", name)]
                message = {**message, "headers": [*message.get("headers", []), *ids]}
            await send(message)

        try:
            await app(scope, receive, send_with_id)
        except asyncio.CancelledError:
            # The server is stopping and has waited long enough.
            if status is not None:
                raise
            stopping = ModelUnavailableError("The server is shutting down")
            await error_response(stopping, scope["path"])(scope, receive, send_with_id)
        except Exception as error:
            logger.error("request %s failed: %s", record.id, crash_report(error))
            if status is not None:
                raise  # too late for a response: the connection has to break
            await error_response(ServerError(), scope["path"])(scope, receive, send_with_id)
        finally:
            self._finish(
                scope,
                record,
                CLIENT_GONE if record.gone else status or CLIENT_GONE,
                time.perf_counter() - began,
            )

    def _finish(self, scope: Scope, record: RequestRecord, status: int, seconds: float) -> None:
        # The route's template where routing found one, so that ids make no new series.
        template = getattr(scope.get("route"), "path", scope["path"])
        path = template if template in self._paths else "unmatched"
        self._metrics.observe(path, status, seconds)
        fields: dict[str, Any] = {
            "id": record.id,
            "method": scope["method"] if scope["method"] in METHODS else "other",
            "path": path,
            "status": status,
            "ms": round(seconds * 1000, 1),
        }
        if record.questions is not None:
            fields["questions"] = record.questions
        if record.tokens is not None:
            fields["tokens"] = record.tokens
        if record.text_tokens is not None:
            fields["text_tokens"] = record.text_tokens
        if record.queue_seconds is not None:
            fields["queue_ms"] = round(record.queue_seconds * 1000, 1)
        log_request(fields)
