"""Proves the joint layout's numbers: those of the plain forward, a chunk read as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jev.decide import softmax
from jev.model.unified import read_unified
from jev.plan import Plan
from jev.schemas import Choice, Noul, Question, Score, SystemOneRequest

if TYPE_CHECKING:
    from jev.engine import Engine

THREE: dict[str, Question] = {
    "angry": Noul("Is the customer angry?"),
    "team": Choice("Which team?", {"billing": "money", "travel": None, "sales": None}),
    "bad": Score("How bad?", ["fine", "annoying", "blocking"]),
}


def request(questions: dict[str, Question], **fields: Any) -> SystemOneRequest:
    state = "My card was charged twice and I want my money back."
    return SystemOneRequest(**{"state": state, "questions": questions, "layout": "joint", **fields})


def plan(engine: Engine, questions: dict[str, Question], **fields: Any) -> Plan:
    return engine.prepare(request(questions, **fields))


def test_nothing_to_read(engine: Engine) -> None:
    made = plan(engine, {"a": Choice(["only"])})
    assert (made.units, made.input_tokens, made.output_tokens) == ([], 0, 0)
    answer = engine.run(made).answers["a"]
    assert answer.type == "choice"
    assert (answer.choice, answer.probabilities, answer.confidence) == ("only", {"only": 1.0}, 1.0)


def probabilities(engine: Engine, made: Plan) -> dict[str, list[float]]:
    """Each question's distribution by plain forwards, one a read."""
    found: dict[str, list[float]] = {}
    for unit in made.units:
        readings = [
            read_unified(engine.model, unit.prefix, unit.branch, unit.seeded(read))
            for read in range(made.first_reads)
        ]
        for index, slot in enumerate(unit.slots):
            reads = [softmax(reading.logits[index]) for reading in readings]
            found[slot.question] = [sum(column) / len(reads) for column in zip(*reads, strict=True)]
    return found


@pytest.mark.parametrize(
    "fields", [{"samples": 2}, {"samples": 1, "chunk_rows": 16, "chunk_prompt": "shared"}]
)
def test_answers_are_those_of_the_plain_forward(engine: Engine, fields: dict[str, Any]) -> None:
    made = plan(engine, THREE, **fields)
    expected, response = probabilities(engine, made), engine.run(made)
    for name, answer in response.answers.items():
        given = (
            [answer.noul, 1 - answer.noul] if answer.type == "noul" else list(answer.probabilities.values())
        )
        assert given == pytest.approx(expected[name], abs=1e-5)


def test_an_uncertain_question_extends_its_whole_chunk_and_no_other(engine: Engine) -> None:
    fields: dict[str, Any] = {"chunk_rows": 16, "diagnostics": True}
    first = engine.decide(request(THREE, samples=1, **fields)).x_diagnostics
    assert first is not None
    entropies = {name: one["entropy"] for name, one in first["questions"].items()}
    chunks = [group.questions for group in plan(engine, THREE, **fields).groups]
    assert sorted(map(len, chunks)) == [1, 2]
    (pair,) = (chunk for chunk in chunks if len(chunk) == 2)
    (alone,) = (chunk[0] for chunk in chunks if len(chunk) == 1)
    sure, unsure = sorted(pair, key=entropies.__getitem__)
    for threshold, extended in (
        ((entropies[sure] + entropies[unsure]) / 2, set(pair)),  # only one of the pair is over it
        (0.0, set(THREE)),
        (10.0, set()),
    ):
        if extended and entropies[alone] > threshold:
            extended = extended | {alone}
        report = engine.decide(
            request(THREE, samples="auto", auto_max=3, auto_threshold=threshold, **fields)
        ).x_diagnostics
        assert report is not None
        reads = {name: one["reads"] for name, one in report["questions"].items()}
        assert reads == {name: 3 if name in extended else 1 for name in THREE}


def test_schema_is_the_shared_prefix(engine: Engine) -> None:
    one, other = (plan(engine, THREE, state=state).units[0] for state in ("One.", "Another."))
    assert one.prefix == other.prefix
    assert one.branch != other.branch
    assert (one.canvas, one.slots) == (other.canvas, other.slots)
