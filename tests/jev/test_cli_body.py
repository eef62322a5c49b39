"""Proves where the state and the body of `jev ask` come from, and that what is typed wins."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from jev.cli.body import build_body
from jev.cli.errors import UsageError

NOUL = {"q": {"type": "noul", "instructions": "Is it?"}}


def build(**given: Any) -> dict[str, Any]:
    nothing = {"file": None, "state": None, "state_file": None, "state_json": False}
    return build_body(**{**nothing, "questions": NOUL, "options": {}, **given})


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch):
    """Put bytes on standard input; None is a terminal."""

    def put(data: bytes | None) -> None:
        stdin = io.TextIOWrapper(io.BytesIO(data or b""))
        if data is None:
            stdin.isatty = lambda: True  # type: ignore[method-assign]
        monkeypatch.setattr("sys.stdin", stdin)

    return put


def test_the_argument_is_the_state_and_the_pipe_is_left_alone(pipe) -> None:
    pipe(b"piped")
    assert build(state="typed") == {"state": "typed", "questions": NOUL}


@pytest.mark.parametrize("given", [{}, {"state": "-"}, {"state_file": "-"}])
def test_the_pipe_is_the_state(pipe, given: dict[str, str]) -> None:
    pipe("größer\n".encode())
    assert build(**given)["state"] == "größer"


def test_only_one_line_break_is_dropped(pipe) -> None:
    pipe(b"  a\r\n\r\n")
    assert build()["state"] == "  a\r\n"


def test_a_file_is_the_state(tmp_path: Path) -> None:
    file = tmp_path / "mail.txt"
    file.write_text("hello\n")
    assert build(state_file=str(file))["state"] == "hello"


def test_json_state(pipe) -> None:
    pipe(b'{"a": [1, "x"]}\n')
    assert build(state_json=True)["state"] == {"a": [1, "x"]}


@pytest.mark.parametrize(
    ("data", "given", "message"),
    [
        (None, {}, "no state"),
        (b"", {}, "standard input is empty"),
        (b" \n", {}, "standard input is empty"),
        (b"\xff\xfe", {}, "not UTF-8"),
        (b"x", {"state": "a", "state_file": "b"}, "given twice"),
        (b"{", {"state_json": True}, "state: JSON decode error"),
        (b"NaN", {"state_json": True}, "state: JSON decode error"),
        (b"x", {"state_file": "/no/such/file"}, "/no/such/file: cannot be read"),
        (b"x", {"questions": {}, "state": "a"}, "no question"),
        (b'{"questions": {}}', {"file": "-"}, "no state"),
        (b"{}", {"file": "-", "state": "-"}, "both the body and the state"),
        (b"[]", {"file": "-"}, "standard input: a request body is a JSON object"),
        (b"{", {"file": "-"}, "standard input: JSON decode error"),
        (b'{"questions": []}', {"file": "-", "state": "a"}, "questions: Input should be an object"),
    ],
)
def test_what_cannot_be_used_is_one_sentence(
    pipe, data: bytes | None, given: dict[str, Any], message: str
) -> None:
    pipe(data)
    with pytest.raises(UsageError, match=message):
        build(**given)


BODY = {
    "state": "from the file",
    "questions": {"f": {"type": "noul", "instructions": "F?"}, "q": {"type": "noul"}},
    "seed": 7,
    "unknown": 1,
}


class TestFile:
    @pytest.fixture
    def file(self, tmp_path: Path) -> str:
        file = tmp_path / "request.json"
        file.write_text(json.dumps(BODY))
        return str(file)

    def test_is_sent_as_it_is_and_the_pipe_is_left_alone(self, pipe, file: str) -> None:
        pipe(b"piped")
        assert build(file=file, questions={}) == BODY

    def test_what_is_typed_wins(self, file: str) -> None:
        body = build(file=file, state="typed", options={"seed": 8, "samples": None})
        assert body == {
            "state": "typed",
            "questions": {"f": BODY["questions"]["f"], **NOUL},
            "seed": 8,
            "unknown": 1,
        }

    def test_without_a_state_takes_the_pipe(self, pipe, tmp_path: Path) -> None:
        file = tmp_path / "questions.json"
        file.write_text(json.dumps({"questions": NOUL}))
        pipe(b"piped")
        assert build(file=str(file), questions={})["state"] == "piped"
