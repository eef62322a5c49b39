"""Write the development suite: `python suite.py DATA OUT_DIR --rows 150`.

`seen.jsonl` holds test rows of tasks whose train rows are in the mixture, `unseen.jsonl` those of tasks
that are not: sets whose licence does not allow shipping, and a few that are held out on purpose. Question
ids are task names, so that `jev quality run` reports every task by itself. `many.jsonl` asks trained tasks
with all their labels at once.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

HELD_OUT = ("snips", "nlu_askubuntu", "nlu_chatbot", "nlu_webapplications")
"""Tasks that may be trained on but are not."""

ASKS = ["What is the intent of the message?", "Which category fits the question?", "What does the user want?"]

MANY = ("banking77", "hwu64", "goemotions", "bitext_support")
"""Sets of 77, 64, 28 and 27 labels."""


def decisions(folder: Path) -> list[tuple[str, bool, dict[str, Any]]]:
    """Task, whether it is unseen, and a row with at most one question of a type."""
    found = []
    with gzip.open(folder / "decisions" / "test.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            task = row["source"].rsplit("-", 2)[0]
            questions: dict[str, Any] = {}
            answers: dict[str, Any] = {}
            for name, question in row["questions"].items():
                words = " word" in question["instructions"] or "mention" in question["instructions"]
                key = "words" if words else f"{task}.{question['type']}"
                if key not in questions:
                    questions[key], answers[key] = question, row["answers"][name]
            unseen = not row["shippable"] or task in HELD_OUT
            if unseen:
                questions.pop("words", None)
                answers.pop("words", None)
            if questions:
                found.append(
                    (
                        task,
                        unseen,
                        {"id": row["id"], "state": row["state"], "questions": questions, "answers": answers},
                    )
                )
    return found


def whole(folder: Path, task: str, random: Random) -> list[dict[str, Any]]:
    """Rows of a set, each with all its labels."""
    with gzip.open(folder / task / "test.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    labels = sorted({row["label"] for row in rows})
    found = []
    for row in rows:
        shown = {
            label if label != "None" else "none of these": None
            for label in random.sample(labels, len(labels))
        }
        answer = row["label"] if row["label"] != "None" else "none of these"
        question = {"type": "choice", "instructions": random.choice(ASKS), "criteria": shown}
        key = f"{task}.choice"
        found.append(
            {"id": row["id"], "state": row["text"], "questions": {key: question}, "answers": {key: answer}}
        )
    return found


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rows", type=int, default=150, help="most rows of a task")
    given = parser.parse_args()
    random = Random(5)
    parts: dict[str, list[tuple[str, dict[str, Any]]]] = {"seen": [], "unseen": [], "many": []}
    for task, unseen, row in decisions(given.data):
        parts["unseen" if unseen else "seen"].append((task, row))
    for task in HELD_OUT[1:]:
        parts["unseen"] += [(task, row) for row in whole(given.data, task, random)]
    for task in MANY:
        parts["many"] += [(task, row) for row in whole(given.data, task, random)]
    given.out.mkdir(parents=True, exist_ok=True)
    for name, rows in parts.items():
        taken: Counter[str] = Counter()
        with (given.out / f"{name}.jsonl").open("w", encoding="utf-8") as file:
            for task, row in rows:
                if taken[task] < given.rows:
                    taken[task] += 1
                    file.write(json.dumps(row, ensure_ascii=False) + "\n")
        print(name, sum(taken.values()), dict(sorted(taken.items())))


if __name__ == "__main__":
    main()
