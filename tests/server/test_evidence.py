"""Images are checked, then refused for lack of a vision tower; other attachments are refused by name."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from starlette.testclient import TestClient

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 16
JPEG = b"\xff\xd8\xff\xe0" + b"\0" * 16
REF = "<image:0>"


def inline(data: bytes = PNG, format: str = "png") -> dict[str, Any]:
    return {"type": "image", "format": format, "data_base64": base64.b64encode(data).decode()}


def refused_for_vision(response: Any) -> None:
    assert response.status_code == 503, response.text
    assert response.json()["detail"] == {
        "error_type": "model_unavailable",
        "message": "This model has no vision tower, so it cannot read images",
    }


def issue(response: Any) -> dict[str, Any]:
    assert response.status_code == 422, response.text
    return response.json()["detail"][0]


@pytest.mark.parametrize(
    "change",
    [
        {"state": f"Look: {REF}."},
        {"state": {"a": [{"b": REF}]}},
        {"state": {REF: 1}},
        {"instructions": ["see", REF]},
        {"questions": {"q": {"type": "noul", "instructions": REF}}},
        {"questions": {"q": {"type": "noul", "criteria": {"false": f"not {REF}"}}}},
        {"questions": {"q": {"type": "choice", "criteria": {REF: None}}}},
        {"questions": {"q": {"type": "choice", "criteria": {"a": {"like": REF}}}}},
        {"questions": {"q": {"type": "score", "criteria": ["a", REF]}}},
    ],
)
def test_a_sound_image_is_503_wherever_it_is_placed(
    client: TestClient, body: dict[str, Any], change: dict[str, Any]
) -> None:
    refused_for_vision(client.post("/v1/systemone", json={**body, **change, "assets": {REF: inline()}}))


def test_a_jpeg_is_an_image_too(client: TestClient, body: dict[str, Any]) -> None:
    body |= {"state": REF, "assets": {REF: inline(JPEG, "jpg")}}
    refused_for_vision(client.post("/v1/systemone", json=body))


def test_the_images_field_is_503(client: TestClient, body: dict[str, Any]) -> None:
    refused_for_vision(client.post("/v1/systemone", json={**body, "images": ["data:image/png;base64,"]}))


@pytest.mark.parametrize(
    ("asset", "at", "type_"),
    [
        (inline(b"GIF89a"), "data_base64", "image_invalid"),
        (inline(b""), "data_base64", "image_invalid"),
        ({**inline(), "data_base64": "not base64!"}, "data_base64", "base64_invalid"),
        ({**inline(), "data_base64": "iVBORw0KGg"}, "data_base64", "base64_invalid"),
        ({**inline(), "data_base64": "ü"}, "data_base64", "base64_invalid"),
        ({"type": "image", "part": "asset-0"}, "part", "missing"),
    ],
)
def test_an_unsound_asset_is_422_and_named(
    client: TestClient, body: dict[str, Any], asset: dict[str, Any], at: str, type_: str
) -> None:
    row = issue(client.post("/v1/systemone", json={**body, "state": REF, "assets": {REF: asset}}))
    assert row["loc"] == ["body", "assets", REF, at]
    assert row["type"] == type_


@pytest.mark.parametrize("ref", [REF, ""])
def test_an_asset_that_occurs_nowhere_is_422(client: TestClient, body: dict[str, Any], ref: str) -> None:
    row = issue(client.post("/v1/systemone", json={**body, "assets": {ref: inline()}}))
    assert (row["loc"], row["type"]) == (["body", "assets", ref], "unused_asset")


def test_the_schema_of_an_asset_is_checked(client: TestClient, body: dict[str, Any]) -> None:
    for asset in ({"type": "image"}, {"type": "image", "part": "a", "data_base64": ""}, {"type": "video"}):
        row = issue(client.post("/v1/systemone", json={**body, "assets": {REF: asset}}))
        assert row["loc"][:3] == ["body", "assets", REF]


def test_too_many_assets_are_422(client: TestClient, body: dict[str, Any]) -> None:
    assets = {f"<{i}>": inline() for i in range(33)}
    row = issue(client.post("/v1/systemone", json={**body, "state": list(assets), "assets": assets}))
    assert (row["loc"], row["type"]) == (["body", "assets"], "too_long")


def send_parts(client: TestClient, body: dict[str, Any], parts: dict[str, bytes]) -> Any:
    files: dict[str, Any] = {"request": (None, json.dumps(body), "application/json")}
    files |= {name: (name, data, "image/png") for name, data in parts.items()}
    return client.post("/v1/systemone", files=files)


def test_an_image_part_is_503(client: TestClient, body: dict[str, Any]) -> None:
    body |= {"state": REF, "assets": {REF: {"type": "image", "part": "asset-0"}}}
    refused_for_vision(send_parts(client, body, {"asset-0": PNG}))


@pytest.mark.parametrize(
    ("parts", "where", "type_"),
    [
        ({"asset-1": PNG}, ["body", "assets", REF, "part"], "missing"),
        ({"asset-0": b"plain text"}, ["body", "assets", REF, "part"], "image_invalid"),
        ({"asset-0": PNG, "asset-1": PNG}, ["body", "assets"], "unknown_part"),
    ],
)
def test_parts_and_assets_must_fit_together(
    client: TestClient, body: dict[str, Any], parts: dict[str, bytes], where: list[str], type_: str
) -> None:
    body |= {"state": REF, "assets": {REF: {"type": "image", "part": "asset-0"}}}
    row = issue(send_parts(client, body, parts))
    assert (row["loc"], row["type"]) == (where, type_)


def test_parts_without_assets_are_422(client: TestClient, body: dict[str, Any]) -> None:
    assert issue(send_parts(client, body, {"asset-0": PNG}))["type"] == "unknown_part"


@pytest.mark.parametrize("field", ["documents", "videos", "audios", "files"])
def test_other_attachments_are_422_by_name(client: TestClient, body: dict[str, Any], field: str) -> None:
    row = issue(client.post("/v1/systemone", json={**body, field: [{"name": "a.pdf"}]}))
    assert row["loc"] == ["body", field]
    assert row["msg"] == "Attachments are not supported by this server"
    assert client.post("/v1/systemone", json={**body, field: []}).status_code == 200


def test_a_calibration_that_is_not_loaded_is_422(client: TestClient, body: dict[str, Any]) -> None:
    row = issue(client.post("/v1/systemone", json={**body, "calibration": "mine"}))
    assert row["loc"] == ["body", "calibration"]
    assert row["msg"] == "No calibration named 'mine' is loaded"


def test_what_can_be_mended_is_said_before_what_cannot(client: TestClient, body: dict[str, Any]) -> None:
    response = client.post("/v1/systemone", json={**body, "images": ["x"], "documents": ["y"]})
    assert response.status_code == 422
