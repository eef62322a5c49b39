"""A deterministic engine in place of a model, and ways to call the app around it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from jev.engine import Engine

# pytest's importlib mode puts no test folder on the path; `sample_files` lies here.
sys.path.insert(0, str(Path(__file__).parent))


@dataclass(frozen=True)
class FakePlan:
    request: SystemOneRequest
    tokens: int
    questions: int


DROPPED_SECONDS = 2.0


class FakeRun:
    """A plan at work on a thread of its own, which is told to stop when no step has held it for a while."""

    def __init__(self, work: Callable[[Callable[[], bool]], SystemOneResponse]) -> None:
        self.ended = Event()
        self.outcome: SystemOneResponse | BaseException | None = None
        self.stepped = time.monotonic()
        Thread(target=self._go, args=(work,), daemon=True).start()

    @property
    def done(self) -> bool:
        """Whether it has an outcome."""
        return self.ended.is_set()

    def _go(self, work: Callable[[Callable[[], bool]], SystemOneResponse]) -> None:
        try:
            self.outcome = work(lambda: time.monotonic() - self.stepped > DROPPED_SECONDS)
        except BaseException as error:
            self.outcome = error
        self.ended.set()


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

    def start(self, plan: FakePlan) -> FakeRun:
        return FakeRun(lambda cancelled: self.run(plan, cancelled=cancelled))

    def step(self, runs: Sequence[FakeRun]) -> None:
        for run in runs:
            run.stepped = time.monotonic()
        runs[0].ended.wait(0.005)

    def finish(self, run: FakeRun) -> SystemOneResponse:
        if not isinstance(run.outcome, SystemOneResponse):
            raise run.outcome or AssertionError("it is not done")
        return run.outcome

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


class Transcriber(BaseHTTPRequestHandler):
    """A transcription service that hears the same in every recording."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        body = json.dumps({"text": "I was charged twice."}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="session")
def speech_url() -> Iterator[str]:
    """The address of a transcription service."""
    service = ThreadingHTTPServer(("127.0.0.1", 0), Transcriber)
    Thread(target=service.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    yield f"http://127.0.0.1:{service.server_port}/v1/audio/transcriptions"
    service.shutdown()
    service.server_close()


@dataclass(frozen=True)
class Seeing:
    """An app whose model takes pictures, with what it was given, and the folder of its uploads."""

    client: TestClient
    engine: FakeEngine
    folder: Path

    def ask(self, **fields: Any) -> Any:
        """Post one simple question with these fields; the response."""
        question = {"type": "noul", "instructions": "Is it?"}
        return self.client.post("/v1/systemone", json={"state": "s", "questions": {"q": question}, **fields})

    def read(self, **fields: Any) -> Material:
        """What the model is given for a request with these fields."""
        response = self.ask(**fields)
        assert response.status_code == 200, response.text
        return self.engine.material[-1]

    def refusal(self, **fields: Any) -> tuple[list[str | int], str]:
        """Where below the body a request with these fields is refused, and what is said."""
        response = self.ask(**fields)
        assert response.status_code == 422, response.text
        (row,) = response.json()["detail"]
        return row["loc"][1:], row["msg"]

    def upload(self, name: str, data: bytes) -> str:
        """The id of an upload."""
        response = self.client.post("/v1/files", files=[("file", (name, data))])
        assert response.status_code == 200, response.text
        return response.json()["files"][0]["id"]


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory, speech_url: str) -> Iterator[Seeing]:
    """One app with the default limits for all tests of a file; one process reads attachments."""
    folder = tmp_path_factory.mktemp("uploads")
    settings = Settings(extract_workers=1, ocr="off", speech_url=speech_url, files_dir=folder)
    engine = FakeEngine(has_vision=True)
    app = create_app(settings, engine)  # pyright: ignore[reportArgumentType]
    with TestClient(app, raise_server_exceptions=False) as client:
        yield Seeing(client, engine, folder)


@pytest.fixture(scope="session")
def tiny_model(tiny: Path) -> Engine:
    """A real engine around the tiny random checkpoint."""
    from jev.engine import Engine

    return Engine.load(tiny)


@pytest.fixture
def start_tiny(tiny_model: Engine) -> Iterator[Callable[..., TestClient]]:
    """Start an app around the tiny model; keyword arguments are settings."""
    with ExitStack() as stack:

        def start(**settings: Any) -> TestClient:
            return stack.enter_context(TestClient(create_app(Settings(**settings), tiny_model)))

        yield start


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
