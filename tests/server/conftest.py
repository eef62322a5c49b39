"""A deterministic engine in place of a model, and ways to call the app around it."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from jev.errors import InvalidRequestError, ModelUnavailableError, NotFoundError
from jev.material import NOTHING, Material
from jev.schemas import (
    Answer,
    Choice,
    ChoiceAnswer,
    ModelInfo,
    Noul,
    NoulAnswer,
    Question,
    ScoreAnswer,
    SystemOneRequest,
    SystemOneResponse,
    Usage,
)
from jev.server.app import create_app
from jev.settings import Settings


@dataclass(frozen=True)
class FakePlan:
    request: SystemOneRequest
    tokens: int
    questions: int


@dataclass
class FakeEngine:
    """Answers from a hash of the question. `on_prepare` and `on_run` let a test step in."""

    name: str = "fake-1"
    description: str = "A fake"
    release_date: str = "2026-01-31"
    max_context: int = 4096
    has_vision: bool = False
    on_prepare: Callable[[SystemOneRequest], None] | None = None
    on_run: Callable[[FakePlan, Callable[[], bool]], None] | None = None
    prepared: int = 0
    ran: list[FakePlan] = field(default_factory=list)
    material: list[Material] = field(default_factory=list)

    def prepare(self, request: SystemOneRequest, material: Material = NOTHING) -> FakePlan:
        self.prepared += 1
        if self.on_prepare is not None:
            self.on_prepare(request)
        if request.model not in ("jev-latest", self.name):
            raise NotFoundError(f"No model named {request.model[:64]!r}")
        if material.pictures and not self.has_vision:
            raise ModelUnavailableError("This model has no vision tower, so it cannot read images")
        if request.calibration is not None:
            raise InvalidRequestError.at(
                "calibration", msg=f"No calibration named {request.calibration!r} is loaded"
            )
        self.material.append(material)
        return FakePlan(request, tokens=len(json.dumps(request.state)) + 8, questions=len(request.questions))

    def run(self, plan: FakePlan, *, cancelled: Callable[[], bool] = lambda: False) -> SystemOneResponse:
        if self.on_run is not None:
            self.on_run(plan, cancelled)
        self.ran.append(plan)
        return SystemOneResponse(
            model=self.name,
            answers={key: answer_to(question) for key, question in plan.request.questions.items()},
            usage=Usage(input_tokens=plan.tokens, output_tokens=plan.questions),
            x_diagnostics={"reads": 1} if plan.request.diagnostics else None,
        )

    def models(self) -> list[ModelInfo]:
        return [ModelInfo(name=self.name, description=self.description, release_date=self.release_date)]

    def stats(self) -> dict[str, float]:
        return {
            "prefix_hits": 3,
            "prefix_misses": 2,
            "prefix_bytes": 1000,
            "rows_prefill": 40,
            "rows_read": 50,
            "reads": len(self.ran),
        }


def answer_to(question: Question) -> Answer:
    """An answer that depends on the question alone."""
    digest = hashlib.sha256(question.model_dump_json().encode()).digest()
    if isinstance(question, Noul):
        return NoulAnswer(noul=digest[0] / 255)
    count = len(question.criteria)
    weights = [1 + digest[i % len(digest)] + i for i in range(count)]
    p = [weight / sum(weights) for weight in weights]
    confidence = 1.0 if count == 1 else (max(p) - 1 / count) / (1 - 1 / count)
    if isinstance(question, Choice):
        options = dict(zip(question.criteria, p, strict=True))
        return ChoiceAnswer(
            choice=max(options, key=lambda name: options[name]), probabilities=options, confidence=confidence
        )
    return ScoreAnswer(
        score=sum(i * x for i, x in enumerate(p)),
        legend={str(i): level for i, level in enumerate(question.criteria)},
        probabilities={str(i): x for i, x in enumerate(p)},
        confidence=confidence,
    )


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def make_app(engine: FakeEngine) -> Callable[..., FastAPI]:
    """Build an app around the fake engine; keyword arguments are settings."""

    def make(**settings: Any) -> FastAPI:
        return create_app(Settings(**settings), engine)  # pyright: ignore[reportArgumentType]

    return make


@pytest.fixture
def start(make_app: Callable[..., FastAPI]) -> Iterator[Callable[..., TestClient]]:
    """Start an app and return a blocking client for it; keyword arguments are settings."""
    with ExitStack() as stack:

        def start(**settings: Any) -> TestClient:
            client = TestClient(make_app(**settings), raise_server_exceptions=False)
            return stack.enter_context(client)

        yield start


@pytest.fixture
def client(start: Callable[..., TestClient]) -> TestClient:
    """A client of an app with the default settings."""
    return start()


@pytest.fixture
def running(make_app: Callable[..., FastAPI]) -> Callable[..., Any]:
    """Start an app inside an async test: `async with running(...) as (app, client)`."""

    @asynccontextmanager
    async def running(**settings: Any) -> AsyncIterator[tuple[FastAPI, httpx.AsyncClient]]:
        app = make_app(**settings)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://test") as client,
        ):
            yield app, client

    return running


@dataclass
class Exchange:
    """What an app sent over raw ASGI."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    def json(self) -> Any:
        return json.loads(self.body)


