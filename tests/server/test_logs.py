"""Each request leaves one structured line with numbers, and never what the caller wrote or its key."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from jev.server import logs
from jev.settings import Settings

SECRET = "xyzzy-private-words"


@pytest.fixture(autouse=True)
def restored_loggers() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in ("jev", "uvicorn")]
    before = [(logger.handlers, logger.propagate, logger.level) for logger in loggers]
    yield
    for logger, (handlers, propagate, level) in zip(loggers, before, strict=True):
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)


def test_json_lines(capsys: pytest.CaptureFixture[str], client: TestClient, body: dict[str, Any]) -> None:
    logs.configure_logging(Settings(log_json=True))
    response = client.post("/v1/systemone", json=body)
    client.get("/nope")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["logger"] for line in lines] == ["jev.access"] * 2
    good, bad = lines
    assert list(good) == [
        *("time", "level", "logger", "message"),
        *("id", "method", "path", "status", "ms", "questions", "tokens", "queue_ms"),
    ]
    assert good["id"] == response.headers["x-request-id"]
    assert (good["method"], good["path"], good["status"], good["questions"]) == (
        "POST",
        "/v1/systemone",
        200,
        3,
    )
    assert good["tokens"] == response.json()["usage"]["input_tokens"]
    assert 0 <= good["queue_ms"] <= good["ms"]
    assert (bad["path"], bad["status"]) == ("unmatched", 404)
    assert "questions" not in bad


def test_text_lines(capsys: pytest.CaptureFixture[str], client: TestClient, body: dict[str, Any]) -> None:
    logs.configure_logging(Settings())
    client.post("/v1/systemone", json=body)
    pattern = (
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO jev\.access: request id=req_[0-9a-f]{32} method=POST "
        r"path=/v1/systemone status=200 ms=\d+\.\d questions=3 tokens=\d+ queue_ms=\d+\.\d\n"
    )
    assert re.fullmatch(pattern, capsys.readouterr().err)


def test_the_level_is_kept(capsys: pytest.CaptureFixture[str], client: TestClient) -> None:
    logs.configure_logging(Settings(log_level="warning"))
    client.get("/health")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("as_json", [True, False])
def test_no_content_and_no_key_reaches_a_log(
    capsys: pytest.CaptureFixture[str],
    start: Callable[..., TestClient],
    engine: Any,
    body: dict[str, Any],
    as_json: bool,
) -> None:
    logs.configure_logging(Settings(log_json=as_json, log_level="debug"))
    client = start(api_keys=[f"key-{SECRET}"])
    headers = {"authorization": f"Bearer key-{SECRET}"}
    body["state"] = SECRET
    body["questions"][SECRET] = {"type": "noul", "instructions": SECRET}

    def fail(*args: object) -> None:
        try:
            raise KeyError(SECRET)
        except KeyError as error:
            raise ValueError(f"cannot use {SECRET}") from error

    def ask(**changes: Any) -> int:
        return client.post(f"/v1/systemone?{SECRET}", json={**body, **changes}, headers=headers).status_code

    assert ask() == 200
    assert ask(**{SECRET: 1}) == 200
    assert ask(samples=SECRET) == 422
    assert ask(model=SECRET) == 404
    engine.on_run = fail
    assert ask() == 500
    engine.on_run, engine.on_prepare = None, fail
    assert ask() == 500
    assert client.get("/v1/models", headers={"authorization": f"Bearer {SECRET}"}).status_code == 401
    assert client.get(f"/{SECRET}").status_code == 404
    text = capsys.readouterr().err
    assert SECRET not in text
    assert text.count("status=" if not as_json else '"status"') == 8
    assert text.count("followed by ValueError") == 2
    assert text.count("failed: KeyError") + text.count("engine: KeyError") == 2
    assert "test_logs.py" in text


def test_tracebacks_of_other_records_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    for as_json in (True, False):
        logs.configure_logging(Settings(log_json=as_json))
        try:
            raise OSError("disk")
        except OSError:
            logging.getLogger("jev").exception("oops")
    first, rest = capsys.readouterr().err.split("\n", 1)
    assert "OSError: disk" in json.loads(first)["traceback"]
    assert rest.splitlines()[0].endswith("ERROR jev: oops")
    assert "OSError: disk" in rest
