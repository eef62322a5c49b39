"""A good request gets exactly the public response: answers in order, numbers unrounded."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient

from jev.schemas import NoulAnswer, SystemOneResponse, Usage

REQUEST_ID = re.compile(r"req_[0-9a-f]{32}")


def test_the_response_has_the_public_fields_only(client: TestClient, body: dict[str, Any]) -> None:
    response = client.post("/v1/systemone", json=body)
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    data = response.json()
    assert list(data) == ["model", "answers", "usage"]
    assert data["model"] == "fake-1"
    assert list(data["answers"]) == ["angry", "team", "severity"]
    assert list(data["answers"]["angry"]) == ["type", "noul"]
    assert list(data["answers"]["team"]) == ["type", "choice", "probabilities", "confidence"]
    assert list(data["answers"]["severity"]) == ["type", "score", "legend", "probabilities", "confidence"]
    assert data["answers"]["severity"]["legend"] == {
        "0": "cosmetic",
        "1": {"level": "annoying"},
        "2": "blocking",
    }


def test_numbers_arrive_as_the_engine_gave_them(
    client: TestClient, engine: Any, body: dict[str, Any]
) -> None:
    data = client.post("/v1/systemone", json=body).json()
    expected = engine.run(engine.ran[0])
    assert SystemOneResponse.model_validate(data).answers == expected.answers


def test_nulls_inside_a_level_survive(client: TestClient) -> None:
    body = {"state": "", "questions": {"q": {"type": "score", "criteria": [{"a": None}, [None]]}}}
    data = client.post("/v1/systemone", json=body).json()
    assert data["answers"]["q"]["legend"] == {"0": {"a": None}, "1": [None]}


def test_unknown_fields_are_warned_about(client: TestClient, body: dict[str, Any]) -> None:
    body["sede"] = 1
    body["questions"]["angry"]["critera"] = {}
    data = client.post("/v1/systemone", json=body).json()
    assert [warning["loc"] for warning in data["x_warnings"]] == [["sede"], ["questions", "angry", "critera"]]
    assert "did you mean 'seed'?" in data["x_warnings"][0]["msg"]


def test_strict_refuses_unknown_fields(client: TestClient, body: dict[str, Any]) -> None:
    response = client.post("/v1/systemone", json={**body, "strict": True, "sede": 1})
    assert response.status_code == 422
    assert response.json()["detail"][0]["loc"] == ["body", "sede"]


def test_diagnostics_appear_when_asked_for(client: TestClient, body: dict[str, Any]) -> None:
    data = client.post("/v1/systemone", json={**body, "diagnostics": True}).json()
    assert data["x_diagnostics"] == {"reads": 1}


def test_text_is_not_escaped_and_names_are_exact(client: TestClient) -> None:
    names = ["질문 🎯", " a.b ", "", "é", "e\u0301", '"\\\n']
    body = {
        "state": "",
        "questions": {name or "-": {"type": "choice", "criteria": dict.fromkeys(names)} for name in names},
    }
    response = client.post("/v1/systemone", json=body)
    assert "질문 🎯" in response.content.decode()
    for answer in response.json()["answers"].values():
        assert list(answer["probabilities"]) == names


def test_a_number_that_json_lacks_is_a_500_and_never_null(
    client: TestClient, engine: Any, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = SystemOneResponse(
        model="m", answers={"q": NoulAnswer(noul=float("nan"))}, usage=Usage(input_tokens=1, output_tokens=1)
    )
    monkeypatch.setattr(engine, "run", lambda plan, cancelled: broken)
    response = client.post("/v1/systemone", json=body)
    assert response.status_code == 500
    assert response.json() == {"detail": {"error_type": "server_error", "message": "The request failed"}}


def test_models_are_listed(client: TestClient) -> None:
    response = client.get("/v1/models")
    row = {"name": "fake-1", "description": "A fake", "release_date": "2026-01-31"}
    assert response.json()["models"] == [row]


def test_models_are_listed_for_openai_clients_too(client: TestClient) -> None:
    body = client.get("/v1/models").json()
    assert body["object"] == "list"
    day = 1769817600  # 2026-01-31 in UTC
    assert body["data"] == [{"id": "fake-1", "object": "model", "created": day, "owned_by": "jev"}]


def test_health_and_readiness(client: TestClient) -> None:
    assert client.get("/health").json() == {"status": "ok"}
    assert client.get("/ready").json() == {"status": "ready", "model": "fake-1"}
    for path in ("/health", "/ready"):
        response = client.head(path)
        assert (response.status_code, response.content) == (200, b"")


def test_every_response_has_a_fresh_id_in_both_headers(client: TestClient, body: dict[str, Any]) -> None:
    responses = [
        client.post("/v1/systemone", json=body),
        client.post("/v1/systemone", json={}),
        client.get("/v1/models"),
        client.get("/health"),
        client.get("/metrics"),
        client.get("/docs"),
        client.get("/nope"),
    ]
    ids = [response.headers["x-typesafe-request-id"] for response in responses]
    assert all(REQUEST_ID.fullmatch(name) for name in ids)
    assert [response.headers["x-request-id"] for response in responses] == ids
    assert len(set(ids)) == len(ids)


def test_an_id_from_the_caller_is_not_trusted(client: TestClient) -> None:
    response = client.get("/health", headers={"x-request-id": "mine", "x-typesafe-request-id": "mine"})
    assert REQUEST_ID.fullmatch(response.headers["x-request-id"])
    assert response.headers.get_list("x-typesafe-request-id") == [response.headers["x-request-id"]]


def test_concurrent_requests_get_their_own_answers(start: Callable[..., TestClient]) -> None:
    from concurrent.futures import ThreadPoolExecutor

    client = start()

    def ask(number: int) -> dict[str, Any]:
        question = {"type": "noul", "instructions": f"Is it {number}?"}
        response = client.post("/v1/systemone", json={"state": "", "questions": {f"q{number}": question}})
        return response.json()["answers"]

    alone = [ask(number) for number in range(20)]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(ask, range(20)))
    assert together == alone
    assert len({json.dumps(list(answers.values())) for answers in alone}) > 10
