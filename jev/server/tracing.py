"""A span for every decision and every text: which model, how many tokens it took, how it ended.

Attributes are those of OpenInference's DECISION spans (openinference-semantic-conventions 0.1.42), as
`openinference-instrumentation-typesafe` gives them on the client's side, and those of its LLM spans. What the
caller wrote and what the model answered is in a decision's span only where `trace_content` says so, and in a
text's never.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, TypeVar

from jev._extras import extra_named
from jev.errors import APIError, InvalidRequestError
from jev.schemas import BadRequestError
from jev.server.errors import ClientGoneError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

    from jev.schemas import SystemOneRequest, SystemOneResponse

NAME = "systemone"
"""Name of the spans of decisions."""

KIND = {
    "openinference.span.kind": "DECISION",
    "decision.system": "typesafe",  # the shape of the API, whoever serves it
    "decision.provider": "self-hosted",
}
"""What spans of decisions carry."""

TEXT_NAME = "text"
"""Name of the spans of texts."""

TEXT_KIND = {"openinference.span.kind": "LLM", "llm.provider": "self-hosted"}
"""What spans of texts carry."""

SHUTDOWN_S = 2.0
"""Time for the last spans to leave when the server stops."""


class _Noted:
    """What is noted of one request.

    Args:
        span: where; None = nowhere.
        content: whether state, questions, answers and messages may be noted too.
    """

    def __init__(self, span: Span | None, *, content: bool = False) -> None:
        self._span = span
        self._content = content

    def failed(self, error: BaseException) -> None:
        """Note why there is no answer; without content only what kind of error it is."""
        if self._span is None:
            return
        from opentelemetry.trace import StatusCode  # noqa: PLC0415 - there is a span, so there is the extra

        if isinstance(error, BadRequestError):
            error = InvalidRequestError.of(error.issues)
        if isinstance(error, APIError):
            self._span.set_attribute("http.response.status_code", error.status)
        self._span.set_attribute("error.type", _kind_of(error))
        message = error.message if self._content and isinstance(error, APIError) else None
        self._span.set_status(StatusCode.ERROR, message)


N = TypeVar("N", bound=_Noted)


class Decision(_Noted):
    """One decision while it is made."""

    def asked(self, request: SystemOneRequest) -> None:
        """Note a request that can be decided."""
        if self._span is None or not self._span.is_recording():
            return
        self._span.set_attribute("decision.request.model_name", request.model)
        if self._content:
            # Attachments are left out: they would make a span of many megabytes.
            fields = {"state", "model", "instructions", "questions"}
            body = request.model_dump(mode="json", include=fields, exclude_none=True)
            self._note("input", body)

    def answered(self, response: SystemOneResponse) -> None:
        """Note what was decided."""
        if self._span is None or not self._span.is_recording():
            return
        from opentelemetry.trace import StatusCode  # noqa: PLC0415 - there is a span, so there is the extra

        self._span.set_attributes(
            {
                "decision.response.model_name": response.model,
                "decision.token_count.input": response.usage.input_tokens,
                "decision.token_count.output": response.usage.output_tokens,
            }
        )
        if self._content:
            self._note("output", response.model_dump(mode="json", include={"model", "answers", "usage"}))
        self._span.set_status(StatusCode.OK)

    def _note(self, side: str, value: Any) -> None:
        assert self._span is not None
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        self._span.set_attributes({f"{side}.value": text, f"{side}.mime_type": "application/json"})


class Writing(_Noted):
    """One text while it is written."""

    def asked(self, model: str) -> None:
        """Note a text that can be written, and the model as it was asked for."""
        if self._span is not None:
            self._span.set_attribute("llm.model_name", model)

    def answered(self, model: str, prompt: int, completion: int) -> None:
        """Note a text that is written, and its tokens."""
        if self._span is None or not self._span.is_recording():
            return
        from opentelemetry.trace import StatusCode  # noqa: PLC0415 - there is a span, so there is the extra

        self._span.set_attributes(
            {
                "llm.model_name": model,
                "llm.token_count.prompt": prompt,
                "llm.token_count.completion": completion,
                "llm.token_count.total": prompt + completion,
            }
        )
        self._span.set_status(StatusCode.OK)


class Tracing:
    """Sends the spans of one app; without an address it does nothing.

    Sampling, headers for the collector, the service's name and limits on attributes are read by
    OpenTelemetry from its own variables (`OTEL_TRACES_SAMPLER`, `OTEL_EXPORTER_OTLP_HEADERS`, ...).

    Args:
        url: where OTLP is taken over HTTP; None = no tracing.
        content: whether spans carry what was asked and answered.

    Raises:
        MissingExtraError: there is an address, but not the extra `otel`.
    """

    def __init__(self, url: str | None, *, content: bool = False) -> None:
        self._content = content
        self._provider: TracerProvider | None = None
        if url is None:
            return
        with extra_named("Tracing", "otel"):
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415 - an extra
                OTLPSpanExporter,
            )
            from opentelemetry.sdk.resources import OTELResourceDetector, Resource  # noqa: PLC0415
            from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
            from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
        # The operator's own OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win.
        resource = Resource({"service.name": "jev"}).merge(OTELResourceDetector().detect())
        # Not the process's global provider: other libraries would then send spans of their own.
        self._provider = TracerProvider(resource=resource)
        self._exporter = OTLPSpanExporter(endpoint=url)
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        self._tracer = self._provider.get_tracer("jev", version("jev-server"))

    @contextmanager
    def decision(self, id: str, headers: Mapping[str, str] | None = None) -> Iterator[Decision]:
        """Trace what happens inside; an exception that leaves it is noted.

        Args:
            id: of the request, as in logs and response headers.
            headers: the caller's, whose `traceparent` says which trace the span belongs to.
        """
        with (
            self._span(NAME, KIND, id, headers) as span,
            _noting(Decision(span, content=self._content)) as one,
        ):
            yield one

    @contextmanager
    def writing(self, id: str, headers: Mapping[str, str] | None = None) -> Iterator[Writing]:
        """Trace a text that is written inside; of the arguments see `decision`."""
        with self._span(TEXT_NAME, TEXT_KIND, id, headers) as span, _noting(Writing(span)) as one:
            yield one

    @contextmanager
    def _span(
        self, name: str, kind: Mapping[str, str], id: str, headers: Mapping[str, str] | None
    ) -> Iterator[Span | None]:
        if self._provider is None:
            yield None
            return
        from opentelemetry.trace import SpanKind  # noqa: PLC0415 - only with the extra
        from opentelemetry.trace.propagation.tracecontext import (  # noqa: PLC0415
            TraceContextTextMapPropagator,
        )

        span = self._tracer.start_span(
            name,
            context=TraceContextTextMapPropagator().extract(headers or {}),
            kind=SpanKind.SERVER,
            attributes={**kind, "jev.request_id": id},
        )
        try:
            yield span
        finally:
            span.end()

    def close(self) -> None:
        """Send what is left, for two seconds at most."""
        if self._provider is None:
            return
        # Left alone it would try to reach a collector that is away for up to ten.
        late = threading.Timer(SHUTDOWN_S, self._exporter.shutdown)
        late.start()
        try:
            self._provider.shutdown()
        finally:
            late.cancel()


@contextmanager
def _noting(one: N) -> Iterator[N]:
    try:
        yield one
    except BaseException as error:
        one.failed(error)
        raise


def _kind_of(error: BaseException) -> str:
    if isinstance(error, APIError):
        return error.error_type
    if isinstance(error, ClientGoneError):
        return "client_gone"
    return "cancelled" if isinstance(error, asyncio.CancelledError) else type(error).__name__
