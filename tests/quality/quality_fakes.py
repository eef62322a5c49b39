"""Backends whose answers are known, and rows to ask them."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jev.decide import to_answer
from jev.schemas import Question, SystemOneRequest, SystemOneResponse, Usage, alternatives, render_text

NOUL = {"type": "noul", "instructions": "Is it red?"}
CHOICE = {"type": "choice", "instructions": "Which one?", "criteria": {"ant": None, "bee": None, "cow": None}}
SCORE = {"type": "score", "instructions": "How big?", "criteria": ["small", "middle", "large", "huge"]}
QUESTIONS = {"red": NOUL, "animal": CHOICE, "size": SCORE}

Answers = Callable[[str, str, Question], Sequence[float]]
"""State, question id and question to a distribution over the question's alternatives."""


class Fake:
    """Answers with the distributions that a function gives."""

    model = "fake-1"

    def __init__(self, answers: Answers, name: str = "fake", concurrency: int = 8) -> None:
        self.answers = answers
        self.name = name
        self.concurrency = concurrency
        self.requests: list[SystemOneRequest] = []
        self.in_flight = self.most_in_flight = 0

    async def decide(self, request: SystemOneRequest) -> SystemOneResponse:
        self.requests.append(request)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        await asyncio.sleep(0)
        self.in_flight -= 1
        state = render_text(request.state)
        answers = {
            name: to_answer(question, self.answers(state, name, question))
            for name, question in request.questions.items()
        }
        return SystemOneResponse(
            model=self.model, answers=answers, usage=Usage(input_tokens=10, output_tokens=3)
        )

    async def aclose(self) -> None:
        pass


def truth(state: str, name: str, question: Question) -> np.ndarray:
    """A distribution that the state and the question's id fix, whatever the order of options."""
    names = alternatives(question)
    chance = np.random.default_rng(abs(hash_of(f"{state}/{question.type}")))
    weights = dict(zip(sorted(names), chance.dirichlet(np.full(len(names), 0.6)), strict=True))
    return np.array([weights[one] for one in names])


def tempered(temperature: float) -> Answers:
    """The true distributions at another temperature."""

    def answers(state: str, name: str, question: Question) -> Sequence[float]:
        p = np.maximum(truth(state, name, question), 1e-12) ** (1 / temperature)
        return list(p / p.sum())

    return answers


def hash_of(text: str) -> int:
    """The same number in every process."""
    return random.Random(text).getrandbits(48)


def rows_file(path: Path, count: int, questions: Mapping[str, Any] = QUESTIONS, **extra: Any) -> Path:
    """Rows whose reviewed answers are drawn from `truth`, so that `tempered(1)` is calibrated."""
    from pydantic import TypeAdapter

    parsed = {name: TypeAdapter(Question).validate_python(one) for name, one in questions.items()}
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            state = f"thing {number}"
            answers: dict[str, Any] = {}
            for name, question in parsed.items():
                p = truth(state, name, question)
                drawn = int(np.random.default_rng(hash_of(f"{number}/{name}")).choice(len(p), p=p))
                label = alternatives(question)[drawn]
                answers[name] = {"noul": label == "yes", "choice": label, "score": drawn}[question.type]
            row = {"id": f"r{number}", "state": state, "questions": questions, "answers": answers, **extra}
            file.write(json.dumps(row) + "\n")
    return path
