"""Proves that the in-process backend answers as its engine does, for many calls at once, without limits."""

from __future__ import annotations

import asyncio
import base64

import pytest
from backend_cases import REQUESTS, distance, request

from jev.backends.torch import TorchBackend
from jev.engine import Engine
from jev.errors import InvalidRequestError, ModelUnavailableError, NotFoundError
from jev.settings import Settings

SMALL_LIMITS = Settings(max_pending_requests=1, max_pending_tokens=1)


def test_many_calls_at_once(small: Engine) -> None:
    asked = [request(**fields, state=f"state {n}") for n in range(12) for fields in REQUESTS.values()]

    async def decide() -> list:
        backend = TorchBackend(small, SMALL_LIMITS)
        try:
            return await asyncio.gather(*map(backend.decide, asked))
        finally:
            await backend.aclose()

    responses = asyncio.run(decide())
    assert len(responses) == 60
    for one, response in list(zip(asked, responses, strict=True))[::7]:
        assert distance(small.decide(one), response) < 1e-5
        assert response.model == small.name


def test_attachments(small: Engine) -> None:
    file = {"name": "note.txt", "data": base64.b64encode(b"The invoice is wrong.").decode()}

    async def decide() -> None:
        backend = TorchBackend(small)
        with_file = await backend.decide(request(files=[file], samples=1, diagnostics=True))
        without = await backend.decide(request(samples=1))
        assert with_file.usage.input_tokens > without.usage.input_tokens
        assert with_file.x_diagnostics is not None
        assert [one["name"] for one in with_file.x_diagnostics["evidence"]] == ["note.txt"]
        with pytest.raises(InvalidRequestError) as error:
            await backend.decide(request(files=[file, {"name": "a.pdf", "data": "AAAA"}]))
        assert error.value.issues[0].loc[:3] == ["body", "files", 1]
        with pytest.raises(InvalidRequestError, match="no uploaded file"):
            await backend.decide(request(files=[{"file": "gone"}]))
        await backend.aclose()

    asyncio.run(decide())


def test_refusals_and_the_end(small: Engine) -> None:
    async def decide() -> None:
        backend = TorchBackend(small)
        with pytest.raises(NotFoundError):
            await backend.decide(request(model="gpt-9"))
        await backend.aclose()
        with pytest.raises(ModelUnavailableError, match="closed"):
            await backend.decide(request())

    asyncio.run(decide())


def test_two_event_loops(small: Engine) -> None:
    backend = TorchBackend(small)
    first, second = (asyncio.run(backend.decide(request(samples=1))) for _ in range(2))
    assert distance(first, second) < 1e-6
    asyncio.run(backend.aclose())
