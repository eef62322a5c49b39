"""Every decision leaves one OpenInference span at the collector, without content unless a setting says so."""

from __future__ import annotations

import gzip
import json
import logging
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from batching import created, ended, line
from fastapi import FastAPI
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from starlette.testclient import TestClient

from jev.errors import MissingExtraError, OverloadedError
from jev.server import logs
from jev.server.app import create_app
from jev.settings import Settings, SettingsError

SECRET = "xyzzy-private-words"


@dataclass
class Collector:
    """What takes spans over HTTP, and what it was sent."""

    url: str = ""
    requests: list[ExportTraceServiceRequest] = field(default_factory=list)

    @property
    def spans(self) -> list[Span]:
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


@pytest.fixture
def collector() -> Iterator[Collector]:
    found = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                data = gzip.decompress(data)
            found.requests.append(ExportTraceServiceRequest.FromString(data))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    service = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=service.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    found.url = f"http://127.0.0.1:{service.server_port}/v1/traces"
    yield found
    service.shutdown()
    service.server_close()


def attributes(span: Span) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value") or "") for one in span.attributes}


Make = Callable[..., FastAPI]


def test_a_decision_is_one_span(make_app: Make, collector: Collector, body: dict[str, Any]) -> None:
    body["state"] = SECRET
    body["questions"][SECRET] = {"type": "noul", "instructions": SECRET}
    began = time.time_ns()
    with TestClient(make_app(trace_url=collector.url)) as client:
        trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
        response = client.post("/v1/systemone", json=body, headers={"traceparent": f"00-{trace}-{parent}-01"})
        client.get("/v1/models")
    (span,) = collector.spans
    usage = response.json()["usage"]
    assert attributes(span) == {
        "openinference.span.kind": "DECISION",
        "decision.system": "typesafe",
        "decision.provider": "self-hosted",
        "decision.request.model_name": "jev-latest",
        "decision.response.model_name": "fake-1",
        "decision.token_count.input": usage["input_tokens"],
        "decision.token_count.output": usage["output_tokens"],
        "jev.request_id": response.headers["x-request-id"],
    }
    assert (span.name, span.kind, span.status.code) == (
        "systemone",
        Span.SPAN_KIND_SERVER,
        Status.STATUS_CODE_OK,
    )
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (trace, parent)
    assert began <= span.start_time_unix_nano < span.end_time_unix_nano <= time.time_ns()
    assert SECRET.encode() not in b"".join(one.SerializeToString() for one in collector.requests)
    (resource,) = collector.requests[0].resource_spans
    assert [one.value.string_value for one in resource.resource.attributes if one.key == "service.name"] == [
        "jev"
    ]


def test_content_is_there_when_a_setting_says_so(
    make_app: Make, collector: Collector, body: dict[str, Any]
) -> None:
    with TestClient(make_app(trace_url=collector.url, trace_content=True)) as client:
        answered = client.post("/v1/systemone", json=body).json()
    found = attributes(collector.spans[0])
    asked = json.loads(found["input.value"])
    assert (asked["state"], asked["questions"].keys()) == (body["state"], body["questions"].keys())
    assert json.loads(found["output.value"]) == answered
    assert found["input.mime_type"] == found["output.mime_type"] == "application/json"


@pytest.mark.parametrize("content", [False, True])
def test_a_refusal_says_its_kind(
    make_app: Make, engine: Any, collector: Collector, body: dict[str, Any], content: bool
) -> None:
    def refuse(*_: object) -> None:
        raise OverloadedError(SECRET)

    def fail(*_: object) -> None:
        raise ValueError(SECRET)

    app = make_app(trace_url=collector.url, trace_content=content)
    with TestClient(app, raise_server_exceptions=False) as client:
        client.post("/v1/systemone", json={**body, "samples": SECRET})
        client.post("/v1/systemone", json={**body, "model": SECRET})
        engine.on_run = refuse
        client.post("/v1/systemone", json=body)
        engine.on_run, engine.on_prepare = None, fail
        client.post("/v1/systemone", json=body)
    found = [attributes(span) for span in collector.spans]
    assert [one["error.type"] for one in found] == [
        "invalid_request_error",
        "not_found_error",
        "overloaded_error",
        "ValueError",
    ]
    assert [one.get("http.response.status_code") for one in found] == [422, 404, 529, None]
    assert {span.status.code for span in collector.spans} == {Status.STATUS_CODE_ERROR}
    messages = [span.status.message for span in collector.spans]
    assert (SECRET in "".join(messages)) is content
    assert "decision.response.model_name" not in found[2]


def test_lines_of_a_batch_are_decisions(make_app: Make, collector: Collector) -> None:
    with TestClient(make_app(trace_url=collector.url)) as client:
        batch = created(client, [line("a", "one"), line("b", "two", body={"model": "nobody"})])
        assert ended(client, batch["id"])["request_counts"]["completed"] == 1
    found = {attributes(span).get("error.type"): attributes(span) for span in collector.spans}
    assert found.keys() == {None, "not_found_error"}
    suffix = batch["id"].removeprefix("batch_")
    assert found[None]["jev.request_id"] == f"req_{suffix}_1"
    assert found[None]["decision.token_count.output"] == 2


def test_a_collector_that_is_away_stops_nothing(
    make_app: Make, body: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("jev", "uvicorn", "opentelemetry", "python_multipart")
    before = [(one, one.handlers, one.propagate, one.level) for one in map(logging.getLogger, names)]
    logs.configure_logging(Settings())
    try:
        with TestClient(make_app(trace_url="http://127.0.0.1:9/v1/traces")) as client:
            assert client.post("/v1/systemone", json=body).status_code == 200
            began = time.monotonic()
        assert time.monotonic() - began < 6
    finally:
        for logger, handlers, propagate, level in before:
            logger.handlers, logger.propagate = handlers, propagate
            logger.setLevel(level)
    assert "Traceback" not in capsys.readouterr().err


def test_without_the_extra_tracing_is_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    create_app(Settings())
    with pytest.raises(MissingExtraError, match=r"Tracing needs .*jev-server\[otel\]"):
        create_app(Settings(trace_url="http://127.0.0.1:4318/v1/traces"))


def test_an_address_that_is_none_is_refused_by_name() -> None:
    with pytest.raises(SettingsError, match=r"^trace_url: it is an address such as "):
        Settings.load(trace_url="127.0.0.1:4318")
