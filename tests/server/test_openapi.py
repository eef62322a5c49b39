"""/openapi.json describes the body, every status and the key, well enough for tools to drive the API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jsonschema_rs
from starlette.testclient import TestClient


def validator(document: dict[str, Any], name: str) -> Any:
    """A validator of one of the document's schemas (jsonschema_rs comes with schemathesis)."""
    root = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
    return jsonschema_rs.validator_for(root)


def references(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return own + [ref for item in value.values() for ref in references(item)]
    if isinstance(value, list):
        return [ref for item in value for ref in references(item)]
    return []


def test_every_reference_resolves(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    found = references(document)
    assert "#/components/schemas/SystemOneRequest" in found
    for ref in found:
        target = document
        for part in ref.removeprefix("#/").split("/"):
            target = target[part]


def test_the_request_schema_accepts_and_refuses(client: TestClient, body: dict[str, Any]) -> None:
    check = validator(client.get("/openapi.json").json(), "SystemOneRequest")
    assert check.is_valid(body)
    for bad in ({}, {**body, "state": 3}, {**body, "questions": {}}, {**body, "samples": 0}):
        assert not check.is_valid(bad)


def test_real_responses_match_their_schemas(client: TestClient, body: dict[str, Any]) -> None:
    document = client.get("/openapi.json").json()
    validator(document, "SystemOneResponse").validate(client.post("/v1/systemone", json=body).json())
    validator(document, "IssueList").validate(client.post("/v1/systemone", json={}).json())
    missing = client.post("/v1/systemone", json={**body, "model": "x"}).json()
    validator(document, "ErrorBody").validate(missing)
    validator(document, "ServedModels").validate(client.get("/v1/models").json())


def test_every_status_is_described(client: TestClient) -> None:
    operation = client.get("/openapi.json").json()["paths"]["/v1/systemone"]["post"]
    assert set(map(int, operation["responses"])) == {
        200,
        401,
        403,
        404,
        408,
        413,
        415,
        422,
        429,
        500,
        503,
        529,
    }
    assert set(operation["requestBody"]["content"]) == {"application/json", "multipart/form-data"}
    assert operation["parameters"][0]["name"] == "timeout"


def test_the_key_is_described_where_one_is_needed(start: Callable[..., TestClient]) -> None:
    assert "security" not in start().get("/openapi.json").json()["paths"]["/v1/systemone"]["post"]
    document = start(api_keys=["k"]).get("/openapi.json").json()
    assert document["components"]["securitySchemes"] == {"bearer": {"type": "http", "scheme": "bearer"}}
    assert document["paths"]["/v1/models"]["get"]["security"] == [{"bearer": []}]
    assert "security" not in document["paths"]["/health"]["get"]


def test_the_docs_page_is_served(client: TestClient) -> None:
    assert client.get("/docs").headers["content-type"].startswith("text/html")
