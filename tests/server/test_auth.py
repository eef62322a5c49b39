"""With keys, /v1 is closed to everyone else and says how to get in; without keys nobody is asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient

KEYS = ["alpha", "beta-2"]


@pytest.fixture
def closed(start: Callable[..., TestClient]) -> TestClient:
    return start(api_keys=KEYS)


@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer", "Bearer ", "Basic YWxwaGE=", "alpha", "Token alpha", "Beareralpha"],
)
def test_no_bearer_key_403(closed: TestClient, body: dict[str, Any], header: str | None) -> None:
    headers = {} if header is None else {"authorization": header}
    response = closed.post("/v1/systemone", json=body, headers=headers)
    assert response.status_code == 403
    assert response.json()["detail"]["error_type"] == "authentication_error"
    assert response.headers["www-authenticate"] == "Bearer"
    assert response.headers["x-typesafe-request-id"].startswith("req_")


@pytest.mark.parametrize("key", ["alph", "alphaa", "ALPHA", "beta", "alpha,beta-2", "alpha beta-2", "é" * 4])
def test_wrong_key_401(closed: TestClient, key: str) -> None:
    response = closed.get("/v1/models", headers={b"authorization": f"Bearer {key}".encode("latin-1")})
    assert response.status_code == 401
    assert response.json()["detail"]["error_type"] == "authentication_error"
    assert response.headers["www-authenticate"] == "Bearer"
    assert key not in response.text


@pytest.mark.parametrize("header", ["Bearer alpha", "bearer beta-2", "BEARER alpha", "Bearer   alpha "])
def test_any_accepted_key_is_let_in(closed: TestClient, body: dict[str, Any], header: str) -> None:
    assert closed.post("/v1/systemone", json=body, headers={"authorization": header}).status_code == 200
    assert closed.get("/v1/models", headers={"authorization": header}).status_code == 200


def test_a_key_elsewhere_does_not_count(closed: TestClient) -> None:
    assert closed.get("/v1/models?api_key=alpha", headers={"x-api-key": "alpha"}).status_code == 403


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics", "/openapi.json", "/docs"])
def test_operations_stay_open(closed: TestClient, path: str) -> None:
    assert closed.get(path).status_code == 200


def test_the_key_comes_before_everything_about_the_body(closed: TestClient) -> None:
    for headers in (
        {"content-length": "999999999999"},
        {"content-type": "text/plain"},
        {"content-encoding": "br"},
    ):
        assert closed.post("/v1/systemone", headers=headers, content=b"").status_code == 403


def test_without_keys_the_header_is_ignored(client: TestClient, body: dict[str, Any]) -> None:
    for header in ("Bearer anything", "Basic x", ""):
        assert client.post("/v1/systemone", json=body, headers={"authorization": header}).status_code == 200


def test_each_key_has_its_own_rate(start: Callable[..., TestClient]) -> None:
    client = start(api_keys=KEYS, rate_limit_rpm=1)
    for key in KEYS:
        headers = {"authorization": f"Bearer {key}"}
        assert client.get("/v1/models", headers=headers).status_code == 200
        assert client.get("/v1/models", headers=headers).status_code == 429
    assert client.get("/v1/models", headers={"authorization": "Bearer wrong"}).status_code == 401
