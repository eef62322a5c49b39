"""Questions over states of other rows: `python crossed.py SEED_DIR ROWS.jsonl OUT.jsonl --state STATE.pt`.

Nobody has answered these, so a model does: its mean log probability over several orders of the options
becomes the soft label. What is trained on them answers alike in every order, also where it is unsure, and
stays near that model on questions that do not fit the state, as those of new tasks do not at first.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import jev._before_torch  # noqa: F401 - before torch

import torch  # isort: skip
from data import TWIN, cut
from export import blend
from fast import Fast
from packs import pack

from jev.engine import Engine
from jev.schemas import Choice, Question, Row, alternatives
from jev.tune.augment import NONE
from jev.tune.examples import Example, Labelled, prepare

OWN = ("wordnet", "pairs", "manner", "packages", "reasoning", "tools", "entailment", "endings", "passages")
"""Sources whose questions are asked about states of the same source: they speak of its shape."""

ORDERS, MOST_OPTIONS, MOST_QUESTIONS = 4, 12, 3
LONGEST = 700
STEP_ROWS = 3000
POOL = 1000


def source(row: Row) -> str:
    """Which rows may exchange questions with this one."""
    name = (row.id or "").rpartition("-")[0]
    return name if name in OWN else "any"


def crossed(rows: list[Row], random: Random) -> Iterator[tuple[Row, dict[str, Question]]]:
    """Rows in random order, each with questions of another row of a like source."""
    alike: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        alike[source(row)].append(row)
    for row in random.sample(rows, len(rows)):
        other = random.choice(alike[source(row)])
        questions = {
            name: question
            for name, question in (other.questions or {}).items()
            if 2 <= len(alternatives(question)) <= MOST_OPTIONS
        }
        names = random.sample(sorted(questions), min(len(questions), MOST_QUESTIONS))
        if names:
            yield row, {name: questions[name] for name in names}


def orders(count: int, random: Random) -> list[list[int]]:
    """Different orders of that many options, each with its reverse."""
    if count == 2:
        return [[0, 1], [1, 0]]
    found: list[list[int]] = []
    while len(found) < ORDERS:
        order = random.sample(range(count), count)
        if order not in found:
            found += [order, order[::-1]]
    return found


def reordered(questions: dict[str, Question], random: Random) -> dict[str, Labelled]:
    """Each question, a choice in several orders; what the target is does not matter."""
    found: dict[str, Labelled] = {}
    for name, question in questions.items():
        count = len(alternatives(question))
        flat = (1 / count,) * count
        if not isinstance(question, Choice):
            found[f"{name}{TWIN}{list(range(count))}"] = Labelled(question, flat)
            continue
        options = list(question.criteria.items())
        for order in orders(count, random):
            turned = question.model_copy(update={"criteria": dict(options[one] for one in order)})
            found[f"{name}{TWIN}{order}"] = Labelled(turned, flat)
    return found


class Teacher:
    """A model that answers questions in several orders."""

    def __init__(self, engine: Engine, dtype: torch.dtype = torch.bfloat16) -> None:
        engine.model.text.skip_silent_experts()
        self.context, self.fast = engine.context, Fast(engine.model, dtype)
        self.newline = engine.context.tokenizer.encode("\n")[0]
        self.tail = len(engine.context.template.answer_turn)

    @torch.no_grad()
    def answers(
        self, asked: list[tuple[Row, dict[str, Question]]], random: Random
    ) -> Iterator[tuple[Row, dict[str, Question], dict[str, list[float]]]]:
        """Each row with its questions and their probabilities, in the order of the alternatives."""
        prepared, whose = [], {}
        for row, questions in asked:
            example = Example(row.state, reordered(questions, random))
            one = prepare(example, self.context, random, how=NONE)
            if one is not None and one.prompt.rows < LONGEST * ORDERS:
                prepared.append(one)
                whose[id(one)] = (row, questions)
        for batch in cut(prepared, random, STEP_ROWS):
            logits = iter(self.fast(pack(batch, self.newline, self.tail)).logits)
            for one in batch:
                logs: dict[str, list[torch.Tensor]] = defaultdict(list)
                for read in one.reads:
                    name, _, order = read.question.partition(TWIN)
                    places = json.loads(order)
                    row_logs = torch.log_softmax(next(logits)[: len(places)], -1)
                    logs[name].append(torch.empty(len(places)).index_copy_(0, torch.tensor(places), row_logs))
                row, questions = whose[id(one)]
                yield (
                    row,
                    questions,
                    {name: torch.stack(rows).mean(0).softmax(-1).tolist() for name, rows in logs.items()},
                )


def written(row: Row, questions: dict[str, Question], answers: dict[str, list[float]]) -> dict[str, Any]:
    """A row with soft labels."""
    return {
        "id": f"crossed-{row.id}",
        "state": row.state,
        "questions": {
            name: question.model_dump(mode="json", exclude_none=not isinstance(question, Choice))
            for name, question in questions.items()
        },
        "soft": {
            name: {one: round(p, 5) for one, p in zip(alternatives(questions[name]), found, strict=True)}
            for name, found in answers.items()
        },
    }


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("rows", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--state", type=Path, nargs="*", default=[], help="as for quick.py")
    parser.add_argument("--part", default="mean", choices=("mean", "text"))
    parser.add_argument("--mix", type=float, default=1.0)
    parser.add_argument("--count", type=int, default=12_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(1)
    random = Random(given.seed)
    engine = Engine.load(given.model)
    if given.state:
        blend(engine, given.state, given.part, given.mix)
    teacher = Teacher(engine)
    lines = given.rows.read_text(encoding="utf-8").rstrip("\n").split("\n")
    rows = [Row.model_validate_json(line) for line in random.sample(lines, min(len(lines), 3 * given.count))]
    pairs = crossed(rows, random)
    count = 0
    with given.out.open("w", encoding="utf-8") as file:
        while count < given.count:
            asked = [one for _, one in zip(range(POOL), pairs, strict=False)]
            if not asked:
                sys.exit(f"only {count} rows could be made of {given.rows}")
            for row, questions, answers in teacher.answers(asked, random):
                file.write(json.dumps(written(row, questions, answers), ensure_ascii=False) + "\n")
                count += 1
            file.flush()


if __name__ == "__main__":
    main()
