"""Proves that whatever `jev batch` decided can be reviewed, and that nothing else is shown or proposed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from queue_lines import CHOICE, NOUL, QUESTIONS, answers, items, line, write
from typer.testing import CliRunner

from jev.batch import JobError
from jev.cli import app
from jev.quality.data import read_rows
from jev.review import ReviewError, Store, load_queue


@pytest.fixture
def folder(tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in; the tiny model answers."""
    monkeypatch.setenv("JEV_MODEL", str(tiny))
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "q.json", [QUESTIONS])
    return tmp_path


def batch(*arguments: str) -> Path:
    command = ["batch", "run", *arguments, "--output", "out.jsonl", "--review-below", "1"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.stderr
    return Path("out.review.jsonl")


def reviewed(queue: Path, **options: Any) -> list[dict[str, Any]]:
    """The rows that come of answering every item with its first alternative, sorted."""
    out = Path("reviewed.jsonl")
    found = load_queue(queue, out=out, **options)
    assert found.bad == []
    assert all(item.certainty is not None for item in found.items)
    with Store(out) as store:
        for item in found.items:
            store.answer(item, 0)
    assert all(row.gold for row in read_rows(out))
    return sorted((json.loads(text) for text in out.read_text().splitlines()), key=json.dumps)


def test_rows_of_json_lines_with_questions_of_their_own(folder: Path) -> None:
    own = {"state": {"a": [1, None]}, "questions": {"mine": NOUL}, "answers": {"mine": False}, "weight": 2}
    write(folder / "in.jsonl", ["just a text", {"id": 7, "state": "two"}, own])
    rows = reviewed(batch("--input", "in.jsonl", "--questions", "q.json"))
    assert [row.get("id") for row in rows] == ["7", None, None]
    states = [row["state"] for row in rows]
    assert sorted(states, key=str) == ["just a text", "two", {"a": [1, None]}]
    mine = rows[states.index({"a": [1, None]})]
    assert (mine["answers"], mine["weight"]) == ({"mine": True}, 2)
    assert mine["questions"] == {"mine": NOUL}


def test_columns_of_tables_become_the_state_that_was_asked(folder: Path) -> None:
    pytest.importorskip("pyarrow")
    from pyarrow import Table, parquet

    Path("in.csv").write_text("key,text,weight,metadata\nk1,first,heavy,x\nk2,second,heavy,x\n")
    queue = batch("-i", "in.csv", "--questions", "q.json", "--state-column", "text", "--id-column", "key")
    rows = reviewed(queue)
    assert [(row["id"], row["state"]) for row in rows] == [("k1", "first"), ("k2", "second")]
    assert all(row.keys() == {"id", "state", "questions", "answers"} for row in rows)
    Path("reviewed.jsonl").unlink()
    parquet.write_table(Table.from_pylist([{"a": 1, "b": "x"}]), "in.parquet")
    command = ("--restart", "--input", "in.parquet", "--questions", "q.json")
    (row,) = reviewed(batch(*command))
    assert row["state"] == {"a": 1, "b": "x"}


def test_attachments_are_named_from_where_the_reviewed_rows_are(folder: Path) -> None:
    files = folder / "mails" / "old"
    files.mkdir(parents=True)
    (files / "a.txt").write_text("hello")
    queue = batch("--input", "mails", "--questions", "q.json")
    (row,) = reviewed(queue, root=Path("mails"))
    assert row["attachments"] == ["mails/old/a.txt"]
    assert (row["id"], "state" in row) == ("old/a.txt", False)
    bad = load_queue(queue, out=Path("reviewed.jsonl")).bad
    assert "there is no such file" in bad[0].reason
    assert "--attachments-root" in bad[0].reason
    (folder / "other").mkdir()
    with pytest.raises(ReviewError, match="write it there or above"):
        load_queue(queue, out=Path("other/reviewed.jsonl"), root=Path("mails"))


def test_the_least_certain_question_or_all_of_them(tmp_path: Path) -> None:
    lines = [line(1, "how"), line(2)]
    assert [(item.name, item.proposed) for item in items(tmp_path, lines)] == [("how", 0), ("which", 1)]
    every = items(tmp_path, lines, all_questions=True)
    assert [item.name for item in every] == ["is", "which", "how"] * 2
    assert [item.proposed for item in every] == [0, 1, 0] * 2
    assert every[1].probabilities == pytest.approx((0.2, 0.6, 0.2))


def test_labelled_and_unlabelled_rows(tmp_path: Path) -> None:
    questions = {"is": NOUL, "which": CHOICE}
    lines = [{"state": "x", "questions": questions, "answers": {"which": "c"}}, {"state": "y"}]
    found = items(tmp_path, lines, questions=read_questions({"is": NOUL}))
    assert [(item.number, item.name, item.proposed) for item in found] == [
        (1, "is", None),
        (1, "which", 2),
        (2, "is", None),
    ]
    assert all(item.certainty is None for item in found)


def read_questions(questions: dict[str, Any]) -> Any:
    from jev.schemas import Row

    return Row.model_validate({"questions": questions}).questions


def test_a_row_that_stands_twice_is_asked_once(tmp_path: Path) -> None:
    assert len(items(tmp_path, [line(1), line(1, row=2), line(2)])) == 2
    other = {**QUESTIONS, "which": {**CHOICE, "instructions": "Which one?"}}
    queue = write(tmp_path / "queue.jsonl", [line(1), line(1, questions=other)])
    found = load_queue(queue, out=tmp_path / "out.jsonl")
    assert len(found.items) == 1
    assert found.bad[0].reason == "which: row 1 is the same row and asks it otherwise"


LEAN = {name: value for name, value in line(1).items() if name not in ("state", "questions", "input")}
WRONG = {**answers(), "which": {**answers()["which"], "probabilities": {"a": 0.5, "b": 0.5}}}


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b'{"state": ', "JSON"),
        (b'{"state": "\xff"}', "UTF-8"),
        ([1], "a row is a JSON object"),
        (LEAN, "neither a state nor attachments"),
        ({"id": "r1", "error": {"type": "x", "message": "y"}}, "it has neither a state nor attachments"),
        ({**LEAN, "state": "x"}, "it brings no questions; give them with --questions"),
        (line(1, "other"), "there is no question 'other'"),
        (line(1, question=["is"]), "question: there is no question"),
        (line(1, question={}), "question: there is no question"),
        (line(1, questions={"is": NOUL}, question="is"), "answers.which: there is no such question"),
        (line(1, questions={"is": {"type": "maybe"}}), "questions.is"),
        (line(1, answers=WRONG), "answers.which: the answer's probabilities are not those"),
        (line(1, answers={"is": {"type": "noul", "noul": 7}}), "not between 0 and 1"),
        (line(1, answers={"is": {"type": "noul"}}), "answers.is.noul"),
        (line(1, answers={"is": CHOICE}), "answers.is"),
        (line(1, attachments=["../secret"]), "not a path below"),
        (line(1, attachments=["/etc/passwd"]), "not a path below"),
        (line(1, attachments=["link"]), "a link out of"),
        (line(1, attachments=["a\0b"]), "cannot be read"),
        (line(1, attachments=["x" * 5000]), "cannot be read"),
        ({"state": "x", "questions": {"is": NOUL}, "answers": {"is": "maybe"}}, "is no answer to a noul"),
    ],
)
def test_bad_rows_are_named_and_the_others_are_there(tmp_path: Path, bad: Any, reason: str) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "link").symlink_to("/etc/hostname")
    queue = write(tmp_path / "data" / "queue.jsonl", [line(2), bad, line(3)])
    found = load_queue(queue, out=tmp_path / "out.jsonl")
    assert [item.row.id for item in found.items] == ["r2", "r3"]
    (row,) = found.bad
    assert row.number == 2
    assert reason in row.reason
    assert "--state-column" not in row.reason  # a flag of another command


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="there is no such file"):
        load_queue(tmp_path / "no.jsonl", out=tmp_path / "out.jsonl")
