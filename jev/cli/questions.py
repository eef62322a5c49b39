"""Questions as they are typed on the command line.

    --noul   QUESTION                      the question names its answer
    --noul   ID=QUESTION                   ... or ID does
    --choice ID=OPTION,OPTION,...
    --choice "ID: QUESTION=OPTION,OPTION,..."
    --score  as --choice, with the levels in order, lowest first

An ID is one word of letters, digits, `_`, `-` and `.`; only answers are named by it, the model does
not see it. Spaces around every part are dropped. There is no quoting: what needs `=` in an option, a
comma or a description is written as JSON (`--file`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from jev.cli.errors import UsageError

_ID = re.compile(r"[\w.-]+")
_ID_AND_QUESTION = re.compile(r"(?P<id>[\w.-]+):\s+(?P<question>\S.*)", re.DOTALL)


def parse_questions(
    nouls: Iterable[str], choices: Iterable[str], scores: Iterable[str]
) -> dict[str, dict[str, Any]]:
    """Return the questions by id as they go on the wire: nouls, then choices, then scores.

    Raises:
        UsageError: naming the option and what was typed.
    """
    questions: dict[str, dict[str, Any]] = {}
    typed = [
        *(("--noul", text, parse_noul(text)) for text in nouls),
        *(("--choice", text, parse_choice(text)) for text in choices),
        *(("--score", text, parse_score(text)) for text in scores),
    ]
    for option, text, (name, question) in typed:
        if name in questions:
            raise UsageError(f"{option} {text!r}: there is a question called {name!r} already")
        questions[name] = question
    return questions


def parse_noul(text: str) -> tuple[str, dict[str, Any]]:
    """Read `QUESTION`, `ID=QUESTION` or `ID: QUESTION`; return id and question."""
    head, equals, tail = (part.strip() for part in text.partition("="))
    if equals and _ID.fullmatch(head):
        name, question = head, tail
    else:
        name, question = _named(text.strip())
    if not question:
        raise UsageError(f'--noul {text!r}: there is no question; write --noul "urgent=Is it urgent?"')
    return name, {"type": "noul", "instructions": question}


def parse_choice(text: str) -> tuple[str, dict[str, Any]]:
    """Read `ID=OPTION,...` or `ID: QUESTION=OPTION,...`; return id and question."""
    name, question, options = _parse_list("--choice", text, "team=billing,technical,sales")
    criteria = dict.fromkeys(options)
    if len(criteria) != len(options):
        raise UsageError(f"--choice {text!r}: the options must differ")
    return name, {"type": "choice", **question, "criteria": criteria}


def parse_score(text: str) -> tuple[str, dict[str, Any]]:
    """Read `ID=LEVEL,...` or `ID: QUESTION=LEVEL,...`, lowest level first; return id and question."""
    name, question, levels = _parse_list("--score", text, "severity=calm,annoyed,furious")
    return name, {"type": "score", **question, "criteria": levels}


def _parse_list(option: str, text: str, example: str) -> tuple[str, dict[str, str], list[str]]:
    def refuse(reason: str) -> UsageError:
        return UsageError(f'{option} {text!r}: {reason}; write {option} "{example}"')

    head, *tails = (part.strip() for part in text.split("="))
    if len(tails) != 1:
        raise refuse("there must be one '=' before the list")
    items = [item.strip() for item in tails[0].split(",")]
    if len(items) < 2 or not all(items):
        raise refuse("after '=' there must be two or more names with commas between them")
    if _ID.fullmatch(head):
        return head, {}, items
    name, question = _named(head)
    if not question:
        raise refuse("there is nothing before '='")
    return name, {"instructions": question}, items


def _named(text: str) -> tuple[str, str]:
    """Split `ID: QUESTION`; a question without an id is its own."""
    match = _ID_AND_QUESTION.fullmatch(text)
    return (match["id"], match["question"].strip()) if match else (text, text)


def check_questions(questions: Any) -> dict[str, Any]:
    """Return the `questions` of a body if they have the shape that any answer needs.

    Raises:
        UsageError: naming the path that is wrong.
    """
    if not isinstance(questions, dict):
        raise UsageError("questions: Input should be an object")
    for name, question in questions.items():
        if not isinstance(question, dict):
            raise UsageError(f"questions.{name}: Input should be an object")
    return questions
