"""Images are checked, then refused for lack of a vision tower; other attachments are refused by name."""

from __future__ import annotations

import base64
import io
import json
import wave
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from PIL import Image
from starlette.testclient import TestClient

if TYPE_CHECKING:
    from tests.server.conftest import FakeEngine


def picture(format: str) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (64, 48), "white").save(file, format)
    return file.getvalue()


PNG, JPEG = picture("PNG"), picture("JPEG")
REF = "<image:0>"


@pytest.fixture
def client(start: Callable[..., TestClient]) -> TestClient:
    """A client of a server whose model sees no pictures and that does not read them by OCR."""
    return start(ocr="off", extract_workers=1)


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
    refused_for_vision(client.post("/v1/systemone", json={**body, "images": [inline()["data_base64"]]}))


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


def test_an_asset_that_occurs_nowhere_is_422(client: TestClient, body: dict[str, Any]) -> None:
    row = issue(client.post("/v1/systemone", json={**body, "assets": {REF: inline()}}))
    assert (row["loc"], row["type"]) == (["body", "assets", REF], "unused_asset")


@pytest.mark.parametrize(
    ("refs", "change"),
    [
        (["<1", "<1>"], {"state": "Look: <1>."}),
        (["<1", "<1>", "<1>>"], {"state": ["<1>>", {"a": "<1>"}]}),
        (["1", "1>"], {"state": "1>", "questions": {"q": {"type": "noul", "instructions": "Is 1> it?"}}}),
    ],
)
def test_an_asset_that_longer_placeholders_cover_is_422(
    client: TestClient, body: dict[str, Any], refs: list[str], change: dict[str, Any]
) -> None:
    sent = {**body, **change, "assets": {ref: inline() for ref in refs}}
    row = issue(client.post("/v1/systemone", json=sent))
    assert (row["loc"], row["type"]) == (["body", "assets", refs[0]], "unused_asset")
    assert "a longer placeholder covers it" in row["msg"]
    del sent["assets"][refs[0]]
    refused_for_vision(client.post("/v1/systemone", json=sent))
    # Where it stands by itself once, it is shown.
    again = {**sent, "assets": {ref: inline() for ref in refs}, "instructions": f"and {refs[0]}"}
    refused_for_vision(client.post("/v1/systemone", json=again))


def test_a_placeholder_that_json_writes_otherwise_is_422(client: TestClient, body: dict[str, Any]) -> None:
    assets = {'<"1">': inline()}
    assert issue(client.post("/v1/systemone", json={**body, "state": {"a": '<"1">'}, "assets": assets}))
    refused_for_vision(client.post("/v1/systemone", json={**body, "state": '<"1">', "assets": assets}))


def test_an_empty_placeholder_is_422(client: TestClient, body: dict[str, Any]) -> None:
    row = issue(client.post("/v1/systemone", json={**body, "assets": {"": inline()}}))
    assert row["loc"] == ["body", "assets", ""]


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
def test_an_attachment_without_content_is_422_by_name(
    client: TestClient, body: dict[str, Any], field: str
) -> None:
    row = issue(client.post("/v1/systemone", json={**body, field: [{"name": "a.pdf"}]}))
    assert row["loc"] == ["body", field, 0]
    assert client.post("/v1/systemone", json={**body, field: []}).status_code == 200


def attach(data: bytes, name: str) -> dict[str, str]:
    return {"name": name, "data": base64.b64encode(data).decode()}


def test_a_text_file_reaches_the_model(client: TestClient, engine: FakeEngine, body: dict[str, Any]) -> None:
    body["documents"] = [attach(b"The doctor is late.", "note.txt")]
    assert client.post("/v1/systemone", json=body).status_code == 200
    (one,) = engine.material[-1].evidence
    assert (one.name, one.kind, one.text) == ("note.txt", "text", "The doctor is late.")


@pytest.mark.parametrize(
    ("field", "entry", "words"),
    [
        ("documents", attach(b"%PDF-1.7 broken", "a.pdf"), "damaged"),
        ("videos", attach(b"just text", "a.txt"), "does not match the field 'videos'"),
        ("files", attach(b"\x7fELF....", "a.exe"), "unsupported file type"),
        ("files", {"name": "a.txt", "data": "!"}, "valid base64"),
        ("files", {"file": "file-gone"}, "no uploaded file"),
        ("images", "http://127.0.0.1/x.png", "no address is fetched"),
    ],
)
def test_a_file_that_cannot_be_read_is_422_and_named(
    client: TestClient, body: dict[str, Any], field: str, entry: Any, words: str
) -> None:
    row = issue(client.post("/v1/systemone", json={**body, field: [entry]}))
    assert row["loc"][:3] == ["body", field, 0]
    assert words in row["msg"]


def recording() -> bytes:
    """A second of silence."""
    silence = io.BytesIO()
    with wave.open(silence, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16000)
        file.writeframes(bytes(32000))
    return silence.getvalue()


def test_speech_without_a_speech_model_is_503(client: TestClient, body: dict[str, Any]) -> None:
    response = client.post("/v1/systemone", json={**body, "audios": [attach(recording(), "a.wav")]})
    assert response.status_code == 503, response.text
    assert "'a.wav'" in response.json()["detail"]["message"]


@pytest.mark.parametrize("field", ["images", "documents", "videos"])
def test_speech_in_another_field_is_422_before_anybody_would_hear_it(
    client: TestClient, body: dict[str, Any], field: str
) -> None:
    row = issue(client.post("/v1/systemone", json={**body, field: [attach(recording(), "a.wav")]}))
    assert row["loc"] == ["body", field, 0]
    assert row["msg"].startswith("Attachment 'a.wav': Its content is of kind audio")


@pytest.mark.parametrize("data", ["", "!", "aGk=\n", "data:,x", "https://127.0.0.1/a.txt"])
def test_what_is_not_base64_names_the_file(client: TestClient, body: dict[str, Any], data: str) -> None:
    row = issue(client.post("/v1/systemone", json={**body, "documents": [{"name": "a.txt", "data": data}]}))
    assert row["loc"] == ["body", "documents", 0, "data"]
    assert row["msg"].startswith("Attachment 'a.txt': ")


def test_uploads_that_wait_in_memory_are_bounded_as_bodies_are(
    start: Callable[..., TestClient], body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = start(max_body_bytes=1000)
    stored = client.post(
        "/v1/files", files=[("file", (f"{n}.txt", b"%d" % n * 3000)) for n in range(3)]
    ).json()
    names = [{"file": file["id"]} for file in stored["files"]]
    monkeypatch.setattr(client.app.state.service.bodies, "_limit", 8000)  # type: ignore[attr-defined]
    for files, status in ((names[:2], 200), (names, 529), (names[:2], 200)):
        assert client.post("/v1/systemone", json={**body, "files": files}).status_code == status


def test_a_calibration_that_is_not_loaded_is_422(client: TestClient, body: dict[str, Any]) -> None:
    row = issue(client.post("/v1/systemone", json={**body, "calibration": "mine"}))
    assert row["loc"] == ["body", "calibration"]
    assert row["msg"] == "No calibration named 'mine' is loaded"


def test_what_can_be_mended_is_said_before_what_cannot(client: TestClient, body: dict[str, Any]) -> None:
    response = client.post(
        "/v1/systemone", json={**body, "images": [inline()["data_base64"]], "documents": ["y"]}
    )
    assert response.status_code == 422
