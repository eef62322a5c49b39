"""Proves that a teacher is asked once for each row, is mixed in as asked for, and is learned from alone."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest
from tune_cases import QUESTIONS, job, row, write

from jev.decide import to_answer
from jev.engine import Engine
from jev.errors import InvalidRequestError, ResponseError
from jev.material import NOTHING
from jev.model.tiny import write_tiny_checkpoint
from jev.quality.cache import ReplyCache
from jev.quality.data import read_rows
from jev.schemas import SystemOneRequest, SystemOneResponse, Usage
from jev.tune.data import Bad
from jev.tune.gather import lay_out
from jev.tune.recipe import Recipe, TuneError
from jev.tune.run import run
from jev.tune.teacher import lessons, parsed, spec_of
from jev.tune.trainer import Stopped


class Fake:
    """Says the same of everything, and cannot answer about "odd"."""

    name = model = "fake"
    concurrency = 2

    def __init__(self) -> None:
        self.asked: list[SystemOneRequest] = []

    async def decide(self, request: SystemOneRequest) -> SystemOneResponse:
        self.asked.append(request)
        if request.state == "odd":
            raise InvalidRequestError.at("state", msg="too odd")
        said = {"colour": (0.5, 0.25, 0.25), "red": (0.5, 0.5)}
        answers = {name: to_answer(one, said[name]) for name, one in request.questions.items()}
        return SystemOneResponse(model="fake", answers=answers, usage=Usage(input_tokens=1, output_tokens=1))

    async def aclose(self) -> None:
        pass


ROWS = [
    {"state": "a", "answers": {"colour": "blue"}},
    {"state": "b", "answers": {"red": True}, "soft": {"colour": {"green": 2, "red": 2}}},
    {"state": "odd", "answers": {"red": False}},
    {"state": "odd"},
]


def test_what_is_learned(tmp_path: Path, fresh: Engine) -> None:
    rows = read_rows(write(tmp_path / "rows.jsonl", ROWS), QUESTIONS)
    teacher = Fake()
    with ReplyCache(tmp_path / "cache") as cache:
        taught = asyncio.run(lessons(rows, teacher, cache=cache, options={"instructions": "Be strict."}))
        # Soft labels of the row's own are not asked for.
        both = {"colour", "red"}
        assert [set(one.questions) for one in teacher.asked] == [both, {"red"}, both, both]
        assert {one.instructions for one in teacher.asked} == {"Be strict."}
        asyncio.run(lessons(rows, teacher, cache=cache, options={"instructions": "Be strict."}))
        assert len(teacher.asked) == 4 + 2  # only what was not answered is asked again
    recipe = Recipe.of(soft_weight=0.2)
    laid, bad = lay_out(rows, [NOTHING] * 4, taught, fresh.context, recipe, "rows")
    targets = [{name: one.target for name, one in each.example.questions.items()} for each in laid]
    assert targets[0]["colour"] == pytest.approx((0.1, 0.85, 0.05))
    assert targets[0]["red"] == pytest.approx((0.5, 0.5))  # nobody reviewed it
    assert targets[1]["colour"] == pytest.approx((0.5, 0.0, 0.5))
    assert targets[1]["red"] == pytest.approx((0.9, 0.1))
    assert targets[2] == {"red": (0.0, 1.0)}
    why = "InvalidRequestError: state: too odd"
    assert bad == [
        Bad("rows", 3, f"the teacher did not answer ({why}): only its own answers count"),
        Bad("rows", 4, f"the teacher did not answer: {why}"),
    ]


@pytest.fixture
def teacher(monkeypatch: pytest.MonkeyPatch) -> Fake:
    """What a run asks, whatever teacher its job names."""
    fake = Fake()
    monkeypatch.setattr("jev.tune.check.open_backend", lambda *_, **__: fake)
    return fake


def test_rows_that_the_teacher_did_not_answer_are_bad(tmp_path: Path, small: Path, teacher: Fake) -> None:
    rows = [row(0), row(1), {**row(2), "state": "odd"}]
    one = job(
        tmp_path, small, data=write(tmp_path / "rows.jsonl", rows), teacher="http://u:secret@h", held_out=0.0
    )
    with pytest.raises(TuneError, match="1 row is bad, and --strict was given; nothing was trained"):
        run(replace(one, strict=True))
    report = run(one)
    assert report is not None
    assert report["data"]["learned_rows"] == 3
    (bad,) = report["data"]["bad"]
    assert (bad["row"], "only its own answers count" in bad["reason"]) == (3, True)
    assert len(teacher.asked) == 4  # what was answered is kept, also by a run that was strict
    assert report["data"]["teacher"] == "systemone=http://h"
    assert all("secret" not in path.read_text() for path in one.out.rglob("*.json*"))


def test_a_teacher_that_answers_nothing_ends_the_run(tmp_path: Path, small: Path, teacher: Fake) -> None:
    rows = write(tmp_path / "rows.jsonl", [{**row(0), "state": "odd"}] * 3)
    one = job(tmp_path, small, data=rows, teacher="http://h", held_out=0.0)
    with pytest.raises(ResponseError, match=r"--teacher: it answered none of 3 rows: .*too odd"):
        run(one)


def test_a_run_goes_on_with_the_answers_that_it_began_with(
    tmp_path: Path, small: Path, teacher: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = write(tmp_path / "rows.jsonl", [row(0), row(1), {"state": "odd"}, {**row(2), "state": "odd"}])
    one = job(tmp_path, small, data=rows, teacher="http://h", held_out=0.0, steps=6)
    asked = iter((False, False, True))
    with pytest.raises(Stopped):
        run(one, stop=lambda: next(asked))

    async def decide(request: SystemOneRequest) -> SystemOneResponse:
        raise AssertionError("asked again")

    monkeypatch.setattr(teacher, "decide", decide)
    report = run(one)
    assert report is not None
    assert report["training"]["steps"] == 6
    assert report["data"]["learned_rows"] == 3


def test_another_answer_of_the_teacher_is_another_run(tmp_path: Path, small: Path, teacher: Fake) -> None:
    rows = write(tmp_path / "rows.jsonl", [row(0), row(1), row(2)])
    one = job(tmp_path, small, data=rows, teacher="http://h", held_out=0.0, steps=6)
    with pytest.raises(Stopped):
        run(one, stop=lambda: True)
    kept = one.out / "training" / "teacher.jsonl"
    lines = kept.read_text().splitlines(keepends=True)
    kept.write_text("".join(lines[:-1]) + lines[-1][:20])
    with pytest.raises(TuneError, match="another run: rows, attachments and teacher's answers"):
        run(one)


def test_answers_that_a_kill_cut_short_are_asked_again(tmp_path: Path, small: Path, teacher: Fake) -> None:
    rows = write(tmp_path / "rows.jsonl", [row(0), row(1)])
    one = job(tmp_path, small, data=rows, teacher="http://h", held_out=0.0, steps=1)
    (one.out / "training").mkdir(parents=True)
    (one.out / "training" / "teacher.jsonl").write_text('{"key":"a')
    assert run(one) is not None
    assert len(teacher.asked) == 2


def test_another_checkpoint_teaches(tmp_path: Path, small: Path) -> None:
    sure = write_tiny_checkpoint(tmp_path / "teacher", seed=5, layers=2, hidden=32, experts=4, vision=False)
    rows = write(tmp_path / "rows.jsonl", [{"state": f"{n} things"} for n in range(8)])
    more = {"teacher": f"torch={sure}", "teacher_key": "for servers", "held_out": 0.0}
    one = job(tmp_path, small, data=rows, full=True, steps=12, lr=0.01, **more)
    report = run(one)
    assert report is not None
    assert report["data"]["learned_rows"] == 8
    assert report["data"]["questions"][0]["answers"] == {"(soft)": 8}
    (kept,) = (one.out / "training").glob("teacher.jsonl")
    assert len([json.loads(line) for line in kept.read_text().splitlines()]) == 8
    losses = [loss for _, loss, _, _ in report["training"]["curve"]]
    assert sum(losses[-4:]) < sum(losses[:4])
    assert "Teacher: `torch=" in (one.out / "README.md").read_text()


def test_an_address_is_a_server() -> None:
    assert spec_of("http://127.0.0.1:8000") == "systemone=http://127.0.0.1:8000"
    assert spec_of("torch:int8=folder") == "torch:int8=folder"
    assert parsed("systemone=https://u:p@host:1/a@b").shown == "systemone=https://host:1/a@b"
    assert parsed("torch=folder@2").shown == "torch=folder@2"
