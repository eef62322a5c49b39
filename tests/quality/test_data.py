"""Proves that labelled rows are read with their line numbers, and bad ones are named in one sentence."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path

import pytest
from quality_fakes import CHOICE, NOUL, QUESTIONS, SCORE

from jev.quality.data import DataError, read_questions, read_rows
from jev.schemas import Noul


def write(path: Path, *lines: object) -> Path:
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


def test_rows_keep_their_line_numbers_and_gold_is_an_index(tmp_path: Path) -> None:
    path = write(
        tmp_path / "rows.jsonl",
        {"state": "a", "questions": QUESTIONS, "answers": {"red": False, "animal": "cow", "size": 2}},
        "",
        {"state": {"k": 1}, "answers": {"red": True}, "weight": 2.5, "unknown": 1},
    )
    first, second = read_rows(path, {"red": Noul("Red?")})
    assert (first.number, second.number) == (1, 3)
    assert first.gold == {"red": 1, "animal": 2, "size": 2}
    assert list(first.questions) == list(QUESTIONS)
    assert list(second.questions) == ["red"]
    assert second.weight == 2.5
    assert len(read_rows(path, {"red": Noul("Red?")}, limit=1)) == 1


def test_gzip_and_attachments_go_inside_the_request(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a.txt").write_text("hello")
    path = tmp_path / "rows.jsonl.gz"
    row = {"attachments": ["files/a.txt"], "questions": {"red": NOUL}}
    path.write_bytes(gzip.compress(json.dumps(row).encode()))
    (found,) = read_rows(path)
    request = found.request(options={"seed": 3})
    assert request.files[0].name == "a.txt"
    assert base64.b64decode(request.files[0].data or "") == b"hello"
    assert request.seed == 3
    (tmp_path / "files" / "a.txt").unlink()
    with pytest.raises(DataError, match=r"row 1: .*a.txt: cannot be read"):
        found.request()


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("{", "JSON decode error"),
        ('{"state": "\\ud800"}', "JSON decode error"),
        ([1], "valid dictionary"),
        ({"state": "a"}, "questions: it has none"),
        ({"questions": {"red": NOUL}}, "neither a state nor attachments"),
        ({"state": "a", "questions": {"red": {"type": "maybe"}}}, "questions.red: The type of a question"),
        ({"state": "a", "questions": {"red": NOUL}, "answers": {"blue": True}}, "answers.blue: there is no"),
        (
            {"state": "a", "questions": {"red": NOUL}, "answers": {"red": "maybe"}},
            "answers.red: .*true or false",
        ),
        ({"state": "a", "questions": {"c": CHOICE}, "answers": {"c": "dog"}}, "'dog' is none of"),
        ({"state": "a", "questions": {"s": SCORE}, "answers": {"s": 4}}, "levels 0 to 3"),
        ({"state": "a", "questions": {"red": NOUL}, "weight": -1}, "weight: "),
        ({"state": "a", "questions": {"red": NOUL}, "attachments": ["../x"]}, "not a path below"),
        ({"state": "a", "questions": {"red": NOUL}, "attachments": ["/etc/passwd"]}, "not a path below"),
        ({"state": "a", "questions": {"red": NOUL}, "attachments": ["no.pdf"]}, "no.pdf is not there"),
        ({"state": "a", "questions": {"red": NOUL}, "attachments": ["link"]}, "a link out of the data"),
        ({"state": "a", "questions": {"red": NOUL}, "attachments": ["x" * 5000]}, "cannot be read"),
        ({"state": "a", "questions": {"red": NOUL}, "weight": 1e308}, "weight: "),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, row: object, reason: str) -> None:
    good = {"state": "a", "questions": {"red": NOUL}}
    (tmp_path / "link").symlink_to("/etc/passwd")
    with pytest.raises(DataError, match=f"rows.jsonl: row 2: .*{reason}"):
        read_rows(write(tmp_path / "rows.jsonl", good, row, good))


def test_many_bad_rows_are_counted(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"row 1: .*row 5: .*; and 4 more bad rows$"):
        read_rows(write(tmp_path / "rows.jsonl", *["{"] * 9))


def test_bad_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none.jsonl: cannot be read \(No such file"):
        read_rows(tmp_path / "none.jsonl")
    with pytest.raises(DataError, match="has no rows"):
        read_rows(write(tmp_path / "empty.jsonl"))
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(b"{}" * 1000)[:-12])
    with pytest.raises(DataError, match="not a whole gzip file"):
        read_rows(tmp_path / "cut.jsonl.gz")
    (tmp_path / "bytes.jsonl").write_bytes(b'{"state": "\xff\xfe"}\n')
    with pytest.raises(DataError, match="row 1: JSON decode error"):
        read_rows(tmp_path / "bytes.jsonl")


def test_questions_come_alone_or_in_a_body(tmp_path: Path) -> None:
    alone = write(tmp_path / "q.json", QUESTIONS)
    body = write(tmp_path / "body.json", {"state": "x", "questions": QUESTIONS})
    assert read_questions(alone) == read_questions(body)
    for bad, reason in [
        ({}, "questions: .* at least 1 item"),
        ([], "dictionary"),
        ({"a": {"type": "noul"}}, "questions.a: A noul"),
    ]:
        with pytest.raises(DataError, match=f"bad.json: .*{reason}"):
            read_questions(write(tmp_path / "bad.json", bad))
