"""A response body becomes a decision only if it fits the questions, else the error names the place."""

import json
from typing import Any

import pytest

from jev import ResponseError
from jev.results import decision_of

QUESTIONS: dict[str, Any] = {
    "angry": {"type": "noul", "instructions": "Is the customer angry?"},
    "team": {"type": "choice", "criteria": {"billing": "money", "technical": None}},
    "severity": {"type": "score", "criteria": ["cosmetic", "blocking"]},
}
BODY: dict[str, Any] = {
    "model": "jev-mini",
    "answers": {
        "angry": {"type": "noul", "noul": 1},
        "team": {
            "type": "choice",
            "choice": "billing",
            "probabilities": {"billing": 0.9, "technical": 0.1},
            "confidence": 0.8,
        },
        "severity": {
            "type": "score",
            "score": 0.5,
            "legend": {"0": "cosmetic", "1": "blocking"},
            "probabilities": {"0": 0.5, "1": 0.5},
            "confidence": 0,
        },
    },
    "usage": {"input_tokens": 12, "output_tokens": 3},
}


def without(path: str) -> dict[str, Any]:
    return changed(path, ...)


def changed(path: str, value: Any) -> dict[str, Any]:
    body = json.loads(json.dumps(BODY))
    *parents, last = path.split(".")
    place = body
    for part in parents:
        place = place[part]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return body


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ([], "body"),
        ({"ok": True}, "model"),
        (without("usage"), "usage"),
        (without("answers.team"), "answers.team"),
        (without("answers.angry.noul"), "answers.angry.noul"),
        (without("answers.severity.legend"), "answers.severity.legend"),
        (changed("usage.input_tokens", 12.5), "usage.input_tokens"),
        (changed("answers.angry.noul", "0.5"), "answers.angry.noul"),
        (changed("answers.angry.noul", 1.5), "answers.angry.noul"),
        (changed("answers.angry", {"type": "box", "box": {}}), "answers.angry"),
        (changed("answers.angry", BODY["answers"]["team"]), "answers.angry.type"),
        (changed("answers.angry", None), "answers.angry"),
        (changed("answers.team.choice", "sales"), "answers.team.choice"),
        (changed("answers.team.probabilities", {"billing": 1.0}), "answers.team.probabilities"),
        (changed("answers.team.probabilities.technical", -0.1), "answers.team.probabilities.technical"),
        (changed("answers.team.confidence", None), "answers.team.confidence"),
        (changed("answers.severity.legend", ["a", "b"]), "answers.severity.legend"),
        (changed("answers.severity.probabilities.2", 0), "answers.severity.probabilities"),
        (changed("answers.severity.score", 1.1), "answers.severity.score"),
    ],
)
def test_a_body_that_does_not_fit_is_a_response_error_naming_the_path(body: Any, path: str) -> None:
    with pytest.raises(ResponseError, match=rf"^{path}: "):
        decision_of(body, QUESTIONS)


@pytest.mark.parametrize(
    "body",
    [
        BODY,
        changed("answers.angry.noul", 1 + 1e-9),
        changed("answers.angry.x_note", "extra"),
        changed("answers.more", {"type": "noul", "noul": 0.5}),
        changed("x_other", 1),
        changed("id", "gen-1"),
    ],
)
def test_rounding_and_extra_fields_are_no_error(body: Any) -> None:
    decision = decision_of(body, QUESTIONS, request_id="req_1")
    assert list(decision.answers) == list(QUESTIONS)
    assert type(decision.nouls["angry"].noul) is float
    assert decision.request_id == "req_1"
