"""Jev and AsyncJev send the same request for the same call and read the same decision out of the answer."""

import asyncio
import dataclasses
import gzip
import json
import pickle
from types import MappingProxyType
from typing import Annotated, Any, Literal

import httpx
import pytest
from pydantic import BaseModel

from jev import (
    AsyncJev,
    Choice,
    Decision,
    InvalidRequestError,
    Jev,
    Noul,
    ResponseError,
    Score,
    TypedDecision,
)

QUESTIONS = {
    "angry": Noul("Is the customer angry?"),
    "team": Choice("Which team?", {"billing": "money", "technical": None}),
    "severity": Score("How bad?", ["cosmetic", {"level": "blocking"}]),
}
ANSWERS: dict[str, Any] = {
    "angry": {"type": "noul", "noul": 0.75, "x_extra": 1},
    "team": {
        "type": "choice",
        "choice": "billing",
        "probabilities": {"billing": 0.9, "technical": 0.1},
        "confidence": 0.8,
    },
    "severity": {
        "type": "score",
        "score": 1,
        "legend": {"0": "cosmetic", "1": {"level": "blocking"}},
        "probabilities": {"0": 0, "1": 1},
        "confidence": 1,
    },
}
BODY: dict[str, Any] = {
    "model": "jev-mini",
    "answers": ANSWERS,
    "usage": {"input_tokens": 12, "output_tokens": 3},
}


class Ticket:
    angry: Annotated[bool, "Is the customer angry?"]
    team: Literal["billing", "technical"]


