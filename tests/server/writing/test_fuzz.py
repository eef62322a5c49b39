"""No body, however odd, gets a 5xx from a route that writes, nor an answer in another shape than its API's.

The app is real and what writes repeats the prompt, so that very many cases run in little time.
"""

from __future__ import annotations

import asyncio
import copy
import json
import os
import random
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from writing_app import events_of

from jev.engine import Engine
from jev.schemas.chat import ChatChunk, ChatCompletion, ChatRequest
from jev.schemas.completion import Completion, CompletionRequest, OpenAIErrorBody
from jev.schemas.ollama import OllamaChat, OllamaChatLine, OllamaError, OllamaGenerate, OllamaGenerateLine
from jev.server.app import create_app
from jev.settings import Settings

pytestmark = pytest.mark.slow

SEARCH = os.environ.get("HYPOTHESIS_PROFILE") == "search"

# Of each route: its request, answer, bits of a stream, errors.
SHAPES: dict[str, tuple[Any, Any, Any, Any]] = {
    "/v1/chat/completions": (ChatRequest, ChatCompletion, ChatChunk, OpenAIErrorBody),
    "/v1/completions": (CompletionRequest, Completion, Completion, OpenAIErrorBody),
    "/api/chat": (OllamaChat, OllamaChatLine, OllamaChatLine, OllamaError),
    "/api/generate": (OllamaGenerate, OllamaGenerateLine, OllamaGenerateLine, OllamaError),
}


def fuzz(cases: int) -> settings:
    """So many cases, the same ones every time; ten times as many, and new ones, in a search."""
    return settings(
        max_examples=10 * cases if SEARCH else cases,
        deadline=None,
        derandomize=not SEARCH,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )


text = st.text(max_size=20) | st.sampled_from(
    ["", "<turn|>", "<|channel>thought", "\0", "a" * 300, "🎯", "ids:[100]", "data:image/png;base64,aGk="]
)
number = (
    st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([10**40, -1, 0, 1e308])
)
scalar: st.SearchStrategy[Any] = st.none() | st.booleans() | number | text
anything: st.SearchStrategy[Any] = st.recursive(
    scalar,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=12,
)
parts = st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": text}), min_size=1, max_size=3)
message = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "developer", "user", "assistant"]), "content": text | parts}
)
said = st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant"]), "content": text})
stop = st.none() | st.text(min_size=1, max_size=4) | st.lists(st.text(min_size=1, max_size=4), max_size=4)
diffusion = {
    "max_denoising_steps": st.integers(1, 4),
    "diffusion_sampler": st.sampled_from(["entropy-bound", "confidence-threshold"]),
    "threshold": st.floats(0, 1),
    "full_canvas": st.booleans(),
}
controls = {
    "model": st.sampled_from(["jev-latest", "echo"]),
    "max_tokens": st.integers(1, 10**20),
    "stop": stop,
    "seed": st.none() | st.integers(0, 2**63 - 1),
    "temperature": st.floats(0, 2),
    "include_reasoning": st.booleans(),
    "n": st.just(1),
    "x_trace": anything,
    **diffusion,
}
streams = st.fixed_dictionaries({}, optional={"include_usage": st.booleans(), "denoising": st.booleans()})
options = st.fixed_dictionaries(
    {},
    optional={
        "num_predict": st.integers(-2, 10**20),
        "seed": st.integers(-1, 2**63 - 1),
        "stop": stop,
        "temperature": st.floats(0, 3),
        "num_ctx": st.integers(),
        **diffusion,
    },
)
more = {"stream": st.booleans(), "think": st.booleans(), "options": options, "keep_alive": scalar}
VALID: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "/v1/chat/completions": st.fixed_dictionaries(
        {"messages": st.lists(message, min_size=1, max_size=4)},
        optional={**controls, "reasoning_effort": st.sampled_from(["none", "high"])},
    ),
    "/v1/completions": st.fixed_dictionaries({"prompt": text}, optional=controls),
    "/api/chat": st.fixed_dictionaries({"messages": st.lists(said, max_size=4)}, optional=more),
    "/api/generate": st.fixed_dictionaries({"prompt": text, "system": text}, optional=more),
}
ROUTES = st.sampled_from(list(SHAPES))


