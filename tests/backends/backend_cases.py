"""Requests that every backend must answer alike, and how far two answers are apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jev.schemas import (
    Answer,
    Choice,
    Noul,
    NoulAnswer,
    Score,
    SystemOneRequest,
    SystemOneResponse,
)

QUESTIONS = {
    "refund": Noul("Does the customer want money back?"),
    "topic": Choice("What is it about?", {"billing": "payments and refunds", "travel": None, "music": None}),
    "anger": Score("How upset is the customer?", ["calm", "annoyed", "furious"]),
    "only": Choice(["one"]),
}

STATE = "My card was charged twice and nobody answers my mails."

REQUESTS: dict[str, dict[str, Any]] = {
    "one read": {"samples": 1},
    "three reads": {"samples": 3, "seed": 7, "instructions": "Be strict."},
    "extended": {"auto_threshold": 0.0, "auto_max": 2},
    "rotated": {"samples": 1, "permutations": 3},
    "joint": {"layout": "joint", "samples": 2, "chunk_rows": 16},
}
"""What may be asked beyond state and questions, by what is tested with it."""


def request(**fields: Any) -> SystemOneRequest:
    return SystemOneRequest(**{"state": STATE, "questions": QUESTIONS, **fields})


def numbers(response: SystemOneResponse) -> dict[str, dict[str, float]]:
    """Every question's distribution."""
    return {name: distribution(answer) for name, answer in response.answers.items()}


def distribution(answer: Answer) -> dict[str, float]:
    return {"yes": answer.noul} if isinstance(answer, NoulAnswer) else answer.probabilities


def distance(one: SystemOneResponse, other: SystemOneResponse) -> float:
    """Largest difference of a probability; questions and alternatives must be the same."""
    mine, theirs = numbers(one), numbers(other)
    assert list(mine) == list(theirs)
    return max(_distance(mine[name], theirs[name]) for name in mine)


def _distance(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    assert list(one) == list(other)
    return max(abs(one[key] - other[key]) for key in one)
