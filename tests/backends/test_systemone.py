"""Proves that the remote backend says only what its caller said, keeps to the server's pace, and passes on
what comes back."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import httpx
import pytest
from backend_cases import QUESTIONS, REQUESTS, STATE, distance, request

from jev.backends.systemone import SystemOneBackend, decimal_places
from jev.engine import Engine
from jev.errors import ConnectionError, InvalidRequestError, OverloadedError, ResponseError, TimeoutError
from jev.retry import RetryPolicy
from jev.schemas import Choice, Noul, SystemOneRequest, SystemOneResponse
from jev.server.app import create_app
from jev.settings import Settings

ANSWER = {
    "model": "jev-1.13.0",
    "answers": {"refund": {"type": "noul", "noul": 0.75}},
    "usage": {"input_tokens": 10, "output_tokens": 2},
}
ONE = {"refund": QUESTIONS["refund"]}


class Clock:
    """A clock that sleeping moves."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)


class Server:
    """Answers each request with the next of `replies`, the last one for ever."""

    def __init__(
        self, *replies: httpx.Response | Exception | dict[str, Any], clock: Clock | None = None
    ) -> None:
        self.replies = replies or (ANSWER,)
        self.clock = clock or Clock()
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[httpx.Headers] = []
        self.times: list[float] = []
        self.in_flight = self.most = 0

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        await asyncio.sleep(0.001)
        self.in_flight -= 1
        reply = self.replies[min(len(self.bodies), len(self.replies) - 1)]
        self.bodies.append(json.loads(request.content))
        self.headers.append(request.headers)
        self.times.append(self.clock.now)
        if isinstance(reply, Exception):
            raise reply
        return httpx.Response(200, json=reply) if isinstance(reply, dict) else reply

    def backend(self, **options: Any) -> SystemOneBackend:
        options = {"clock": self.clock, "sleep": self.clock.sleep, **options}
        return SystemOneBackend("http://test", transport=httpx.MockTransport(self), **options)


def asked(**fields: Any) -> SystemOneRequest:
    return request(**{"questions": ONE, **fields})


def ask(backend: SystemOneBackend, *requests: SystemOneRequest) -> list[SystemOneResponse]:
    async def decide() -> list[SystemOneResponse]:
        try:
            return await asyncio.gather(*map(backend.decide, requests))
        finally:
            await backend.aclose()

    return asyncio.run(decide())


# What is sent


def test_only_what_was_set_is_sent() -> None:
    server = Server()
    ask(server.backend(model="jev-1"), asked())
    assert server.bodies == [
        {
            "model": "jev-1",
            "state": STATE,
            "questions": {"refund": {"type": "noul", "instructions": "Does the customer want money back?"}},
        }
    ]


def test_everything_that_was_set_is_sent() -> None:
    questions = {
        "refund": Noul(true="asks for money"),
        "topic": Choice({"a": "first", "b": None, "c": {"like": None}}),
        "level": QUESTIONS["anger"],
    }
    fields: dict[str, Any] = {
        "model": "mine",
        "instructions": {"tone": None},
        "samples": 2,
        "seed": 0,
        "strict": False,
        "files": [{"name": "a.txt", "data": "YQ=="}],
        "images": ["iVBO"],
        "assets": {"p": {"type": "image", "format": "png", "data_base64": "iVBO"}},
    }
    answer = {
        "model": "m",
        "answers": {
            "refund": {"type": "noul", "noul": 1.0},
            "topic": {
                "type": "choice",
                "choice": "a",
                "probabilities": {"a": 1, "b": 0, "c": 0},
                "confidence": 1,
            },
            "level": {
                "type": "score",
                "score": 0.0,
                "legend": {"0": "calm", "1": "annoyed", "2": "furious"},
                "probabilities": {"0": 1, "1": 0, "2": 0},
                "confidence": 1,
            },
        },
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }
    server = Server(answer)
    ask(server.backend(), request(questions=questions, **fields))
    (body,) = server.bodies
    assert body.pop("state") == STATE
    assert body.pop("questions") == {
        "refund": {"type": "noul", "criteria": {"true": "asks for money"}},
        "topic": {"type": "choice", "criteria": {"a": "first", "b": None, "c": {"like": None}}},
        "level": {
            "type": "score",
            "instructions": "How upset is the customer?",
            "criteria": ["calm", "annoyed", "furious"],
        },
    }
    assert body == {**fields, "images": [{"name": "image", "data": "iVBO"}]}


def test_asset_parts_cannot_be_sent() -> None:
    server = Server()
    one = asked(assets={"p": {"type": "image", "part": "x"}})
    with pytest.raises(InvalidRequestError, match=r"assets\.p\.part: The body has no such part"):
        ask(server.backend(), one)
    assert not server.bodies


def test_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JEV_API_KEY", "from-environment")
    server = Server()
    ask(server.backend(), asked())
    ask(server.backend(api_key="given"), asked())
    ask(server.backend(api_key=""), asked())
    assert [headers.get("authorization") for headers in server.headers] == [
        "Bearer from-environment",
        "Bearer given",
        None,
    ]


# Pace


def overloaded(status: int, wait: str | None) -> httpx.Response:
    headers = {} if wait is None else {"retry-after": wait}
    detail = {"error_type": "overloaded_error", "message": "busy"}
    return httpx.Response(status, json={"detail": detail}, headers=headers)


@pytest.mark.parametrize("status", [429, 529, 503])
def test_waits_as_long_as_it_is_told(status: int) -> None:
    server = Server(overloaded(status, "7"), overloaded(status, "11"), ANSWER)
    (response,) = ask(server.backend(), asked())
    assert response.model == "jev-1.13.0"
    assert [round(time - server.times[0]) for time in server.times] == [0, 7, 18]


