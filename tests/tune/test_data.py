"""Proves that every bad row is found and named before training, and that states are never on both sides."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest
from tune_cases import QUESTIONS, row, write

from jev.quality.data import DataError
from jev.schemas import Choice, Noul
from jev.tune.data import read, soft_target, split, target, without_states_of


def reasons(path: Path, **options: Any) -> dict[int, str]:
    return {one.row: one.reason for one in read(path, QUESTIONS, **options).bad}


BAD: list[tuple[object, str]] = [
    ("{", "JSON"),
    (row(1, answers={"colour": "pink"}), "'pink' is none of the choice's options"),
    (row(1, state="  \n"), "the state is empty"),
    (row(1, state=""), "neither a state nor attachments"),
    (row(1, answers={}), "neither reviewed answers"),
    (row(1, answers={"size": 2}), "answers.size: there is no such question"),
    (row(1, soft={"colour": {"pink": 1.0}}), "soft.colour: 'pink' is none of the alternatives"),
    (row(1, soft={"colour": {"red": 0, "blue": 0.0}}), "soft.colour: the weights sum to 0"),
    (row(1, soft={"size": {"red": 1}}), "soft.size: there is no such question"),
    (row(1, attachments=["gone.pdf"]), "gone.pdf is not there"),
    (row(1, weight=-1), "weight: "),
]


def test_all_bad_rows_are_named_and_the_others_stay(tmp_path: Path) -> None:
    rows: list[object] = []
    for bad, _ in BAD:
        rows += [row(len(rows)), bad]
    found = read(write(tmp_path / "rows.jsonl", rows), QUESTIONS)
    assert [one.row for one in found.bad] == [2 * n for n in range(1, len(BAD) + 1)]
    for one, (_, reason) in zip(found.bad, BAD, strict=True):
        assert reason in one.reason
    assert [one.number for one in found.good] == [2 * n + 1 for n in range(len(BAD))]


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_attachment_without_permission_is_a_bad_row(tmp_path: Path) -> None:
    (tmp_path / "shut.txt").write_text("text")
    (tmp_path / "shut.txt").chmod(0)
    path = write(tmp_path / "rows.jsonl", [row(1, attachments=["shut.txt"])])
    assert "cannot be read" in reasons(path)[1]


def test_rows_that_contradict_each_other_lose_the_question_in_dispute(tmp_path: Path) -> None:
    turned = {"colour": {"type": "choice", "instructions": "Which colour is it?"}}
    turned["colour"]["criteria"] = dict.fromkeys(["green", "blue", "red"])  # type: ignore[assignment]
    rows = [
        {"state": "a", "answers": {"colour": "red", "red": True}},
        {"state": "b", "answers": {"colour": "red"}},
        {"state": "a", "answers": {"colour": "blue", "red": True}},
        # The same options in another order are the same question; other instructions are another one.
        {"state": "a", "questions": turned, "answers": {"colour": "green"}},
        {
            "state": "a",
            "questions": {"colour": {**turned["colour"], "instructions": "?"}},
            "answers": {"colour": "blue"},
        },
        {"state": "b", "answers": {"colour": "red"}},
    ]
    found = read(write(tmp_path / "rows.jsonl", rows), QUESTIONS)
    assert {one.number: dict(one.gold) for one in found.good} == {
        1: {"red": 0},
        2: {"colour": 0},
        3: {"red": 0},
        5: {"colour": 1},
        6: {"colour": 0},
    }
    assert [one.row for one in found.bad] == [1, 3, 4]
    assert found.bad[0].reason == (
        "answers.colour: the same state and question has 'red' here, 'blue' in row 3, 'green' in row 4"
    )


def test_with_a_teacher_rows_need_no_answer(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", [{"state": "a"}, {"state": "b", "answers": {"red": True}}])
    assert list(reasons(path)) == [1]
    found = read(path, QUESTIONS, unanswered=True)
    assert ([one.number for one in found.good], found.bad) == ([1, 2], [])


def test_weightless_rows_are_counted_and_gzip_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(json.dumps(row(n, weight=n % 2)) for n in range(5)).encode()))
    found = read(path, QUESTIONS)
    assert (len(found.good), found.weightless) == (2, 3)
    assert len(read(path, QUESTIONS, limit=2).good) == 1
    with pytest.raises(DataError, match="has no rows"):
        read(write(tmp_path / "empty.jsonl", []), QUESTIONS)


def test_held_out_states_are_whole_seeded_and_as_many_as_asked(tmp_path: Path) -> None:
    rows = read(write(tmp_path / "rows.jsonl", [row(n % 20) for n in range(60)]), QUESTIONS).good
    left, held = split(rows, 0.25, seed=1)
    assert (len(left), len(held)) == (45, 15)
    assert not {one.state_key for one in left} & {one.state_key for one in held}
    again = split(list(reversed(rows)), 0.25, seed=1)[1]
    assert {one.number for one in again} == {one.number for one in held}
    assert {one.number for one in split(rows, 0.25, seed=2)[1]} != {one.number for one in held}
    assert split(rows, 0.0, seed=1)[1] == []
    assert [len(part) for part in split(rows[:2], 0.01, seed=1)] == [1, 1]
    assert without_states_of(rows, held) == (left, 15)


def test_targets() -> None:
    colour = Choice(["red", "blue"])
    assert soft_target(colour, {"blue": 3, "red": 1}) == (0.25, 0.75)
    assert soft_target(Noul("?"), {"yes": 2}) == (1.0, 0.0)
    assert target(colour, None, None, 0.5) is None
    assert target(colour, 1, None, 0.5) == (0.0, 1.0)
    assert target(colour, None, (0.3, 0.7), 0.0) == (0.3, 0.7)
    assert target(colour, 0, (0.5, 0.5), 0.5) == (0.75, 0.25)
