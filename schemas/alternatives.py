"""A question's alternatives as a list: their names, an answer's distribution over them, a label's index."""

from __future__ import annotations

from jev.schemas.questions import Choice, Noul, Question
from jev.schemas.response import Answer, NoulAnswer


def alternatives(question: Question) -> tuple[str, ...]:
    """Names of the alternatives in order: "yes" and "no", the options, or "0", "1", ... for levels."""
    if isinstance(question, Noul):
        return ("yes", "no")
    if isinstance(question, Choice):
        return tuple(question.criteria)
    return tuple(map(str, range(len(question.criteria))))


def distribution(question: Question, answer: Answer) -> tuple[float, ...]:
    """The answer's probabilities in the order of `alternatives`.

    Raises:
        ValueError: the answer is not one to this question.
    """
    if answer.type != question.type:
        raise ValueError(f"a {answer.type} answer to a {question.type} question")
    if isinstance(answer, NoulAnswer):
        return (answer.noul, 1.0 - answer.noul)
    given = answer.probabilities
    names = alternatives(question)
    if set(given) != set(names):
        raise ValueError("the answer's probabilities are not those of the question's alternatives")
    return tuple(given[name] for name in names)


def index_of(question: Question, label: object) -> int:
    """Index of a reviewed answer among the alternatives: True, "billing" or 2, say.

    A noul also takes "yes" and "no", a score also its level's text or its index as a string.

    Raises:
        ValueError: the label is none of the question's alternatives.
    """
    if isinstance(question, Noul):
        if isinstance(label, bool):
            return 0 if label else 1
        if label in ("yes", "no"):
            return 0 if label == "yes" else 1
        raise ValueError(f"{label!r} is no answer to a noul; it takes true or false")
    names = alternatives(question)
    if isinstance(question, Choice):
        if isinstance(label, str) and label in question.criteria:
            return names.index(label)
        raise ValueError(f"{label!r} is none of the choice's options")
    if isinstance(label, int) and not isinstance(label, bool):
        if 0 <= label < len(names):
            return label
    elif isinstance(label, str):
        levels = [level for level in question.criteria if isinstance(level, str)]
        if label in levels:
            return question.criteria.index(label)
        if label in names:
            return int(label)
    raise ValueError(f"{label!r} is none of the score's levels 0 to {len(names) - 1}")