def test_the_wait_of_one_holds_all() -> None:
    server = Server(overloaded(429, "30"), ANSWER)

    async def decide() -> None:
        backend = server.backend(concurrency=4)
        await asyncio.gather(*(backend.decide(asked()) for _ in range(9)))
        await backend.aclose()

    asyncio.run(decide())
    early = [time for time in server.times if time < 1030]
    assert len(early) <= 4  # those that were on their way
    assert len(server.times) == 10


def test_gives_up_in_the_end() -> None:
    server = Server(overloaded(529, None))
    with pytest.raises(OverloadedError, match="busy"):
        ask(server.backend(retry=RetryPolicy(max_retries=3)), asked())
    assert len(server.bodies) == 4
    server = Server(overloaded(529, "100"))
    with pytest.raises(OverloadedError):
        ask(server.backend(retry=RetryPolicy(max_retries=9, budget=250)), asked())
    assert len(server.bodies) == 3


def test_what_the_caller_must_fix_is_not_tried_again() -> None:
    detail = [{"loc": ["body", "state"], "msg": "too long", "type": "value_error"}]
    server = Server(httpx.Response(422, json={"detail": detail}))
    with pytest.raises(InvalidRequestError, match="state: too long"):
        ask(server.backend(), asked())
    assert len(server.bodies) == 1


def test_broken_connections_and_answers() -> None:
    server = Server(httpx.ConnectError("no"), httpx.ReadTimeout("slow"), ANSWER)
    assert ask(server.backend(), asked())[0].model == "jev-1.13.0"
    for failure, kind in (
        (httpx.ConnectError("no"), ConnectionError),
        (httpx.ReadTimeout("slow"), TimeoutError),
    ):
        server = Server(failure)
        with pytest.raises(kind):
            ask(server.backend(retry=RetryPolicy(max_retries=1)), asked())
        assert len(server.bodies) == 2
    with pytest.raises(ResponseError, match=r"answers\.refund: missing"):
        ask(Server({**ANSWER, "answers": {}}).backend(), asked())


def test_a_server_that_never_answered_is_not_waited_for_long() -> None:
    server = Server(httpx.ConnectError("no"))
    with pytest.raises(ConnectionError):
        ask(server.backend(), asked())
    assert server.clock.now < 1010
    # One that answered before may be starting again.
    server = Server(overloaded(529, None), *[httpx.ConnectError("no")] * 6, ANSWER)
    ask(server.backend(), asked())
    assert server.clock.now > 1020


def test_requests_in_flight() -> None:
    server = Server()
    ask(server.backend(concurrency=3), *(asked() for _ in range(20)))
    assert server.most == 3
    assert len(server.bodies) == 20


def test_requests_a_minute() -> None:
    server = Server()
    ask(server.backend(concurrency=1, requests_per_minute=5), *(asked() for _ in range(12)))
    assert [round(time - server.times[0]) for time in server.times] == [0] * 5 + [60] * 5 + [120] * 2


@pytest.mark.parametrize("option", ["concurrency", "requests_per_minute"])
def test_limits_of_nothing(option: str) -> None:
    with pytest.raises(ValueError, match=f"{option} must be 1 or more"):
        SystemOneBackend("http://test", **{option: 0})


# What comes back


@pytest.mark.parametrize(
    ("values", "decimals"),
    [
        ([0.75, 0.3], 2),
        ([1.0, 0.0], None),
        ([0.5], 2),
        ([0.25, 0.123], 3),
        ([0.25, 0.3106686492930603], None),
        ([1e-05], None),
    ],
)
def test_rounding_is_noticed(values: list[float], decimals: int | None) -> None:
    replies = [{**ANSWER, "answers": {"refund": {"type": "noul", "noul": value}}} for value in values]
    server = Server(*replies)
    backend = server.backend(concurrency=1)
    assert backend.decimals is None
    ask(backend, *(asked() for _ in values))
    assert backend.decimals == decimals
    assert backend.model == "jev-1.13.0"


def test_places() -> None:
    assert [decimal_places(x) for x in (0.0, 1.0, 0.5, 0.25, 1e-05, 1.5e-07)] == [0, 0, 1, 2, 5, 8]


def test_against_the_server(small: Engine) -> None:
    """The whole way: this package's own server, with attachments."""
    file = {"name": "note.txt", "data": base64.b64encode(b"The invoice is wrong.").decode()}

    async def decide() -> None:
        app = create_app(Settings(max_pending_requests=2), small)
        async with app.router.lifespan_context(app):
            backend = SystemOneBackend(
                "http://test", transport=httpx.ASGITransport(app), model="jev-latest", concurrency=8
            )
            everything = [request(**fields, diagnostics=True) for fields in REQUESTS.values()]
            responses = await asyncio.gather(*map(backend.decide, everything))
            for one, response in zip(everything, responses, strict=True):
                expected = small.decide(one)
                assert distance(expected, response) < 1e-5
                assert response.usage == expected.usage
                assert response.x_diagnostics is not None
            assert backend.model == small.name
            assert backend.decimals is None
            with_file = await backend.decide(request(samples=1, files=[file], diagnostics=True))
            assert with_file.x_diagnostics is not None
            assert [one["name"] for one in with_file.x_diagnostics["evidence"]] == ["note.txt"]
            with pytest.raises(InvalidRequestError, match="files"):
                await backend.decide(request(files=[{"name": "a.pdf", "data": "AAAA"}]))
            await backend.aclose()

    asyncio.run(decide())