@st.composite
def valid(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """A route and a body that it serves."""
    path = draw(ROUTES)
    body = draw(VALID[path])
    if path.startswith("/v1/") and draw(st.booleans()):
        body |= {"stream": True, "stream_options": draw(st.none() | streams)}
    return path, body


@pytest.fixture(scope="module")
def poster(fast_client: Any, echo_engine: Engine) -> Iterator[Any]:
    """Posts bodies to an app whose texts repeat the user's last message."""
    app = create_app(Settings(), echo_engine)
    with asyncio.Runner() as runner:
        lifespan = app.router.lifespan_context(app)
        runner.run(lifespan.__aenter__())
        yield type(fast_client)(app, runner)
        runner.run(lifespan.__aexit__(None, None, None))


def check(path: str, response: Any) -> None:
    """What must hold for every response."""
    _, answer, bit, error = SHAPES[path]
    assert response.headers["x-request-id"].startswith("req_")
    assert response.status < 500, response.body
    kind = response.headers["content-type"]
    if response.status != 200:
        assert kind == "application/json"
        error.model_validate(response.json())
    elif kind == "application/json":
        answer.model_validate(response.json())
    elif kind == "application/x-ndjson":
        lines = response.body.decode().splitlines()
        assert [bit.model_validate_json(line).done for line in lines] == [False] * (len(lines) - 1) + [True]
    else:
        assert kind == "text/event-stream; charset=utf-8"
        *events, done = events_of(response.body.decode())
        assert done == "[DONE]"
        for event in events:
            bit.model_validate_json(event)


def encode(body: Any) -> bytes:
    return json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass")


def mutate(body: dict[str, Any], path: str, rng: random.Random, junk: list[Any]) -> dict[str, Any]:
    """Replace, remove or add fields, at the top or in a message, a part or an option."""
    body = copy.deepcopy(body)
    for _ in range(rng.randint(1, 3)):
        target: Any = body
        while isinstance(target, dict | list) and target and rng.random() < 0.6:
            inner = rng.choice(list(target.values()) if isinstance(target, dict) else target)
            if not isinstance(inner, dict | list):
                break
            target = inner
        value = copy.deepcopy(rng.choice(junk))
        if isinstance(target, list):
            target.insert(rng.randrange(len(target) + 1), value)
            continue
        names = [*SHAPES[path][0].model_fields, *target, "type", "image_url", "images", "tools", "format", ""]
        name = rng.choice(names)
        if rng.random() < 0.2:
            target.pop(name, None)
        else:
            target[name] = value
    return body


@fuzz(200)
@given(case=valid())
def test_valid_bodies_are_answered(poster: Any, case: tuple[str, dict[str, Any]]) -> None:
    path, body = case
    response = poster.post(encode(body), path)
    check(path, response)
    assert response.status == 200, response.body


@fuzz(80)
@given(case=valid(), junk=st.lists(anything, min_size=1, max_size=4), seed=st.integers(0, 2**32))
def test_mutated_bodies(poster: Any, case: tuple[str, dict[str, Any]], junk: list[Any], seed: int) -> None:
    path, body = case
    rng = random.Random(seed)
    for _ in range(6):
        check(path, poster.post(encode(mutate(body, path, rng, junk)), path))


@fuzz(200)
@given(path=ROUTES, body=anything)
def test_any_json(poster: Any, path: str, body: Any) -> None:
    check(path, poster.post(encode(body), path))


@fuzz(60)
@given(case=valid(), content=st.binary(max_size=100), seed=st.integers(0, 2**32))
def test_broken_bytes(poster: Any, case: tuple[str, dict[str, Any]], content: bytes, seed: int) -> None:
    path, body = case
    check(path, poster.post(content, path))
    rng = random.Random(seed)
    good = encode(body)
    for _ in range(4):
        at = rng.randrange(len(good))
        check(
            path, poster.post(good[:at] + content[: rng.randrange(4)] + good[at + rng.randrange(9) :], path)
        )


@pytest.mark.parametrize("path", list(SHAPES))
@fuzz(30)
@given(data=st.data())
def test_what_the_schema_allows(poster: Any, path: str, data: st.DataObject) -> None:
    case = data.draw(schemathesis.openapi.from_dict(poster.app.openapi())[path]["POST"].as_strategy())
    check(path, poster.post(encode(case.body), path))
