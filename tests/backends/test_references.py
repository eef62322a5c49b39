"""Proves that the unified and the transformers backend give the engine's numbers, whatever is asked."""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from backend_cases import QUESTIONS, REQUESTS, distance, request
from PIL import Image

from jev.backends.torch import TorchBackend
from jev.backends.transformers import TransformersBackend
from jev.backends.unified import UnifiedBackend
from jev.engine import Engine
from jev.errors import InvalidRequestError, ModelUnavailableError, NotFoundError, ServerError
from jev.schemas import SystemOneRequest, SystemOneResponse
from jev.settings import Settings

BACKENDS: dict[str, Callable[[Path], Any]] = {
    "unified": lambda folder: UnifiedBackend(settings=Settings(model=folder)),
    "transformers": lambda folder: TransformersBackend(Settings(model=folder)),
}


def ask(backend: Any, *requests: SystemOneRequest) -> list[SystemOneResponse]:
    """Ask all requests at once, then close the backend."""

    async def decide() -> list[SystemOneResponse]:
        try:
            return await asyncio.gather(*map(backend.decide, requests))
        finally:
            await backend.aclose()

    return asyncio.run(decide())


@pytest.mark.parametrize("kind", BACKENDS)
def test_every_kind_of_request(kind: str, tiny: Path, small: Engine) -> None:
    asked = [request(**fields, diagnostics="full") for fields in REQUESTS.values()]
    for one, response in zip(asked, ask(BACKENDS[kind](tiny), *asked), strict=True):
        expected = small.decide(one)
        assert distance(expected, response) < 1e-5
        assert response.usage == expected.usage
        ours, theirs = response.x_diagnostics, expected.x_diagnostics
        assert ours is not None
        assert theirs is not None
        assert ours["units"] == theirs["units"]
        for name in QUESTIONS:
            assert ours["questions"][name]["reads"] == theirs["questions"][name]["reads"]
            if theirs["questions"][name]["reads"]:
                mass = ours["questions"][name]["label_mass"]
                assert mass == pytest.approx(theirs["questions"][name]["label_mass"], abs=1e-5)


def test_embedded_model() -> None:
    """Its weights are int8 groups, which transformers cannot read by itself."""
    one = request(samples=1)
    (expected,) = ask(TorchBackend(), one)
    (unified,) = ask(UnifiedBackend(), one)
    (transformers,) = ask(TransformersBackend(), one)
    assert distance(expected, unified) < 1e-5
    assert distance(expected, transformers) < 1e-4
    assert transformers.model == expected.model == "jev-mini"


@pytest.mark.parametrize("kind", BACKENDS)
def test_refusals(kind: str, tiny: Path) -> None:
    picture = io.BytesIO()
    Image.new("RGB", (32, 32)).save(picture, "PNG")
    image = base64.b64encode(picture.getvalue()).decode()
    backend = BACKENDS[kind](tiny)

    async def decide() -> None:
        with pytest.raises(ModelUnavailableError, match=f"backend {kind} reads text only"):
            await backend.decide(request(images=[image]))
        with pytest.raises(NotFoundError, match="No model named 'gpt-9'"):
            await backend.decide(request(model="gpt-9"))
        with pytest.raises(InvalidRequestError, match="uncalibrated"):
            await backend.decide(request(calibration="mine"))
        with pytest.raises(InvalidRequestError):
            await backend.decide(request(state="word " * 5000))
        await backend.aclose()
        with pytest.raises(ModelUnavailableError, match="closed"):
            await backend.decide(request())

    asyncio.run(decide())


def test_weights_that_are_not_numbers(tiny: Path) -> None:
    engine = Engine.load(tiny)
    engine.model.text.norm.weight.data.fill_(float("nan"))
    with pytest.raises(ServerError, match="not finite"):
        ask(UnifiedBackend(engine), request(samples=1))
