"""Lines of review queues, and what reads the reviewed rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jev.quality.data import read_rows
from jev.review import Item, load_queue
from jev.schemas import alternatives

NOUL: dict[str, Any] = {"type": "noul", "instructions": "Is it?"}
CHOICE: dict[str, Any] = {
    "type": "choice",
    "instructions": "Which?",
    "criteria": {"a": None, "b": "bees", "c": None},
}
SCORE: dict[str, Any] = {"type": "score", "instructions": "How?", "criteria": ["low", "mid", "high"]}
QUESTIONS = {"is": NOUL, "which": CHOICE, "how": SCORE}


def answers(p: float = 0.6) -> dict[str, Any]:
    """A model's answers to `QUESTIONS`: yes, "b" and level 0, each with this probability."""
    rest = (1 - p) / 2
    return {
        "is": {"type": "noul", "noul": p},
        "which": {
            "type": "choice",
            "choice": "b",
            "probabilities": {"a": rest, "b": p, "c": rest},
            "confidence": 0.1,
        },
        "how": {
            "type": "score",
            "score": 0.5,
            "legend": {"0": "low", "1": "mid", "2": "high"},
            "probabilities": {"0": p, "1": rest, "2": rest},
            "confidence": 0.1,
        },
    }


def line(number: int, question: str = "which", **fields: Any) -> dict[str, Any]:
    """A line of a queue."""
    return {
        "row": number,
        "id": f"r{number}",
        "certainty": 0.6,
        "question": question,
        "answers": answers(),
        "state": f"state {number}",
        "questions": QUESTIONS,
        "input": {"state": f"state {number}"},
        **fields,
    }


def write(path: Path, lines: Sequence[Any]) -> Path:
    """A file of these lines; texts and bytes are lines as they are."""
    raw = (one if isinstance(one, bytes) else json.dumps(one).encode() for one in lines)
    path.write_bytes(b"".join(one + b"\n" for one in raw))
    return path


def items(folder: Path, lines: Sequence[Any], **options: Any) -> list[Item]:
    """The items of a queue of these lines, all of which can be reviewed."""
    found = load_queue(write(folder / "queue.jsonl", lines), out=folder / "out.jsonl", **options)
    assert found.bad == []
    return found.items


def labels(path: Path) -> dict[tuple[str, str], str]:
    """The reviewed answers of a file as everything else reads it: by row id and question, their names."""
    found: dict[tuple[str, str], str] = {}
    for row in read_rows(path) if path.exists() else []:
        for name, index in row.gold.items():
            assert row.row.id is not None
            assert (row.row.id, name) not in found, "two answers"
            found[row.row.id, name] = alternatives(row.questions[name])[index]
    return found
