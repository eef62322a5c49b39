"""Metrics count requests by route and status, show the queue and the engine, and belong to one app."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient


def samples(client: TestClient) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    response = client.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain; version=")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


def count(found: dict[Any, float], path: str, status: int) -> float | None:
    return found.get(("jev_requests_total", (("path", path), ("status", str(status)))))


def test_requests_are_counted_by_route_and_status(client: TestClient, body: dict[str, Any]) -> None:
    for _ in range(3):
        client.post("/v1/systemone", json=body)
    client.post("/v1/systemone", json={})
    for path in ("/a", "/b", "/c?d"):
        client.get(path)
    found = samples(client)
    assert count(found, "/v1/systemone", 200) == 3
    assert count(found, "/v1/systemone", 422) == 1
    assert count(found, "unmatched", 404) == 3
    assert found["jev_request_seconds_count", (("path", "/v1/systemone"),)] == 4
    assert not any("/a" in str(key) for key in found)


def test_the_queue_and_the_engine_show(client: TestClient, body: dict[str, Any]) -> None:
    client.post("/v1/systemone", json=body)
    found = samples(client)
    assert found["jev_pending_requests", ()] == 0
    assert found["jev_pending_tokens", ()] == 0
    assert found["jev_reads_total", ()] == 1
    assert found["jev_prefix_cache_hits_total", ()] == 3
    assert found["jev_prefix_cache_misses_total", ()] == 2
    assert found["jev_prefix_cache_bytes", ()] == 1000
    assert found["process_resident_memory_bytes", ()] > 1e6


def test_a_scrape_sees_what_waits(client: TestClient, engine: Any, body: dict[str, Any]) -> None:
    seen: dict[Any, float] = {}
    engine.on_run = lambda plan, cancelled: seen.update(samples(client))
    response = client.post("/v1/systemone", json=body)
    assert seen["jev_pending_requests", ()] == 1
    assert seen["jev_pending_tokens", ()] == response.json()["usage"]["input_tokens"]


def test_two_apps_do_not_share_metrics(make_app: Callable[..., FastAPI], body: dict[str, Any]) -> None:
    with TestClient(make_app()) as one, TestClient(make_app()) as two:
        one.post("/v1/systemone", json=body)
        assert count(samples(one), "/v1/systemone", 200) == 1
        assert count(samples(two), "/v1/systemone", 200) is None


def test_metrics_work_before_the_model_is_loaded(make_app: Callable[..., FastAPI]) -> None:
    client = TestClient(make_app())  # not started
    found = samples(client)
    assert found["jev_pending_requests", ()] == 0
    assert found["jev_reads_total", ()] == 0
