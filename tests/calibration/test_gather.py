"""Labelled rows become answers by question, each row once, and what cannot be used is said, not lost."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jev.backends.torch import TorchBackend
from jev.calibration.build import Rules, build
from jev.calibration.file import CalibrationError
from jev.calibration.gather import Answered, gather, identity_of, request_of, useful
from jev.calibration.identity import Identity
from jev.engine import Engine
from jev.errors import InvalidRequestError
from jev.quality.data import LabelledRow, read_rows
from jev.schemas import Choice, Noul, Question, Score, SystemOneRequest, SystemOneResponse
from jev.settings import Settings

QUESTIONS: dict[str, Question] = {
    "a": Noul("Is it?"),
    "b": Choice("Which?", ["x", "y"]),
    "c": Noul("Is it not?"),
}


def rows_of(tmp_path: Path, *rows: dict[str, Any]) -> list[LabelledRow]:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return read_rows(path, QUESTIONS)


class Spy:
    """The engine behind a backend that remembers what it was asked, and refuses some states."""

    name, concurrency = "spy", 4

    def __init__(self, engine: Engine, refuse: str = "") -> None:
        self.model = engine.name
        self.engine, self.refuse = engine, refuse
        self.asked: list[SystemOneRequest] = []

    async def decide(self, request: SystemOneRequest) -> SystemOneResponse:
        self.asked.append(request)
        if self.refuse and self.refuse in request.state:
            raise InvalidRequestError.at("state", msg="Too long")
        return self.engine.decide(request)

    async def aclose(self) -> None:
        pass


def test_questions_are_told_apart_by_what_they_ask(small: Engine, tmp_path: Path) -> None:
    own = {"renamed": QUESTIONS["a"].model_dump(), "d": Score("How?", ["p", "q"]).model_dump()}
    rows = rows_of(
        tmp_path,
        {"state": "one", "answers": {"a": True, "b": "y"}},
        {"state": "two", "answers": {"renamed": False, "d": 1}, "questions": own, "weight": 2.0},
        {"state": "two", "answers": {"a": True}},
        {"state": "no label"},
        {"state": "no weight", "answers": {"a": True}, "weight": 0},
    )
    spy = Spy(small)
    found = asyncio.run(gather(useful(rows), spy, {}))
    assert [(one.ids, len(one)) for one in found.questions] == [(["a", "renamed"], 3), (["b"], 1), (["d"], 1)]
    answers = found.questions[0].answers
    assert answers.gold.tolist() == [0, 1, 0]
    assert answers.weights.tolist() == [1, 2, 1]
    assert answers.states[1] == answers.states[2] != answers.states[0]
    plain = small.decide(SystemOneRequest(state="one", questions={"a": QUESTIONS["a"]})).answers["a"]
    assert answers.probabilities[0, 0] == pytest.approx(plain.model_dump()["noul"], abs=1e-6)
    assert sorted(len(request.questions) for request in spy.asked) == [1, 2, 2]
    assert found.failures == []


def test_attachments_are_part_of_the_state(small: Engine, tmp_path: Path) -> None:
    for name in ("one.txt", "two.txt"):
        (tmp_path / name).write_text(name, encoding="utf-8")
    rows = rows_of(
        tmp_path,
        *({"state": "s", "attachments": [name], "answers": {"a": True}} for name in ("one.txt", "two.txt")),
        {"state": "s", "answers": {"a": True}},
    )

    async def run() -> list[str]:
        backend = TorchBackend(small, Settings(extract_workers=1))
        try:
            return (await gather(rows, backend, {})).questions[0].answers.states.tolist()
        finally:
            await backend.aclose()

    assert len(set(asyncio.run(run()))) == 3


def test_a_joint_request_keeps_the_questions_without_labels(small: Engine, tmp_path: Path) -> None:
    rows = rows_of(tmp_path, {"state": "one", "answers": {"b": "y"}})
    spy = Spy(small)
    found = asyncio.run(gather(rows, spy, {"layout": "joint"}))
    assert list(spy.asked[0].questions) == ["a", "b", "c"]
    assert [one.ids for one in found.questions] == [["b"]]
    assert list(request_of(rows[0], {}).questions) == ["b"]


def test_rows_that_are_refused_are_named(small: Engine, tmp_path: Path) -> None:
    rows = rows_of(
        tmp_path, *({"state": text, "answers": {"a": True}} for text in ("fine", "bad", "fine too"))
    )
    found = asyncio.run(gather(rows, Spy(small, refuse="bad"), {}))
    assert len(found.questions[0]) == 2
    (failure,) = found.failures
    assert failure[0] == 2
    assert "Too long" in failure[1]


def test_rows_without_any_label_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match="no row has a reviewed answer"):
        useful(rows_of(tmp_path, {"state": "one"}, {"state": "two", "answers": {"a": True}, "weight": 0}))


def test_who_answers_is_taken_from_the_diagnostics(small: Engine) -> None:
    assert asyncio.run(identity_of(Spy(small))) == small.identity

    class Silent(Spy):
        async def decide(self, request: SystemOneRequest) -> SystemOneResponse:
            return (await super().decide(request)).model_copy(update={"x_diagnostics": None})

    with pytest.raises(CalibrationError, match="'spy' does not say which weights and prompts answer"):
        asyncio.run(identity_of(Silent(small)))


IDENTITY = Identity("m", "0" * 64, "1" * 64)


def answered(name: str, question: Question, n: int, *, yes: float = 0.5, seed: int = 0) -> Answered:
    """Answers that are too sure: stated 0.95, right in three of four."""
    chance = np.random.default_rng(seed)
    found = Answered(name[0] * 64, question)
    for index in range(n):
        gold = 0 if chance.random() < yes else 1
        winner = gold if chance.random() < 0.75 else 1 - gold
        p = (0.95, 0.05) if winner == 0 else (0.05, 0.95)
        found.add(name, p, gold, 1.0, f"{name} {index}")
    return found


def test_questions_need_rows_enough() -> None:
    questions = [answered("a", QUESTIONS["a"], 50), answered("b", QUESTIONS["b"], 49)]
    calibration, skipped = build(questions, IDENTITY, Rules(), name="n")
    (entry,) = calibration.questions
    assert (entry.ids, entry.rows, entry.method, entry.pooled) == (("a",), 50, "temperature", False)
    assert entry.temperature > 1.5
    assert entry.before is not None
    assert entry.after is not None
    assert entry.after.ece < entry.before.ece
    assert "provisional: fewer than 200 rows" in entry.notes
    assert [(one.ids, one.reason) for one in skipped] == [(("b",), "49 labelled rows, 50 are needed")]
    with pytest.raises(CalibrationError, match="b: 49 labelled rows, 50 are needed"):
        build(questions[1:], IDENTITY, Rules(), name="n")
    assert build(questions[1:], IDENTITY, Rules(min_rows=40), name="n")[1] == []


def test_few_rows_share_the_temperature_of_their_type() -> None:
    other = Noul("Is it not?")
    questions = [
        answered("a", QUESTIONS["a"], 300),
        answered("c", other, 20, seed=1),
        answered("d", Noul("Really?"), 30, seed=2),
        answered("b", QUESTIONS["b"], 20, seed=3),
    ]
    calibration, skipped = build(questions, IDENTITY, Rules(pool="type", bias=True), name="n")
    alone, first, second = calibration.questions
    assert (alone.pooled, first.pooled, second.pooled) == (False, True, True)
    assert first.temperature == second.temperature
    assert (first.rows, first.bias) == (20, None)
    assert "the temperature is that of all 350 rows of noul questions" in first.notes
    assert [(one.ids, one.reason) for one in skipped] == [
        (("b",), "20 labelled rows of all choice questions, 50 are needed")
    ]


def test_a_bias_needs_rows_of_every_label() -> None:
    few = answered("a", QUESTIONS["a"], 300, yes=0.1)
    entry = build([few], IDENTITY, Rules(bias=True), name="n")[0].questions[0]
    assert entry.bias is None
    assert any(note.startswith("no bias: label 'yes' has") for note in entry.notes)
    many = answered("a", QUESTIONS["a"], 900, yes=0.15)
    entry = build([many], IDENTITY, Rules(bias=True), name="n")[0].questions[0]
    assert entry.method == "temperature+bias"
    assert entry.bias is not None
    assert entry.bias[0] < 0 < entry.bias[1]
