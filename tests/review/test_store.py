"""Proves that a decision is on disk once it is made, once, and survives kills, undo and other runs."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from queue_lines import CHOICE, NOUL, QUESTIONS, items, labels, line, write

from jev.review import ReviewError, Session, Store, load_queue
from jev.review.store import label_of, skipped_file
from jev.schemas import index_of

LINES = [line(number) for number in range(1, 5)]


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scratch")


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_every_label_is_read_back_as_what_was_chosen(tmp_path: Path) -> None:
    for item in items(tmp_path, [line(1)], all_questions=True):
        count = 2 if item.name == "is" else 3
        assert [index_of(item.question, label_of(item.question, index)) for index in range(count)] == [
            *range(count)
        ]


STEPS = st.lists(
    st.sampled_from(["0", "1", "accept", "later", "unsure", "undo", "reopen", "other"]), max_size=25
)


@given(steps=STEPS)
@settings(max_examples=60)
def test_files_say_what_was_decided_whatever_the_order(scratch: Path, steps: list[str]) -> None:
    folder = scratch / "case"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    out = folder / "out.jsonl"
    every = items(folder, LINES, all_questions=True)
    wanted: dict[tuple[str, str], int | None] = {}  # None = unsure
    made: list[tuple[str, str] | None] = []
    store = Store(out)
    session = Session(every, store)
    for step in steps:
        item = session.current
        if step == "undo":
            assert session.undo() == bool(made)
            if made and (key := made.pop()) is not None:
                del wanted[key]
        elif step in ("reopen", "other"):
            store.close()
            store = Store(out)
            made = []
            session = Session(every if step == "reopen" else every[::-1], store)
        elif item is not None:
            key = (item.row.id or "", item.name)
            made.append(None if step == "later" else key)
            if step == "later":
                session.later()
            elif step == "unsure":
                session.unsure()
                wanted[key] = None
            else:
                index = item.proposed if step == "accept" else int(step)
                assert index is not None
                session.answer(index)
                wanted[key] = index
        options = {"is": ("yes", "no"), "which": ("a", "b", "c"), "how": ("0", "1", "2")}
        told = {key: options[key[1]][index] for key, index in wanted.items() if index is not None}
        assert labels(out) == told
        left = len(every) - len(wanted)
        assert session.summary.left == left
        assert sum(not store.decided(one) for one in every) == left
    store.close()
    found = skipped_file(out)
    rows = [json.loads(text) for text in found.read_text().splitlines()] if found.exists() else []
    unsure = {(row["id"], name) for row in rows for name in row["metadata"]["skipped"]}
    assert unsure == {key for key, index in wanted.items() if index is None}
    assert names(folder) <= {"queue.jsonl", "out.jsonl", "out.skipped.jsonl"}


def test_a_line_that_a_kill_has_torn_is_asked_again_and_the_others_stand(tmp_path: Path) -> None:
    every, out = items(tmp_path, LINES), tmp_path / "out.jsonl"
    with Store(out) as store:
        for item in every[:3]:
            store.answer(item, 0)
    whole = out.read_bytes()
    second = whole.rindex(b"\n", 0, -1) + 1
    for cut in (*range(second, len(whole), 17), len(whole) - 2, len(whole) - 1):
        out.write_bytes(whole[:cut])
        with Store(out) as store:
            decided = [store.decided(item) for item in every]
            torn = second < cut < len(whole) - 1  # without its line end the last line is whole
            assert decided == [True, True, cut == len(whole) - 1, False], cut
            assert store.torn == ([out] if torn else [])
            if not decided[2]:
                store.answer(every[2], 0)
        assert out.read_bytes() == whole


def test_a_question_whose_wording_has_changed_is_asked_again(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    first = items(tmp_path, [line(1)], all_questions=True)
    other = {**QUESTIONS, "which": {**CHOICE, "instructions": "Which one?"}}
    second = items(tmp_path, [line(1, questions=other)], all_questions=True)
    with Store(out) as store:
        for item in first:
            store.answer(item, 0)
        assert [store.decided(item) for item in second] == [True, False, True]
        store.answer(second[1], 2)
        assert [store.decided(item) for item in first] == [True, False, True]
        assert labels(out) == {("r1", "is"): "yes", ("r1", "which"): "c", ("r1", "how"): "0"}
        store.undo()
        assert labels(out)["r1", "which"] == "a"


def test_rows_of_others_in_the_file_stay_as_they_are(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    theirs = {"id": "x", "state": "theirs", "questions": {"q": NOUL}, "answers": {"q": "yes"}, "more": [1]}
    twice = {**theirs, "questions": {"p": NOUL}, "answers": {"p": False}}
    write(out, [theirs, b"", twice])
    with Store(out) as store:
        (item,) = items(tmp_path, [line(1)])
        store.answer(item, 0)
        store.undo()
    (row,) = (json.loads(text) for text in out.read_text().splitlines())
    assert row == {**theirs, "questions": {"q": NOUL, "p": NOUL}, "answers": {"q": "yes", "p": False}}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"{", "row 1: JSON decode error"),
        (b'{"state": 3}', "row 1: state: Input should be a string"),
        (b'{"state": "x", "answers": {"q": true}}', "row 1: answers.q: the row does not bring this question"),
        (b'{"id": "r1", "state": "state 1", "answers": [true]}', "row 1: answers: Input should be a valid"),
        (b"[]", "row 1: "),
    ],
)
def test_a_file_of_something_else_is_refused_and_left_alone(tmp_path: Path, text: bytes, reason: str) -> None:
    out = tmp_path / "out.jsonl"
    out.write_bytes(text + b"\n")
    with pytest.raises(ReviewError, match=reason):
        Store(out)
    assert out.read_bytes() == text + b"\n"
    out.write_bytes(text)  # nor is it taken for a line that a kill cut off
    with pytest.raises(ReviewError, match=reason):
        Store(out)
    assert out.read_bytes() == text


@pytest.mark.parametrize(
    "text",
    [
        b"a note of mine",
        b'"{',
        b'{"state": "x", "questions": {"q": {"type": "noul"}}, "answers": {"q": "ture"}}',
        b'{"id": 3} and more',
    ],
)
def test_a_last_line_of_somebody_else_is_refused_and_left_alone(tmp_path: Path, text: bytes) -> None:
    out = tmp_path / "out.jsonl"
    with Store(out) as store:
        store.answer(items(tmp_path, [line(1)])[0], 0)
    both = out.read_bytes() + text
    out.write_bytes(both)
    with pytest.raises(ReviewError, match="row 2: "):
        Store(out)
    assert out.read_bytes() == both


THEIRS = json.dumps({"id": "x", "state": "theirs", "questions": {"q": NOUL}, "answers": {"q": "yes"}})


def test_rows_that_somebody_appends_meanwhile_stay(tmp_path: Path) -> None:
    out, every = tmp_path / "out.jsonl", items(tmp_path, LINES, all_questions=True)
    with Store(out) as store:
        store.answer(every[0], 0)
        with out.open("a") as file:
            file.write(THEIRS + "\n")
        store.answer(every[1], 0)  # the first row again, so the file is written anew
        store.undo()
        assert labels(out) == {("r1", "is"): "yes", ("x", "q"): "yes"}
        with out.open("a") as file:
            file.write("what is this\n")
        before = out.read_bytes()
        for _ in range(2):
            with pytest.raises(OSError, match="somebody else has changed it"):
                store.answer(every[1], 0)
        assert out.read_bytes() == before


def test_a_line_without_its_end_that_somebody_appends_meanwhile_stays_a_line(tmp_path: Path) -> None:
    out, every = tmp_path / "out.jsonl", items(tmp_path, LINES, all_questions=True)
    with Store(out) as store:
        store.answer(every[0], 0)
        with out.open("a") as file:
            file.write(THEIRS)
        other = next(item for item in every if item.row.id != every[0].row.id)
        store.answer(other, 0)
        kept = labels(out)
        assert kept["x", "q"] == "yes"
        assert len(kept) == 3


@pytest.mark.parametrize("theirs", ["x", 3, ["which"], {"which": "x"}, {"which": "unsure", "is": "unsure"}])
def test_what_a_row_says_about_skipping_is_not_taken_for_a_decision(tmp_path: Path, theirs: object) -> None:
    queue = [line(1, input={"metadata": {"skipped": theirs, "kept": 1}})]
    for decide in (lambda store, item: store.answer(item, 0), lambda store, item: store.unsure(item)):
        (item,) = items(tmp_path, queue)
        with Store(tmp_path / "out.jsonl") as store:
            assert not store.decided(item)
            decide(store, item)
        with Store(tmp_path / "out.jsonl") as store:  # what it has written, it reads
            assert store.decided(item)
            store.answer(item, 1)
        (row,) = (json.loads(text) for text in (tmp_path / "out.jsonl").read_text().splitlines())
        assert row["metadata"]["kept"] == 1
        (tmp_path / "out.jsonl").unlink()
        skipped_file(tmp_path / "out.jsonl").unlink(missing_ok=True)


def test_skipped_rows_are_a_queue_for_another_reviewer(tmp_path: Path) -> None:
    with Store(tmp_path / "out.jsonl") as store:
        for item in items(tmp_path, LINES[:1], all_questions=True):
            store.unsure(item)
    found = load_queue(tmp_path / "out.skipped.jsonl", out=tmp_path / "second.jsonl").items
    with Store(tmp_path / "second.jsonl") as store:
        store.answer(found[0], 0)
        store.unsure(found[1])
    with Store(tmp_path / "second.jsonl") as store:
        assert [store.decided(item) for item in found] == [True, True, False]
    assert "skipped" not in (tmp_path / "second.jsonl").read_text()


def test_two_lines_of_a_skipped_row_become_one_with_the_marks_of_both(tmp_path: Path) -> None:
    row = {"id": "r1", "state": "state 1"}
    marked = [
        {**row, "questions": {name: QUESTIONS[name]}, "metadata": {"skipped": {name: "unsure"}}}
        for name in ("is", "which")
    ]
    write(tmp_path / "out.skipped.jsonl", marked)
    with Store(tmp_path / "out.jsonl") as store:
        every = items(tmp_path, LINES[:1], all_questions=True)
        assert [store.decided(item) for item in every] == [True, True, False]


def test_fields_that_are_null_are_as_good_as_none(tmp_path: Path) -> None:
    row = {"id": "r1", "state": "state 1", "questions": None, "answers": None, "metadata": None}
    for name in ("out.jsonl", "out.skipped.jsonl"):
        write(tmp_path / name, [row])
    first, second, *_ = items(tmp_path, LINES[:1], all_questions=True)
    with Store(tmp_path / "out.jsonl") as store:
        store.answer(first, 0)
        store.unsure(second)
        assert (store.decided(first), store.decided(second)) == (True, True)


@pytest.mark.parametrize("name", ["out.jsonl", "out.skipped.jsonl", "circle.jsonl"])
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, name: str) -> None:
    if name == "circle.jsonl":
        (tmp_path / name).symlink_to(name)
    else:
        os.mkfifo(tmp_path / name)
    with pytest.raises(ReviewError, match=name):
        Store(tmp_path / ("circle.jsonl" if name == "circle.jsonl" else "out.jsonl"))


def test_two_at_once_are_refused(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    with Store(out), pytest.raises(ReviewError, match=r"out\.jsonl: another jev review is writing to it"):
        Store(out)
    Store(out).close()
    assert names(tmp_path) == set()
    # The rows that one has skipped may be decided by another, but not while the first one goes on.
    with (
        Store(out),
        pytest.raises(ReviewError, match=r"out\.skipped\.jsonl: another jev review is writing to it"),
    ):
        Store(skipped_file(out))
    assert names(tmp_path) == set()


def test_a_link_stays_one_and_locks_what_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "link.jsonl").symlink_to("out.jsonl")
    every = items(tmp_path, LINES, all_questions=True)
    with Store(tmp_path / "link.jsonl") as store:
        with pytest.raises(ReviewError, match="another jev review"):
            Store(tmp_path / "out.jsonl")
        store.answer(every[0], 0)
        store.answer(every[1], 0)
    assert (tmp_path / "link.jsonl").is_symlink()
    assert labels(tmp_path / "out.jsonl") == {("r1", "is"): "yes", ("r1", "which"): "a"}


@pytest.mark.parametrize("name", ["out.txt", "no/out.jsonl", "folder.jsonl"])
def test_what_cannot_be_written_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(ReviewError, match="--out "):
        Store(tmp_path / name)


def test_what_a_full_disk_refuses_is_not_kept(tmp_path: Path) -> None:
    every, out = items(tmp_path, LINES, all_questions=True), tmp_path / "out.jsonl"
    session = Session(every, store := Store(out))
    for _ in range(3):
        session.answer(0)
    before = out.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 10, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):  # a row that is new
            session.answer(0)
        assert out.read_bytes() == before
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    session.answer(0)
    before = out.read_bytes()
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) - 10, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):  # a row that is there
            session.answer(0)
        assert out.read_bytes() == before
        locks = {".out.jsonl.lock", ".out.skipped.jsonl.lock"}
        assert names(tmp_path) == {*locks, "out.jsonl", "queue.jsonl"}
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert session.summary.reviewed == 4
    session.answer(1)
    assert labels(out)["r2", "which"] == "b"
    store.close()
