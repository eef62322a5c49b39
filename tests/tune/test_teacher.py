"""Proves that a teacher is asked once for each row, is mixed in as asked for, and is learned from alone."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from tune_cases import QUESTIONS, job, write

from jev.decide import to_answer
from jev.engine import Engine
from jev.errors import InvalidRequestError
from jev.material import NOTHING
from jev.model.tiny import write_tiny_checkpoint
from jev.quality.cache import ReplyCache
from jev.quality.data import read_rows
from jev.schemas import SystemOneRequest, SystemOneResponse, Usage
from jev.tune.data import Bad
from jev.tune.gather import lay_out
from jev.tune.recipe import Recipe
from jev.tune.run import run
from jev.tune.teacher import lessons, spec_of


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
    assert bad == [Bad("rows", 4, "the teacher did not answer: InvalidRequestError: state: too odd")]


def test_another_checkpoint_teaches(tmp_path: Path, small: Path) -> None:
    sure = write_tiny_checkpoint(tmp_path / "teacher", seed=5, layers=2, hidden=32, experts=4, vision=False)
    rows = write(tmp_path / "rows.jsonl", [{"state": f"{n} things"} for n in range(8)])
    one = job(tmp_path, small, data=rows, teacher=f"torch={sure}", held_out=0.0, full=True, steps=12, lr=0.01)
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
