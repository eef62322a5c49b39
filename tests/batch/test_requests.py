"""A row becomes a request with its files inline, and equal requests have equal keys."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import pytest

import jev.batch.requests as requests
from jev.batch.readers import RowError
from jev.batch.requests import Ask, Bad, Requests
from jev.schemas import Choice, Noul, Row, SystemOneRequest

TEMPLATE = SystemOneRequest(state="-", questions={"q": Noul("Is it?")}, samples=2)


def build(folder: Path) -> Requests:
    return Requests(TEMPLATE, questions=True, root=folder)


def ask(folder: Path, row: Row) -> Ask:
    found = build(folder).prepare(1, row)
    assert isinstance(found, Ask)
    return found


def test_files_go_inline(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.txt").write_bytes(b"content")
    found = ask(tmp_path, Row(id="x", state="s", attachments=["sub/a.txt"]))
    assert (found.number, found.id, found.files) == (1, "x", 1)
    (file,) = found.request.files
    assert (file.name, base64.b64decode(file.data or "")) == ("a.txt", b"content")
    assert found.request.samples == 2
    assert found.request.questions == TEMPLATE.questions
    assert found.request.model_fields_set == {"state", "questions", "samples", "files"}
    assert found.weight > 8


def test_what_is_asked_decides_the_key(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "b.txt").write_text("b")
    rows = [
        Row(state="s"),
        Row(state='{"a":1}'),
        Row(state={"a": 1}),
        Row(state="s", questions={"q": Choice(["a", "b"])}),
        Row(state="s", attachments=["a.txt"]),
        Row(state="s", attachments=["b.txt"]),
    ]
    assert len({ask(tmp_path, row).key for row in rows}) == len(rows)
    assert ask(tmp_path, Row(state="s", id="x", weight=2.0)).key == ask(tmp_path, rows[0]).key
    same = Row(state="s", questions={"q": Noul("Is it?")})
    assert ask(tmp_path, same).key == ask(tmp_path, rows[0]).key
    other = Requests(TEMPLATE.model_copy(update={"seed": 1}), questions=True, root=tmp_path)
    assert other.prepare(1, rows[0]).key != ask(tmp_path, rows[0]).key  # type: ignore[union-attr]


def test_files_that_cannot_be_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "MAX_FILE", 10)
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "secret.txt").write_text("s")
    (root / "long.txt").write_text("x" * 11)
    (root / "out.txt").symlink_to(tmp_path / "secret.txt")
    os.mkfifo(root / "pipe")
    for path, message in (
        ("none.txt", "there is no such file"),
        ("../secret.txt", "it is not in the folder"),
        (str(tmp_path / "secret.txt"), "it is not in the folder"),
        ("out.txt", "it is not in the folder"),
        ("long.txt", "it has 11 bytes, the limit is 10"),
        ("pipe", "there is no such file"),
        ("", "there is no such file"),
        ("a\0b", "it cannot be read"),
        ("x" * 300, "it cannot be read"),
    ):
        found = build(root).prepare(7, Row(id="x", state="s", attachments=[path]))
        assert isinstance(found, Bad), path
        assert (found.number, found.id, found.error.loc) == (7, "x", ("attachments", 0))
        assert message in found.error.message


def test_rows_without_questions(tmp_path: Path) -> None:
    own = Requests(TEMPLATE, questions=False, root=tmp_path)
    found = own.prepare(1, Row(state="s"))
    assert isinstance(found, Bad)
    assert found.error.message == "neither the row nor the job has questions"
    assert isinstance(own.prepare(1, Row(state="s", questions={"q": Noul("?")})), Ask)
    table = Requests(TEMPLATE, questions=True, root=tmp_path, own_questions=False)
    assert isinstance(table.prepare(1, Row(state="s", questions={"q": Noul("?")})), Bad)
    assert build(tmp_path).prepare(3, RowError("no")) == Bad(3, None, RowError("no"))