async def call_app(
    app: FastAPI,
    receive: Callable[[], Awaitable[dict[str, Any]]],
    *,
    headers: Iterable[tuple[str, str]] = (),
    path: str = "/v1/systemone",
    method: str = "POST",
) -> Exchange:
    """Call an app over raw ASGI: for what no HTTP client will send, and for sending very much."""
    exchange = Exchange()

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            exchange.status = message["status"]
            exchange.headers = {k.decode(): v.decode() for k, v in message["headers"]}
        else:
            exchange.body += message.get("body", b"")

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "headers": [(k.lower().encode(), v.encode("latin-1")) for k, v in headers],
        "client": ("127.0.0.1", 50000),
        "server": ("test", 80),
    }
    await app(scope, receive, send)  # pyright: ignore[reportArgumentType]
    return exchange


@pytest.fixture
def call() -> Callable[..., Awaitable[Exchange]]:
    return call_app


class FastClient:
    """Sends requests to a running app with as little around them as possible."""

    def __init__(self, app: FastAPI, runner: asyncio.Runner) -> None:
        self.app = app
        self._runner = runner

    def post(
        self, content: bytes, path: str = "/v1/systemone", method: str = "POST", **headers: str
    ) -> Exchange:
        named = {"content-type": "application/json"}
        named |= {name.replace("_", "-"): value for name, value in headers.items()}
        return self._runner.run(self._post(content, path, method, named))

    async def _post(self, content: bytes, path: str, method: str, headers: dict[str, str]) -> Exchange:
        messages = [{"type": "http.request", "body": content, "more_body": False}]

        async def receive() -> dict[str, Any]:
            if messages:
                return messages.pop()
            await asyncio.Event().wait()  # the client stays
            raise AssertionError

        return await call_app(self.app, receive, headers=headers.items(), path=path, method=method)


@pytest.fixture(scope="module")
def fast_client() -> Iterator[FastClient]:
    app = create_app(Settings(), FakeEngine())  # pyright: ignore[reportArgumentType]
    with asyncio.Runner() as runner:
        lifespan = app.router.lifespan_context(app)
        runner.run(lifespan.__aenter__())
        yield FastClient(app, runner)
        runner.run(lifespan.__aexit__(None, None, None))


@pytest.fixture
def body() -> dict[str, Any]:
    """A valid request with one question of each type."""
    return {
        "model": "jev-latest",
        "state": "The package arrived broken.",
        "questions": {
            "angry": {"type": "noul", "instructions": "Is the customer angry?"},
            "team": {"type": "choice", "criteria": {"returns": "sends it back", "sales": None}},
            "severity": {"type": "score", "criteria": ["cosmetic", {"level": "annoying"}, "blocking"]},
        },
    }
