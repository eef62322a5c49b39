"""A batch answers each line as its request alone would be, and looks like one of OpenAI's API."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from batching import created, ended, line, lines_in, many, results_of, uploaded
from starlette.testclient import TestClient

from jev.engine import Engine
from jev.server.app import create_app
from jev.server.batch_lines import Line, lines_of
from jev.server.batch_store import BatchStore
from jev.settings import Settings, SettingsError


@pytest.fixture
def client(start_tiny: Callable[..., TestClient]) -> TestClient:
    return start_tiny()


# --- from upload to results ---------------------------------------------------------------------------


def test_every_line_gets_the_answer_or_error_that_its_request_would_get(client: TestClient) -> None:
    note = client.post("/v1/files", files={"file": ("note.txt", b"It is new.")}).json()["files"][0]["id"]
    lines: list[Any] = [
        line("plain", "a state"),
        line("object", {"text": "a state"}, body={"samples": 2, "diagnostics": True, "smaples": 3}),
        b"",
        b"{nope",
        line("plain", "the same name again"),
        line("get", "s", method="GET"),
        line("bad body", 3),
        line("no model", "s", body={"model": "other"}),
        line("file", "Read it.", body={"files": [{"file": note}]}),
        line("gone", "Read it.", body={"files": [{"file": "file-" + "0" * 32}]}),
        b"[1]",
        line("\u00e9\u2028 last", "a state"),
    ]
    batch = created(client, lines, metadata={"for": "tests"})
    assert (batch["object"], batch["status"], batch["metadata"]) == ("batch", "validating", {"for": "tests"})
    assert batch["expires_at"] - batch["created_at"] == 24 * 3600

    batch = ended(client, batch["id"])
    assert batch["status"] == "completed"
    assert batch["request_counts"] == {"total": 11, "completed": 4, "failed": 7}
    assert batch["created_at"] <= batch["in_progress_at"] <= batch["finalizing_at"] <= batch["completed_at"]
    assert batch["model"] == "tiny"

    answers = lines_in(client, batch["output_file_id"])
    assert [one["custom_id"] for one in answers] == ["plain", "object", "file", "\u00e9\u2028 last"]
    for one in answers:
        assert (one["error"], one["response"]["status_code"]) == (None, 200)
        (asked,) = [x for x in lines if isinstance(x, dict) and x["custom_id"] == one["custom_id"]][:1]
        alone = client.post("/v1/systemone", json=asked["body"]).json()
        body = one["response"]["body"]
        assert {**body, "answers": None, "x_diagnostics": None} == {
            **alone,
            "answers": None,
            "x_diagnostics": None,
        }
        assert body["answers"]["new"]["noul"] == pytest.approx(alone["answers"]["new"]["noul"], abs=1e-5)
        assert body["answers"]["kind"]["choice"] == alone["answers"]["kind"]["choice"]
        assert ("x_diagnostics" in body) == ("x_diagnostics" in alone)
    tokens = [one["response"]["body"]["usage"] for one in answers]
    assert batch["usage"]["input_tokens"] == sum(one["input_tokens"] for one in tokens)
    assert batch["usage"]["output_tokens"] == sum(one["output_tokens"] for one in tokens)

    errors = {one["custom_id"]: one for one in lines_in(client, batch["error_file_id"])}
    codes = {name: one["error"]["code"] for name, one in errors.items() if one["error"] is not None}
    assert codes == {"plain": "duplicate_custom_id", "get": "invalid_line", None: "invalid_line"}
    statuses = {
        name: one["response"]["status_code"] for name, one in errors.items() if one["response"] is not None
    }
    assert statuses == {"bad body": 422, "no model": 404, "gone": 422}
    issue = errors["bad body"]["response"]["body"]["detail"][0]
    assert issue["loc"] == ["body", "state"]

    both = results_of(client, batch["id"])
    numbers = [int(one["id"].rpartition("_")[2]) for one in both]
    assert numbers == [1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12]
    assert [one["error"]["message"][:7] for one in both if one["error"]] == [
        "Line 4:",
        "Line 5:",
        "Line 6:",
        "Line 11",
    ]
    assert len({one["id"] for one in both}) == len(both)

    kept = client.get(f"/v1/files/{batch['output_file_id']}").json()
    size = len(client.get(f"/v1/files/{batch['output_file_id']}/content").content)
    assert (kept["object"], kept["purpose"], kept["bytes"]) == ("file", "batch_output", size)
    assert kept["expires_at"] == batch["completed_at"] + 7 * 24 * 3600


def test_what_is_sent_and_shown_is_described(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    batch = ended(client, created(client, many(1))["id"])
    for name, shown in (
        ("Batch", batch),
        ("BatchList", client.get("/v1/batches").json()),
        ("FileObject", client.get(f"/v1/files/{batch['output_file_id']}").json()),
    ):
        root = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
        jsonschema_rs.validator_for(root).validate(shown)
    posted = document["paths"]["/v1/batches"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    check = jsonschema_rs.validator_for(posted)
    assert check.is_valid({"input_file_id": "file-1", "endpoint": "/v1/systemone"})
    assert not check.is_valid({"input_file_id": "file-1", "endpoint": "/v1/chat/completions"})


@pytest.mark.parametrize(
    ("lines", "codes", "settings"),
    [
        ([b" ", b"\t"], ["empty_file"], {}),
        ([b"{", line("a", 3), line("b", "s", url="/v1/models")], ["invalid_json", "invalid_request"], {}),
        (many(4), ["too_many_requests"], {"max_batch_rows": 3}),
        ([line("a", "s" * 3000)], ["line_too_long"], {"max_body_bytes": 2000}),
    ],
)
def test_a_file_without_one_good_line_fails_and_says_why(
    start_tiny: Callable[..., TestClient], lines: list[Any], codes: list[str], settings: dict[str, Any]
) -> None:
    client = start_tiny(**settings)
    batch = ended(client, created(client, lines)["id"])
    assert (batch["status"], batch["output_file_id"], batch["error_file_id"]) == ("failed", None, None)
    assert batch["failed_at"] >= batch["created_at"]
    issues = batch["errors"]["data"]
    assert [issue["code"] for issue in issues][: len(codes)] == codes
    assert all(str(limit) in issues[0]["message"] for limit in settings.values())
    assert results_of(client, batch["id"]) == []


@pytest.mark.parametrize(
    ("changes", "loc"),
    [
        ({"input_file_id": "file-" + "0" * 32}, ["body", "input_file_id"]),
        ({"input_file_id": None}, ["body", "input_file_id"]),
        ({"endpoint": "/v1/chat/completions"}, ["body", "endpoint"]),
        ({"completion_window": "0h"}, ["body", "completion_window"]),
        ({"completion_window": "169h"}, ["body", "completion_window"]),
        ({"metadata": {str(number): "" for number in range(17)}}, ["body", "metadata"]),
        ({"metadata": {"a": 1}}, ["body", "metadata", "a"]),
    ],
)
def test_a_batch_that_cannot_be_is_refused_by_field(
    client: TestClient, changes: dict[str, Any], loc: list[str]
) -> None:
    asked = {"input_file_id": uploaded(client, many(1)), "endpoint": "/v1/systemone", **changes}
    response = client.post("/v1/batches", json=asked)
    assert response.status_code == 422
    assert response.json()["detail"][0]["loc"] == loc
    assert client.get("/v1/batches").json()["data"] == []


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b'"' + b"x" * 70_000 + b'"'])
def test_a_body_that_is_no_batch_is_refused(client: TestClient, body: bytes) -> None:
    response = client.post("/v1/batches", content=body, headers={"content-type": "application/json"})
    assert response.status_code == (413 if len(body) > 2**16 else 422)


@pytest.mark.parametrize(
    ("fields", "files", "loc"),
    [
        ({"purpose": "No Word"}, 1, ["body", "purpose"]),
        ({"purpose": "x" * 300}, 1, ["body", "purpose"]),
        ({"purpose": "batch"}, 2, ["body", "files"]),
        ({"colour": "red"}, 1, ["body", "colour"]),
    ],
)
def test_form_fields_of_an_upload_are_checked(
    client: TestClient, fields: dict[str, str], files: int, loc: list[str]
) -> None:
    parts = [("file", (f"{number}.txt", b"text")) for number in range(files)]
    response = client.post("/v1/files", files=parts, data=fields)
    assert response.status_code == 422
    assert response.json()["detail"][0]["loc"] == loc
    assert client.get("/v1/files").json()["files"] == []


# --- lists, limits, keys ------------------------------------------------------------------------------


def test_a_byte_order_mark_and_blank_lines_are_no_part_of_a_request(tmp_path: Path) -> None:
    file = tmp_path / "input.jsonl"
    for mark in (b"", b"\xef\xbb\xbf"):
        file.write_bytes(mark + b"{}\r\n\n{}")
        assert list(lines_of(file)) == [Line(1, b"{}\r\n"), Line(3, b"{}")]


def test_batches_are_listed_from_the_newest_on_page_by_page(client: TestClient) -> None:
    made = [created(client, many(1))["id"] for _ in range(5)]
    for id in made:
        ended(client, id)
    page = client.get("/v1/batches?limit=2").json()
    assert [batch["id"] for batch in page["data"]] == made[:2:-1]
    assert (page["has_more"], page["first_id"], page["last_id"]) == (True, made[4], made[3])
    rest = client.get(f"/v1/batches?after={page['last_id']}").json()
    assert ([batch["id"] for batch in rest["data"]], rest["has_more"]) == (made[2::-1], False)
    for bad in ("0", "101", "x", "-1", "1e1"):
        response = client.get(f"/v1/batches?limit={bad}")
        assert (response.status_code, response.json()["detail"][0]["loc"]) == (422, ["query", "limit"])


def test_limits_are_named_and_removing_makes_room(
    start_tiny: Callable[..., TestClient], tmp_path: Path
) -> None:
    client = start_tiny(max_batches=1, batches_dir=tmp_path / "b")
    batch = ended(client, created(client, many(1))["id"])
    asked = {"input_file_id": batch["input_file_id"], "endpoint": "/v1/systemone"}
    response = client.post("/v1/batches", json=asked)
    assert response.status_code == 413
    assert "the most is 1" in response.json()["detail"]["message"]
    assert client.delete(f"/v1/batches/{batch['id']}").status_code == 204
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["batches.lock"]
    for path in ("", "/results", "/cancel"):
        call = client.post if path == "/cancel" else client.get
        assert call(f"/v1/batches/{batch['id']}{path}").status_code == 404
    assert client.get(f"/v1/files/{batch['output_file_id']}/content").status_code == 404
    assert client.post("/v1/batches", json=asked).status_code == 200


def test_an_ended_batch_is_removed_after_its_time(tmp_path: Path, tiny_model: Engine) -> None:
    settings = Settings(batches_dir=tmp_path, batches_ttl_s=3600)
    with TestClient(create_app(settings, tiny_model)) as client:
        batch = ended(client, created(client, many(1))["id"])
        left = {path.name for path in (tmp_path / batch["id"]).iterdir()}
        assert left == {"batch.json", "output.jsonl"}  # what was sent is not kept
    for late, kept in ((3590, 1), (3610, 0)):
        store = BatchStore(
            tmp_path, ttl_s=3600, max_batches=9, clock=lambda late=late: batch["completed_at"] + late
        )
        assert len(store.all()) == kept
        store.close()


def test_the_content_of_uploads_is_not_given_out(client: TestClient) -> None:
    file = uploaded(client, many(1))
    assert client.get(f"/v1/files/{file}/content").status_code == 404


def test_keys_rates_ids_and_metrics_are_those_of_the_other_routes(
    start_tiny: Callable[..., TestClient],
) -> None:
    client = start_tiny(api_keys=["k"], rate_limit_rpm=60)
    assert client.get("/v1/batches").status_code == 403
    assert client.get("/v1/batches", headers={"authorization": "Bearer no"}).status_code == 401
    client.headers["authorization"] = "Bearer k"
    batch = ended(client, created(client, [*many(2), b"{"])["id"])
    response = client.get(f"/v1/batches/{batch['id']}")
    assert response.headers["x-request-id"] == response.headers["x-typesafe-request-id"]
    shown = client.get("/metrics").text
    assert 'jev_requests_total{path="/v1/batches/{id}",status="200"}' in shown
    assert 'jev_batch_requests_total{outcome="completed"} 2.0' in shown
    assert "jev_batches 0.0" in shown
    statuses = {client.get("/v1/batches").status_code for _ in range(70)}
    assert statuses == {200, 429}


def test_a_folder_of_others_or_of_another_server_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("precious")
    options = {"ttl_s": 1.0, "max_batches": 1}
    with pytest.raises(SettingsError, match="it has other files in it"):
        BatchStore(tmp_path / "other", **options)
    first = BatchStore(tmp_path / "own", **options)
    with pytest.raises(SettingsError, match="is used by another server"):
        BatchStore(tmp_path / "own", **options)
    first.close()
    BatchStore(tmp_path / "own", **options).close()
