"""Every error is JSON of one of two shapes, with the right status, headers and a request id."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from jev.errors import InvalidRequestError, OverloadedError
from jev.schemas import BadRequestError, Issue
from jev.schemas.errors import MAX_ISSUES
from jev.server import service
from jev.server.app import create_app
from jev.server.errors import error_response
from jev.settings import Settings


def check(response: Any, status: int, error_type: str) -> str:
    """Assert the shape of an error that is not a 422 and return its message."""
    assert response.status_code == status
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-typesafe-request-id"].startswith("req_")
    assert list(response.json()) == ["detail"]
    detail = response.json()["detail"]
    assert list(detail) == ["error_type", "message"]
    assert detail["error_type"] == error_type
    return detail["message"]


def issues(response: Any) -> list[dict[str, Any]]:
    """Assert the shape of a 422 and return its issues."""
    assert response.status_code == 422
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-typesafe-request-id"].startswith("req_")
    assert list(response.json()) == ["detail"]
    rows = response.json()["detail"]
    assert rows
    for row in rows:
        assert list(row) == ["loc", "msg", "type"]
    return rows


def test_unknown_route_404(client: TestClient) -> None:
    for path in ("/page", "/v1", "/v1/", "/v1/systemone/", "/v1/nope", "//v1/systemone", "/v1/models/x/y"):
        assert check(client.get(path), 404, "not_found_error") == "No such route"


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [("GET", "/v1/systemone", "POST"), ("POST", "/v1/models", "GET"), ("DELETE", "/health", None)],
)
def test_wrong_method_405(client: TestClient, method: str, path: str, allow: str | None) -> None:
    response = client.request(method, path)
    check(response, 405, "invalid_request_error")
    assert response.headers["allow"]
    assert allow is None or response.headers["allow"] == allow


def test_unknown_model_404(client: TestClient, body: dict[str, Any]) -> None:
    message = check(client.post("/v1/systemone", json={**body, "model": "gpt-9"}), 404, "not_found_error")
    assert "gpt-9" in message


@pytest.mark.parametrize(
    ("change", "loc", "type_"),
    [
        ({"state": None}, ["body", "state"], "text_type"),
        ({"state": 5}, ["body", "state"], "text_type"),
        ({"questions": {}}, ["body", "questions"], "too_short"),
        ({"questions": []}, ["body", "questions"], "dict_type"),
        (
            {"questions": {"": {"type": "noul", "instructions": "x"}}},
            ["body", "questions", ""],
            "string_too_short",
        ),
        ({"questions": {"q": {"type": "boolean"}}}, ["body", "questions", "q"], "union_tag_invalid"),
        ({"questions": {"q": {}}}, ["body", "questions", "q"], "union_tag_not_found"),
        ({"questions": {"q": {"type": "noul"}}}, ["body", "questions", "q"], "noul_empty"),
        (
            {"questions": {"q": {"type": "choice", "criteria": {}}}},
            ["body", "questions", "q", "criteria"],
            "too_short",
        ),
        (
            {"questions": {"q": {"type": "score", "criteria": {"0": "low"}}}},
            ["body", "questions", "q", "criteria"],
            "list_type",
        ),
        ({"samples": 0}, ["body", "samples"], None),
        ({"steps": 2}, ["body", "steps"], None),
        ({"strict": "yes"}, ["body", "strict"], None),
        ({"model": ""}, ["body", "model"], None),
    ],
)
def test_bad_fields_422(
    client: TestClient, body: dict[str, Any], change: dict[str, Any], loc: list[str], type_: str | None
) -> None:
    rows = issues(client.post("/v1/systemone", json={**body, **change}))
    assert rows[0]["loc"] == loc
    assert type_ is None or rows[0]["type"] == type_


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"nonsense", b"[]", b"null", b"3", b'"text"', b"\xff\xfe{}", b'{"a":NaN}', b"[" * 5000],
)
def test_a_body_that_is_not_a_json_object_422(client: TestClient, content: bytes) -> None:
    rows = issues(client.post("/v1/systemone", content=content, headers={"content-type": "application/json"}))
    assert rows[0]["loc"][0] == "body"


def test_every_bad_field_is_named_at_once(client: TestClient) -> None:
    rows = issues(client.post("/v1/systemone", json={"samples": 0, "seed": "x", "questions": {}}))
    assert {row["loc"][1] for row in rows} == {"state", "questions", "samples", "seed"}


def test_a_422_does_not_grow_with_the_number_of_mistakes(client: TestClient) -> None:
    questions = {f"q{i}": {"type": "nope"} for i in range(1000)}
    rows = issues(client.post("/v1/systemone", json={"state": "", "questions": questions}))
    assert len(rows) == MAX_ISSUES + 1
    assert rows[-1] == {"loc": ["body"], "msg": "900 more issues are not listed", "type": "more_issues"}


def test_a_request_that_the_engine_refuses_422(client: TestClient, engine: Any, body: dict[str, Any]) -> None:
    def refuse(request: object) -> None:
        raise InvalidRequestError.at("state", msg="5000 tokens do not fit in 4096", type="too_long")

    engine.on_prepare = refuse
    rows = issues(client.post("/v1/systemone", json=body))
    assert rows == [{"loc": ["body", "state"], "msg": "5000 tokens do not fit in 4096", "type": "too_long"}]


@pytest.mark.parametrize("value", ["0", "-1", "soon", "nan", "inf", ""])
def test_a_bad_timeout_header_422(client: TestClient, body: dict[str, Any], value: str) -> None:
    rows = issues(client.post("/v1/systemone", json=body, headers={"timeout": value}))
    assert rows[0]["loc"] == ["header", "timeout"]


def test_rate_limit_429(start: Callable[..., TestClient]) -> None:
    client = start(rate_limit_rpm=2)
    assert [client.get("/v1/models").status_code for _ in range(2)] == [200, 200]
    response = client.get("/v1/models")
    check(response, 429, "rate_limit_error")
    assert 1 <= int(response.headers["retry-after"]) <= 30
    assert client.get("/health").status_code == 200


def test_an_exception_in_prepare_500(client: TestClient, engine: Any, body: dict[str, Any]) -> None:
    def fail(request: object) -> None:
        raise RuntimeError("secret of the house")

    engine.on_prepare = fail
    response = client.post("/v1/systemone", json=body)
    assert check(response, 500, "server_error") == "The request failed"


def test_an_exception_in_run_500_and_the_next_request_is_served(
    client: TestClient, engine: Any, body: dict[str, Any]
) -> None:
    def fail(plan: object, cancelled: object) -> None:
        raise RuntimeError("secret of the house")

    engine.on_run = fail
    response = client.post("/v1/systemone", json=body)
    assert check(response, 500, "server_error") == "The request failed"
    engine.on_run = None
    assert client.post("/v1/systemone", json=body).status_code == 200


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch, engine: Any) -> Iterator[threading.Event]:
    """Hold the loading of the model until the event is set."""
    event = threading.Event()

    def slow(settings: Settings) -> Any:
        assert event.wait(20)
        return engine

    monkeypatch.setattr(service, "load_engine", slow)
    yield event
    event.set()


def test_while_the_model_loads_503(load: threading.Event, body: dict[str, Any]) -> None:
    app = create_app(Settings())
    with TestClient(app) as client:
        assert client.get("/health").status_code == 200
        for response in (
            client.get("/ready"),
            client.get("/v1/models"),
            client.post("/v1/systemone", json=body),
        ):
            assert check(response, 503, "model_unavailable") == "The model is loading"
            assert response.headers["retry-after"] == "1"
        load.set()
        app.state.service.loaded.result(10)
        assert client.portal is not None
        client.portal.call(app.state.service.ready.wait)
        assert client.get("/ready").status_code == 200
        assert client.post("/v1/systemone", json=body).status_code == 200


def test_a_model_that_cannot_be_loaded_503(monkeypatch: pytest.MonkeyPatch, body: dict[str, Any]) -> None:
    def fail(settings: Settings) -> Any:
        raise ValueError("/private/path is not a checkpoint")

    monkeypatch.setattr(service, "load_engine", fail)
    app = create_app(Settings())
    with TestClient(app) as client:
        with pytest.raises(ValueError, match="not a checkpoint"):
            app.state.service.loaded.result(10)
        assert client.get("/health").status_code == 200
        for response in (client.get("/ready"), client.post("/v1/systemone", json=body)):
            assert check(response, 503, "model_unavailable") == "The model could not be loaded"


def test_retry_after_is_whole_seconds_rounded_up() -> None:
    assert error_response(OverloadedError(retry_after=1.2)).headers["retry-after"] == "2"
    assert error_response(OverloadedError(retry_after=0.0)).headers["retry-after"] == "1"
    assert error_response(OverloadedError()).headers["retry-after"] == "1"


def test_routes_may_raise_either_kind_of_bad_request(make_app: Callable[..., FastAPI]) -> None:
    app = make_app()
    issue = Issue(loc=["body", "x"], msg="m", type="t")

    @app.get("/schema")
    def schema() -> None:
        raise BadRequestError([issue])

    @app.get("/engine")
    def engine() -> None:
        raise InvalidRequestError("no place")

    with TestClient(app) as client:
        assert client.get("/schema").json() == {"detail": [issue.model_dump()]}
        expected = {"loc": ["body"], "msg": "no place", "type": "invalid_request_error"}
        assert client.get("/engine").json() == {"detail": [expected]}
