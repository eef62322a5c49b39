"""Questions over states of other rows: who exchanges with whom, and what the model's answers are."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from random import Random

import pytest
import torch

from jev.engine import Engine
from jev.model.tiny import write_tiny_checkpoint
from jev.model.tuning import label_logits
from jev.schemas import Row
from jev.tune.augment import NONE
from jev.tune.examples import Example, prepare

crossed = import_module("crossed")
data = import_module("data")


def _row(name: str, options: int) -> Row:
    questions = {
        "which": {"type": "choice", "criteria": {f"{name} {one}": None for one in range(options)}},
        "level": {"type": "score", "instructions": name, "criteria": ["low", "middle", "high"]},
        "is": {"type": "noul", "instructions": name},
    }
    return Row.model_validate({"id": name, "state": f"state of {name}", "questions": questions})


def test_rows_exchange_questions_within_their_source() -> None:
    """What speaks of pairs is asked of pairs; long lists are left out."""
    rows = [_row(f"{source}-{one}", 3) for source in ("pairs", "wordnet", "goemotions") for one in range(9)]
    rows += [_row(f"banking77-{one}", 40) for one in range(9)]
    given = {id(question): row for row in rows for question in (row.questions or {}).values()}
    found = list(crossed.crossed(rows, Random(1)))
    assert len(found) == len(rows)
    others = 0
    for row, questions in found:
        givers = {given[id(question)].id for question in questions.values()}
        (giver,) = givers
        assert giver is not None
        assert row.id is not None
        others += giver != row.id
        families = {one.rpartition("-")[0] for one in (giver, row.id)}
        assert len(families) == 1 or families <= {"goemotions", "banking77"}
        assert ("which" in questions) == (not giver.startswith("banking77"))
    assert others > len(rows) / 2


@pytest.mark.parametrize("count", [2, 3, 7])
def test_orders_come_with_their_reverse(count: int) -> None:
    """So that no place is preferred; two options have two orders."""
    orders = crossed.orders(count, Random(count))
    assert len(orders) == len({tuple(order) for order in orders}) == (2 if count == 2 else crossed.ORDERS)
    assert all(order[::-1] in orders and sorted(order) == list(range(count)) for order in orders)


def test_answers_are_the_mean_of_what_the_model_says_in_each_order(tmp_path: Path) -> None:
    """As `label_logits` gives them, up to rounding; what is written can be trained on."""
    engine = Engine.load(write_tiny_checkpoint(tmp_path / "tiny", layers=3, window=512, vision=False))
    teacher = crossed.Teacher(engine, torch.float32)
    row = _row("pairs-1", 3)
    questions = dict(row.questions or {})
    ((found, asked, answers),) = teacher.answers([(row, questions)], Random(3))
    assert found is row
    assert asked == questions
    random, expected = Random(3), dict[str, list[list[float]]]()
    whole = crossed.reordered(questions, random)
    one = prepare(Example(row.state, whole), engine.context, random, how=NONE)  # the same slot noise
    assert one is not None
    assert [read.question for read in one.reads] == list(whole)
    with torch.no_grad():
        rows = label_logits(engine.model, [one.prompt])
    for name, logits in zip(whole, rows, strict=True):
        key, _, order = name.partition(data.TWIN)
        places = json.loads(order)
        logs = torch.log_softmax(logits, -1)
        by_option = [float(logs[places.index(option)]) for option in range(len(places))]
        expected.setdefault(key, []).append(by_option)
    for name, said in expected.items():
        mean = torch.tensor(said).mean(0).softmax(-1)
        assert answers[name] == pytest.approx(mean.tolist(), abs=1e-3)
        assert max(mean) - min(mean) > 0.06, "a flat answer would show nothing"
    line = json.dumps(crossed.written(row, asked, answers))
    example = data.example(line)
    assert example.state == row.state
    for name, labelled in example.questions.items():
        assert labelled.question == questions[name]
        assert labelled.target == pytest.approx(answers[name], abs=1e-4)
