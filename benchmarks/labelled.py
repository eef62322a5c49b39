"""Labelled texts as closed questions: one folder a set, with `test.jsonl.gz` in it.

A row is `{"id", "text", "label"}`, with `options` as well where each row has options of its own;
`text` is a string or an object of named parts.
"""

from __future__ import annotations

import gzip
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jev import Choice, Noul

MOST_OPTIONS = 10
"""Larger label sets are cut to the right label and random others, seeded by the row."""

_INSTRUCTIONS = {
    "trec": "What kind of answer does the question ask for?",
    "sst2": "What is the sentiment of this sentence from a film review?",
    "sst5": "What is the sentiment of this sentence from a film review?",
    "clinc150": "What does the user want?",
    "banking77": "What does the customer's message ask about?",
    "snips": "What does the user want the assistant to do?",
    "hwu64": "What does the user want the assistant to do?",
    "sms_spam": "Is this message spam?",
    "tweeteval_emotion": "Which emotion does the tweet express?",
    "tweeteval_sentiment": "What is the sentiment of the tweet?",
    "subj": "Is the sentence subjective or objective?",
}
_DEFAULT_INSTRUCTIONS = "Which label fits best?"


@dataclass(frozen=True)
class Example:
    """A row as a question.

    Attributes:
        id: the row's id.
        state: its text.
        question: a choice over labels, or a yes/no question about one label.
        alternatives: names of the answers in the question's order.
        gold: index of the right one.

    """

    id: str
    state: Any
    question: Choice | Noul
    alternatives: tuple[str, ...]
    gold: int


def load(folder: Path, name: str, rows: int, *, seed: int = 0, yes_no: bool = False) -> list[Example]:
    """At most `rows` examples of a set's test part, a random sample fixed by `seed`.

    With `yes_no`, sets of two labels are asked as yes/no questions about the second one.

    Raises:
        ValueError: for a set that has several labels a row.
        OSError: for a set that is not there.

    """
    with gzip.open(folder / name / "test.jsonl.gz", "rt", encoding="utf-8") as file:
        data = [json.loads(line) for line in file]
    if any("label" not in row for row in data):
        raise ValueError(f"{name} is not a set of single labels")
    labels = sorted({row["label"] for row in data})
    sample = random.Random(f"{seed}/{name}").sample(data, min(rows, len(data)))
    as_noul = yes_no and len(labels) == 2 and "options" not in data[0]
    return [_noul(row, labels) if as_noul else _choice(row, labels, name, seed) for row in sample]


def _choice(row: dict[str, Any], labels: list[str], name: str, seed: int) -> Example:
    options = list(row.get("options") or labels)
    chance = random.Random(f"{seed}/{row['id']}")
    if len(options) > MOST_OPTIONS:
        others = [option for option in options if option != row["label"]]
        options = [row["label"], *chance.sample(others, MOST_OPTIONS - 1)]
    chance.shuffle(options)
    question = Choice(_INSTRUCTIONS.get(name, _DEFAULT_INSTRUCTIONS), options)
    return Example(row["id"], row["text"], question, tuple(options), options.index(row["label"]))


def _noul(row: dict[str, Any], labels: list[str]) -> Example:
    question = Noul(f"Does the label {labels[1]!r} fit, rather than {labels[0]!r}?")
    return Example(row["id"], row["text"], question, (labels[1], labels[0]), int(row["label"] == labels[0]))


def macro_f1(gold: list[str], predicted: list[str]) -> float:
    """Mean F1 over every label that occurs as gold or as a prediction."""
    scores = []
    for label in {*gold, *predicted}:
        pairs = list(zip(gold, predicted, strict=True))
        hits = sum(g == p == label for g, p in pairs)
        misses = sum((g == label) != (p == label) for g, p in pairs)
        scores.append(2 * hits / (2 * hits + misses))
    return sum(scores) / len(scores)
