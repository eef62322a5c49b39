"""A text leaves numbers in metrics, log and spans but never its content, and ends when the server says so."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient
from writing_app import App, content_of

from jev.engine import Engine
from jev.server import logs
from jev.settings import Settings

SECRET = "xyzzy-private-words"


def samples(client: TestClient) -> dict[str, float]:
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(client.get("/metrics").text)
        for sample in family.samples
        if set(sample.labels) <= {"le"} and sample.labels.get("le") in (None, "+Inf")
    }


@pytest.fixture
def restored_loggers() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in ("jev", "uvicorn")]
    before = [(logger.handlers, logger.propagate, logger.level) for logger in loggers]
    yield
    for logger, (handlers, propagate, level) in zip(loggers, before, strict=True):
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)


def test_metrics(tiny_app: App) -> None:
    before = samples(tiny_app.client)
    body = tiny_app.chat("Hello", max_tokens=20, max_denoising_steps=2, seed=1).json()
    after = samples(tiny_app.client)

    def grown(name: str) -> float:
        return after[name] - before[name]

    assert grown("jev_texts_total") == 1
    assert grown("jev_text_tokens_total") == body["usage"]["completion_tokens"]
    canvases = grown("jev_text_canvases_total")
    assert 1 <= canvases <= 2
    assert grown("jev_text_canvas_rows_total") == 16 * canvases
    assert grown("jev_text_canvas_seconds_count") == canvases
    assert grown("jev_text_canvas_seconds_sum") > 0
    assert grown("jev_prefix_cache_misses_total") + grown("jev_prefix_cache_hits_total") <= 1
    assert grown("jev_text_steps_total") >= canvases
    assert after["jev_pending_texts"] == after["jev_pending_text_rows"] == 0


def test_what_is_being_written_shows(echo: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(echo.writer, "seconds", 0.02)
    asking = threading.Thread(target=echo.chat, args=("Hello",), kwargs={"max_denoising_steps": 50})
    asking.start()
    seen = []
    while asking.is_alive():
        seen.append(samples(echo.client)["jev_pending_texts"])
    assert 1 in seen


@pytest.mark.usefixtures("restored_loggers")
def test_log_lines_have_numbers_and_no_content(
    echo_engine: Engine, start_app: Callable[..., App], capsys: pytest.CaptureFixture[str]
) -> None:
    logs.configure_logging(Settings(log_json=True, log_level="debug"))
    app = start_app(echo_engine)
    app.chat(SECRET, stop=["never" + SECRET])
    app.chunks(SECRET, temperature=1)
    app.chat(SECRET, n=2)
    app.chat(SECRET, **{SECRET: SECRET})
    app.client.post("/api/generate", json={"prompt": SECRET, "stream": False})
    app.client.post("/v1/completions", json={"prompt": SECRET, "suffix": SECRET})
    said = capsys.readouterr().err
    assert SECRET not in said
    lines = [json.loads(line) for line in said.splitlines()]
    access = [line for line in lines if line["logger"] == "jev.access"]
    assert [line["status"] for line in access] == [200, 200, 400, 200, 200, 400]
    tokens = len(echo_engine.context.tokenizer.encode(SECRET))
    assert [line.get("text_tokens") for line in access] == [tokens, tokens, None, tokens, tokens, None]
    assert access[0]["tokens"] > tokens
    assert access[0]["path"] == "/v1/chat/completions"
    assert sum("temperature" in line["message"] for line in lines) == 1


def test_spans(echo_engine: Engine, start_app: Callable[..., App]) -> None:
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    app = start_app(echo_engine, trace_url="http://127.0.0.1:9/v1/traces", trace_content=True)
    exporter = InMemorySpanExporter()
    provider: Any = app.client.app.state.service.tracing._provider  # type: ignore[attr-defined]
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    response = app.chat(SECRET)
    app.chunks(SECRET)
    app.chat(SECRET, n=2)
    good, streamed, bad = exporter.get_finished_spans()
    assert [span.name for span in (good, streamed, bad)] == ["text"] * 3
    usage = response.json()["usage"]
    for span in (good, streamed):
        assert span.attributes is not None
        assert span.attributes["openinference.span.kind"] == "LLM"
        assert span.attributes["llm.model_name"] == "echo"
        assert span.attributes["llm.token_count.prompt"] == usage["prompt_tokens"]
        assert span.attributes["llm.token_count.completion"] == usage["completion_tokens"]
        assert span.status.is_ok
        assert SECRET not in span.to_json()
    assert dict(good.attributes or {})["jev.request_id"] == response.headers["x-request-id"]
    assert not bad.status.is_ok
    assert dict(bad.attributes or {})["error.type"] == "invalid_request_error"


@pytest.mark.parametrize("stream", [False, True])
def test_a_text_that_the_server_ends(echo: App, monkeypatch: pytest.MonkeyPatch, stream: bool) -> None:
    monkeypatch.setattr(echo.writer, "seconds", 0.01)
    scheduler = echo.client.app.state.service.serving()[1]  # type: ignore[attr-defined]
    found: list[Any] = []
    ask = threading.Thread(
        target=lambda: found.append(echo.chat("a" * 40, stream=stream, max_denoising_steps=50))
    )
    ask.start()
    while not scheduler.pending_texts[0]:
        time.sleep(0.005)
    portal: Any = echo.client.portal
    portal.call(scheduler.pause, "abort")
    ask.join()
    scheduler.resume()
    (response,) = found
    if stream:
        assert response.status_code == 200
        *_, last = response.text.removesuffix("\n\n").split("\n\n")
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "model_unavailable"
    else:
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "model_unavailable"
    assert content_of(echo.chunks("still here")) == "still here"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/api/chat"])
def test_a_writer_that_fails(echo: App, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError(SECRET)

    monkeypatch.setattr(echo.writer, "step", broken)
    body = {"messages": [{"role": "user", "content": "Hello"}]}
    response = echo.client.post(path, json={**body, "stream": False})
    assert response.status_code == 500
    assert SECRET not in response.text
    response = echo.client.post(path, json={**body, "stream": True})
    assert response.status_code == 200
    last = response.text.strip().splitlines()[-1].removeprefix("data: ")
    assert "error" in json.loads(last)


def test_the_api_is_described(echo: App, echo_engine: Engine, start_app: Callable[..., App]) -> None:
    document = echo.client.get("/openapi.json").json()
    for path, request in (
        ("/v1/chat/completions", "ChatRequest"),
        ("/v1/completions", "CompletionRequest"),
        ("/api/chat", "OllamaChat"),
        ("/api/generate", "OllamaGenerate"),
        ("/api/show", "OllamaShow"),
    ):
        operation = document["paths"][path]["post"]
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        assert schema == {"$ref": f"#/components/schemas/{request}"}
        assert {"200", "400", "401", "404", "413", "429", "503", "529"} <= set(operation["responses"])
        assert request in document["components"]["schemas"]
    stream = document["paths"]["/v1/chat/completions"]["post"]["responses"]["200"]["content"]
    assert set(stream) == {"application/json", "text/event-stream"}
    keyed = start_app(echo_engine, api_keys=["k"]).client.get("/openapi.json").json()
    assert keyed["paths"]["/api/chat"]["post"]["security"] == [{"bearer": []}]