class Call:
    """One call through either client against a canned server, and what that server received."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.requests: list[httpx.Request] = []
        self.response = httpx.Response(200, json=BODY)

    def __call__(self, method: str, *args: Any, client: dict[str, Any] | None = None, **options: Any) -> Any:
        def answer(request: httpx.Request) -> httpx.Response:
            self.requests.append(request)
            return self.response

        given: dict[str, Any] = {"transport": httpx.MockTransport(answer), **(client or {})}
        if self.kind == "sync":
            with Jev(**given) as jev:
                return getattr(jev, method)(*args, **options)

        async def run() -> Any:
            async with AsyncJev(**given) as jev:
                return await getattr(jev, method)(*args, **options)

        return asyncio.run(run())

    @property
    def body(self) -> dict[str, Any]:
        return json.loads(self.requests[-1].content)


@pytest.fixture(params=["sync", "async"])
def call(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Call:
    monkeypatch.delenv("JEV_BASE_URL", raising=False)
    monkeypatch.delenv("JEV_API_KEY", raising=False)
    return Call(request.param)


def test_sends_only_what_was_given(call: Call) -> None:
    call("decide", "My card was charged twice!", QUESTIONS, seed=None, layout=None)
    request = call.requests[0]
    assert (request.method, str(request.url)) == ("POST", "http://127.0.0.1:8000/v1/systemone")
    assert request.headers["content-type"] == "application/json"
    assert request.headers["user-agent"].startswith("jev-python/")
    assert "authorization" not in request.headers
    assert "content-encoding" not in request.headers
    assert call.body == {
        "model": "jev-latest",
        "state": "My card was charged twice!",
        "questions": {
            "angry": {"type": "noul", "instructions": "Is the customer angry?"},
            "team": {
                "type": "choice",
                "instructions": "Which team?",
                "criteria": {"billing": "money", "technical": None},
            },
            "severity": {
                "type": "score",
                "instructions": "How bad?",
                "criteria": ["cosmetic", {"level": "blocking"}],
            },
        },
    }


def test_sends_every_option(call: Call) -> None:
    options: dict[str, Any] = {
        "model": "jev-1",
        "instructions": {"policy": ["be", "strict"]},
        "layout": "joint",
        "samples": 4,
        "auto_max": 5,
        "auto_threshold": 0.0,
        "seed": 0,
        "permutations": 2,
        "calibration": "mail",
        "diagnostics": "full",
        "strict": False,
    }
    call("decide", "s", QUESTIONS, **options, extra_body={"seed": 9, "chunk_rows": 8}, headers={"X-A": "b"})
    body = call.body
    assert body.pop("state") == "s"
    assert len(body.pop("questions")) == 3
    assert body == {**options, "seed": 9, "chunk_rows": 8}
    assert call.requests[0].headers["x-a"] == "b"


def test_an_unknown_option_is_a_type_error_and_nothing_is_sent(call: Call) -> None:
    with pytest.raises(TypeError, match=r"decide\(\) got an unexpected keyword argument 'sampels'"):
        call("decide", "s", QUESTIONS, sampels=4)
    assert call.requests == []


class Mail(BaseModel):
    subject: str
    to: list[str]


@dataclasses.dataclass
class Row:
    id: int
    tags: tuple[str, ...]


@pytest.mark.parametrize(
    ("state", "sent"),
    [
        ("héllo\n", "héllo\n"),
        ({}, {}),
        ({"a": {"b": [1, None, 0.5]}}, {"a": {"b": [1, None, 0.5]}}),
        (MappingProxyType({"a": MappingProxyType({"b": range(2)})}), {"a": {"b": [0, 1]}}),
        (("x", "y"), ["x", "y"]),
        (Mail(subject="s", to=["a"]), {"subject": "s", "to": ["a"]}),
        (Row(1, ("t",)), {"id": 1, "tags": ["t"]}),
        ([Row(1, ()), Mail(subject="s", to=[])], [{"id": 1, "tags": []}, {"subject": "s", "to": []}]),
    ],
)
def test_state_becomes_json(call: Call, state: Any, sent: Any) -> None:
    call("decide", state, QUESTIONS)
    assert call.body["state"] == sent


@pytest.mark.parametrize(
    ("state", "loc"),
    [
        (7, ["body", "state"]),
        (None, ["body", "state"]),
        ({"f": object()}, ["body", "state"]),
        ({"x": float("nan")}, ["body"]),
        ({"x": float("inf")}, ["body"]),
        ("\ud800", ["body"]),
    ],
)
def test_a_state_that_json_lacks_is_refused_before_sending(call: Call, state: Any, loc: list[str]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        call("decide", state, QUESTIONS)
    assert caught.value.issues[0].loc[: len(loc)] == loc
    assert call.requests == []


@pytest.mark.parametrize(
    ("questions", "text"),
    [
        ("Is it?", "questions must be a mapping"),
        ([Noul("Is it?")], "questions must be a mapping"),
        ({1: Noul("Is it?")}, "question id must be a string"),
        ({"a": "Is it?"}, "question 'a' must be a Noul"),
        ({"a": Mail(subject="s", to=[])}, "question 'a' must be a Noul"),
    ],
)
def test_questions_of_the_wrong_kind_are_type_errors(call: Call, questions: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        call("decide", "s", questions)
    assert call.requests == []


def test_nulls_belong_to_structured_text_but_not_to_unset_fields(call: Call) -> None:
    call.response = httpx.Response(
        200, json={**BODY, "answers": {"a": ANSWERS["angry"], "b": ANSWERS["angry"]}}
    )
    call("decide", "s", {"a": Noul(true={"k": None}), "b": {"type": "noul", "instructions": "i"}})
    assert call.body["questions"] == {
        "a": {"type": "noul", "criteria": {"true": {"k": None}}},
        "b": {"type": "noul", "instructions": "i"},
    }


def test_reads_the_environment_once_and_arguments_win(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JEV_BASE_URL", "https://env.example/api/")
    monkeypatch.setenv("JEV_API_KEY", "env-key\n")
    call("decide", "s", QUESTIONS)
    assert str(call.requests[0].url) == "https://env.example/api/v1/systemone"
    assert call.requests[0].headers["authorization"] == "Bearer env-key"
    call("decide", "s", QUESTIONS, client={"base_url": "http://arg:1", "api_key": "arg-key", "model": "m"})
    assert str(call.requests[1].url) == "http://arg:1/v1/systemone"
    assert call.requests[1].headers["authorization"] == "Bearer arg-key"
    assert call.body["model"] == "m"
    call("decide", "s", QUESTIONS, client={"api_key": "", "headers": {"User-Agent": "me"}})
    assert "authorization" not in call.requests[2].headers
    assert call.requests[2].headers["user-agent"] == "me"


@pytest.mark.parametrize("client", [Jev, AsyncJev])
def test_bad_settings_are_value_errors_that_do_not_show_the_key(client: type[Jev] | type[AsyncJev]) -> None:
    for url in ("127.0.0.1:8000", "ftp://host", "http://", "http://a b:x"):
        with pytest.raises(ValueError, match="base_url"):
            client(url)
    with pytest.raises(ValueError, match="api_key") as caught:
        client("http://h", "two words")
    assert "two" not in str(caught.value)
    shown = repr(client("http://user:pass@h:1/", "secret"))
    assert "http://h:1" in shown
    assert "secret" not in shown
    assert "pass" not in shown


def test_compression_gzips_long_bodies_only(call: Call) -> None:
    call("decide", "x" * 5000, QUESTIONS, client={"compression": True})
    long = call.requests[0]
    assert long.headers["content-encoding"] == "gzip"
    assert json.loads(gzip.decompress(long.content))["state"] == "x" * 5000
    assert len(long.content) < 1000
    call("decide", "x", QUESTIONS, client={"compression": True})
    assert "content-encoding" not in call.requests[1].headers


def test_timeout_is_the_clients_or_the_calls(call: Call) -> None:
    call("decide", "s", QUESTIONS)
    call("decide", "s", QUESTIONS, client={"timeout": 3.0})
    call("decide", "s", QUESTIONS, client={"timeout": 3.0}, timeout=0.5)
    call("decide", "s", QUESTIONS, client={"timeout": None})
    assert [request.extensions["timeout"]["read"] for request in call.requests] == [60.0, 3.0, 0.5, None]


def test_reads_a_decision(call: Call) -> None:
    extra = {"x_warnings": [{"loc": ["body", "sed"], "msg": "unknown", "type": "unknown_field"}]}
    diagnostics = {"x_diagnostics": {"layout": "isolated"}}
    call.response = httpx.Response(
        200, json={**BODY, **extra, **diagnostics}, headers={"x-typesafe-request-id": "req_1"}
    )
    decision = call("decide", "s", QUESTIONS)
    assert type(decision) is Decision
    assert list(decision) == list(decision.answers) == list(QUESTIONS)
    assert len(decision) == 3
    assert "team" in decision
    assert decision.nouls["angry"].noul == 0.75
    assert decision.nouls["angry"].yes
    assert decision["team"] == decision.choices["team"]
    assert decision.choices["team"].choice == "billing"
    assert decision.scores["severity"].score == 1.0
    assert decision.scores["severity"].level == 1
    assert (decision.model, decision.request_id) == ("jev-mini", "req_1")
    assert (decision.usage.input_tokens, decision.usage.output_tokens) == (12, 3)
    assert decision.warnings[0].loc == ["body", "sed"]
    assert decision.diagnostics == {"layout": "isolated"}
    assert repr(decision) == (
        "Decision({'angry': noul 0.75, 'team': choice 'billing' (0.9), 'severity': score 1 of 0..1}, "
        "model='jev-mini')"
    )
    with pytest.raises(dataclasses.FrozenInstanceError):
        decision.model = "other"  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(decision)) == decision


def test_answers_come_in_the_order_asked_and_no_others(call: Call) -> None:
    given = dict(reversed(ANSWERS.items()))
    call.response = httpx.Response(200, json={**BODY, "answers": {"other": ANSWERS["angry"], **given}})
    decision = call("decide", "s", QUESTIONS)
    assert list(decision.answers) == list(QUESTIONS)
    assert decision.request_id is None
    assert decision.warnings == ()
    assert decision.diagnostics is None


def test_reads_a_typed_decision(call: Call) -> None:
    decision = call("decide", "s", Ticket)
    assert call.body["questions"]["team"]["criteria"] == {"billing": None, "technical": None}
    assert type(decision) is TypedDecision
    assert isinstance(decision.value, Ticket)
    assert decision.value.angry is True
    assert decision.value.team == "billing"
    assert decision.probabilities == {"angry": 0.75, "team": {"billing": 0.9, "technical": 0.1}}
    assert decision.confidence == {"angry": 0.5, "team": 0.8}
    assert decision.nouls["angry"].noul == 0.75
    assert decision.usage.input_tokens == 12


def test_a_class_that_cannot_be_asked_is_refused_before_sending(call: Call) -> None:
    class Bad:
        note: str

    with pytest.raises(TypeError, match=r"Bad\.note: str cannot be asked"):
        call("decide", "s", Bad)
    assert call.requests == []


@pytest.mark.parametrize(
    ("content", "path"),
    [
        (b"<html>", "body"),
        (b"", "body"),
        (b'{"model": NaN}', "body"),
        (json.dumps({**BODY, "usage": None}).encode(), "usage"),
        (json.dumps({**BODY, "answers": {"angry": ANSWERS["angry"]}}).encode(), "answers.team"),
    ],
)
def test_a_malformed_200_is_a_response_error_naming_the_path(call: Call, content: bytes, path: str) -> None:
    call.response = httpx.Response(200, content=content, headers={"x-typesafe-request-id": "req_9"})
    with pytest.raises(ResponseError, match=rf"^{path}: .* \(request req_9\)$"):
        call("decide", "s", QUESTIONS)
    assert len(call.requests) == 1


def test_models_and_health(call: Call) -> None:
    row = {"name": "jev-latest", "description": "d", "release_date": "2026-01-01"}
    call.response = httpx.Response(200, json={"models": [row]})
    models = call("models")
    assert [model.model_dump() for model in models] == [row]
    assert str(call.requests[0].url) == "http://127.0.0.1:8000/v1/models"
    call.response = httpx.Response(200, json={"status": "ok"})
    assert call("health") == {"status": "ok"}
    assert (call.requests[1].method, call.requests[1].url.path) == ("GET", "/health")


@pytest.mark.parametrize(
    ("method", "body", "path"),
    [
        ("models", {"object": "list", "data": []}, "models"),
        ("models", {"models": [{"name": "m", "description": "d"}]}, r"models\.0\.release_date"),
        ("health", ["ok"], "body"),
    ],
)
def test_a_malformed_list_or_health_is_a_response_error(
    call: Call, method: str, body: Any, path: str
) -> None:
    call.response = httpx.Response(200, json=body)
    with pytest.raises(ResponseError, match=f"^{path}: "):
        call(method)
