"""Proves that a server lists its adapters, answers with the one that is named, and says which there are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from jev.engine import Engine
from jev.model.lora import Adapter
from jev.server.app import create_app
from jev.settings import Settings

MODELS = ("jev-latest", "tiny+one", "jev-preview+two")


@pytest.fixture(scope="module")
def adapted(smooth: Path, random_adapter: Callable[..., Adapter]) -> Engine:
    config = Engine.load(smooth).model.config.text
    adapters = {"one": random_adapter(config, 1), "two": random_adapter(config, 2, rank=2)}
    return Engine.load(smooth, name="tiny", adapters=adapters)


@pytest.fixture
def served(adapted: Engine) -> Iterator[TestClient]:
    with TestClient(create_app(Settings(), adapted)) as client:
        yield client


def asked(model: str, state: str = "My card was charged twice.") -> dict[str, Any]:
    question = {
        "type": "choice",
        "instructions": "What is it about?",
        "criteria": {"money": None, "travel": None, "music": None},
    }
    return {"model": model, "state": state, "questions": {"topic": question}, "samples": 1}


def test_they_are_listed_and_answer(served: TestClient) -> None:
    listed = {one["name"]: one["description"] for one in served.get("/v1/models").json()["models"]}
    assert {"jev-latest", "tiny", "jev-latest+one", "jev-preview+one", "tiny+one", "tiny+two"} <= set(listed)
    assert listed["tiny+two"].endswith("with adapter two, rank 2")
    answers = [served.post("/v1/systemone", json=asked(model)).json() for model in MODELS]
    assert [one["model"] for one in answers] == ["tiny", "tiny+one", "tiny+two"]
    first = [one["answers"]["topic"]["probabilities"]["money"] for one in answers]
    assert min(abs(a - b) for a in first for b in first if a is not b) > 0.005


def test_an_unknown_one_is_404(served: TestClient) -> None:
    response = served.post("/v1/systemone", json=asked("jev-latest+three"))
    assert response.status_code == 404
    unknown = served.post("/v1/systemone", json=asked("other"))
    assert unknown.status_code == 404
    message = "No model named 'jev-latest+three'; loaded: tiny, tiny+one, tiny+two"
    assert message in response.text
    assert response.json().keys() == unknown.json().keys()


def test_many_callers_of_several_at_once(adapted: Engine) -> None:
    """Scheduled together, with prefixes in the cache, each answer is the one that it gets alone."""
    bodies = [
        asked(model, f"State {number % 4}. " * (1 + number)) for number in range(12) for model in MODELS
    ]
    alone = TestClient(create_app(Settings(), adapted))
    with alone:
        expected = [alone.post("/v1/systemone", json=body).json() for body in bodies]

    async def together() -> list[httpx.Response]:
        app = create_app(Settings(), adapted)
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://test") as client,
        ):
            return await asyncio.gather(*(client.post("/v1/systemone", json=body) for body in bodies))

    for response, one in zip(asyncio.run(together()), expected, strict=True):
        found = response.json()
        assert found["model"] == one["model"]
        assert found["answers"]["topic"]["probabilities"] == pytest.approx(
            one["answers"]["topic"]["probabilities"], abs=1e-5
        )
