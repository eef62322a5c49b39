"""What tests of batches share: input lines, and waiting for batches and reading their results."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

QUESTIONS = {
    "new": {"type": "noul", "instructions": "Is it new?"},
    "kind": {"type": "choice", "instructions": "What is it?", "criteria": {"a": None, "b": None}},
}
WAIT = 120.0


def line(name: str, state: Any, **changes: Any) -> dict[str, Any]:
    body = {"state": state, "questions": QUESTIONS, **changes.pop("body", {})}
    return {"custom_id": name, "method": "POST", "url": "/v1/systemone", "body": body, **changes}


def many(count: int) -> list[dict[str, Any]]:
    return [line(f"line {number}", f"state {number}") for number in range(count)]


def encoded(lines: list[dict[str, Any] | bytes]) -> bytes:
    return b"\n".join(one if isinstance(one, bytes) else json.dumps(one).encode() for one in lines)


def uploaded(client: Any, lines: list[Any], name: str = "input.jsonl") -> str:
    response = client.post("/v1/files", files={"file": (name, encoded(lines))}, data={"purpose": "batch"})
    assert response.status_code == 200, response.text
    return response.json()["id"]


def created(client: Any, lines: list[Any], **fields: Any) -> dict[str, Any]:
    asked = {"input_file_id": uploaded(client, lines), "endpoint": "/v1/systemone", **fields}
    response = client.post("/v1/batches", json=asked)
    assert response.status_code == 200, response.text
    return response.json()


def when(client: Any, id: str, enough: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Wait for a batch to be as it should."""
    give_up = time.monotonic() + WAIT
    while time.monotonic() < give_up:
        batch = client.get(f"/v1/batches/{id}").json()
        if enough(batch):
            return batch
        time.sleep(0.02)
    raise AssertionError(f"it is still {batch}")


def ended(client: Any, id: str) -> dict[str, Any]:
    return when(client, id, lambda batch: batch["status"] in ("completed", "failed", "expired", "cancelled"))


def lines_in(client: Any, file: str | None) -> list[dict[str, Any]]:
    if file is None:
        return []
    response = client.get(f"/v1/files/{file}/content")
    assert response.status_code == 200, response.text
    return [json.loads(text) for text in response.text.splitlines()]


def results_of(client: Any, id: str) -> list[dict[str, Any]]:
    response = client.get(f"/v1/batches/{id}/results")
    assert response.status_code == 200, response.text
    return [json.loads(text) for text in response.text.splitlines()]
