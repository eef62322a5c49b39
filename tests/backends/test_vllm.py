"""Proves that reads through vLLM's completions give the engine's numbers and lose nothing silently."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from backend_cases import QUESTIONS, REQUESTS, distance, request
from fake_vllm import FakeVllm
from fastapi.responses import JSONResponse, PlainTextResponse

from jev.backends import open_backend
from jev.backends.vllm import VllmBackend
from jev.engine import Engine
from jev.errors import (
    APIError,
    ConnectionError,
    InvalidRequestError,
    ModelUnavailableError,
    ResponseError,
    ServerError,
    TimeoutError,
)
from jev.model import embedded
from jev.model.tokenizer import Tokenizer
from jev.retry import RetryPolicy
from jev.schemas import Choice, SystemOneRequest, SystemOneResponse
from jev.settings import Settings

QUICK = RetryPolicy(max_retries=2, backoff=0.001)
ONE = {"refund": QUESTIONS["refund"]}


def backend_for(server: FakeVllm, folder: Path, **options: Any) -> VllmBackend:
    transport = httpx.ASGITransport(server.app)
    return VllmBackend(
        "http://test", **{"tokenizer": folder, "retry": QUICK, "transport": transport, **options}
    )


def ask(backend: VllmBackend, *requests: SystemOneRequest) -> list[SystemOneResponse]:
    async def decide() -> list[SystemOneResponse]:
        try:
            return await asyncio.gather(*map(backend.decide, requests))
        finally:
            await backend.aclose()

    return asyncio.run(decide())


def test_every_kind_of_request(tiny: Path, small: Engine) -> None:
    server = FakeVllm(small, Tokenizer.from_folder(tiny))
    asked = [request(**fields, diagnostics=True) for fields in REQUESTS.values()]
    for one, response in zip(asked, ask(backend_for(server, tiny), *asked), strict=True):
        expected = small.decide(one)
        assert distance(expected, response) < 1e-5
        assert response.model == "served/diffusiongemma"
        assert response.usage == expected.usage
        assert response.x_diagnostics is not None
        assert expected.x_diagnostics is not None
        for name in QUESTIONS:
            ours, theirs = (r.x_diagnostics["questions"][name] for r in (response, expected))  # type: ignore[index]
            assert ours["reads"] == theirs["reads"]
            if ours["reads"]:
                assert ours["label_mass"] == pytest.approx(theirs["label_mass"], abs=1e-6)


def test_what_is_pinned(tiny: Path, small: Engine) -> None:
    server = FakeVllm(small)
    ask(backend_for(server, tiny, model="given"), request(questions=ONE, samples=1))
    (call,) = server.calls
    (unit,) = small.prepare(request(questions=ONE, samples=1)).units
    assert call["model"] == "given"
    assert call["prompt"] == [*unit.prefix, *unit.branch]
    canvas, pinned = call["vllm_xargs"]["diffusion_seed_canvas"], call["vllm_xargs"]["diffusion_pinned"]
    assert tuple(canvas) == unit.seeded(0).ids
    assert set(range(len(canvas))) - set(pinned) == {slot.position for slot in unit.slots}


def test_more_labels_than_one_call_may_name(tiny: Path, small: Engine) -> None:
    one = request(questions={"many": Choice([str(n) for n in range(130)])}, samples=1)
    server = FakeVllm(small)
    (response,) = ask(backend_for(server, tiny), one)
    assert distance(small.decide(one), response) < 1e-5
    assert [len(call["logprob_token_ids"]) for call in server.calls] == [128, 2]


def test_label_that_does_not_come_back(tiny: Path, small: Engine) -> None:
    label = small.context.labels.noul[1]
    server = FakeVllm(small, hidden=frozenset({label.id}))
    with pytest.raises(ResponseError) as error:
        ask(backend_for(server, tiny), request(samples=1))
    assert f"no log-probability of label '{label.text}' (token {label.id}) of question 'refund'" in str(
        error.value
    )
    assert "http://test" in str(error.value)


def test_canvas_of_one_width_only(tiny: Path, small: Engine) -> None:
    server = FakeVllm(small, narrower=False)
    with pytest.raises(APIError, match="diffusion_canvas_length 6 cannot be served"):
        ask(backend_for(server, tiny), request(samples=1))
    ask(backend_for(server, tiny, canvas_width=16), request(samples=1))
    assert server.calls[-1]["vllm_xargs"]["diffusion_seed_canvas"][-10:] == [0] * 10


def test_another_tokenizer(tiny: Path, small: Engine) -> None:
    server = FakeVllm(small, Tokenizer.from_folder(embedded.path()))
    with pytest.raises(ModelUnavailableError, match=r"is not that of served/diffusiongemma at http://test"):
        ask(backend_for(server, tiny), request(samples=1))
    assert not server.calls


@pytest.mark.parametrize(
    ("reply", "kind", "message"),
    [
        (JSONResponse({"error": {"message": "too long", "code": 400}}, 400), InvalidRequestError, "too long"),
        (JSONResponse({"error": {"message": "engine died"}}, 500), ServerError, "engine died"),
        (PlainTextResponse("<html>", 200), ResponseError, "."),
        (JSONResponse({"choices": []}), ResponseError, "no log-probabilities by token id"),
        (JSONResponse({"choices": [{"logprobs": None}]}), ResponseError, "structured diffusion"),
        (
            JSONResponse({"choices": [{"logprobs": {"top_logprobs": [{"yes": -1}] * 9}}]}),
            ResponseError,
            "by token id",
        ),
        (JSONResponse({"choices": [{"logprobs": {"top_logprobs": [{}]}}]}), ResponseError, "returned 1 rows"),
        (JSONResponse([]), ResponseError, "not an object"),
    ],
)
def test_answers_that_are_none(
    reply: Any, kind: type[Exception], message: str, tiny: Path, small: Engine
) -> None:
    server = FakeVllm(small, failures=[reply] * 9)
    with pytest.raises(kind, match=message):
        ask(backend_for(server, tiny), request(questions=ONE, samples=1))


def test_passing_failures_are_tried_again(tiny: Path, small: Engine) -> None:
    busy = JSONResponse({"error": {"message": "busy"}}, 503, headers={"retry-after-ms": "1"})
    server = FakeVllm(small, failures=[busy, busy])
    (response,) = ask(backend_for(server, tiny), request(questions=ONE, samples=1))
    assert response.answers
    assert len(server.calls) == 3


@pytest.mark.parametrize(
    ("failure", "kind"),
    [(httpx.ConnectError("no"), ConnectionError), (httpx.ReadTimeout("slow"), TimeoutError)],
)
def test_server_that_is_not_there(failure: Exception, kind: type[Exception], tiny: Path) -> None:
    def fail(_: httpx.Request) -> httpx.Response:
        raise failure

    backend = VllmBackend(
        "http://test", tokenizer=tiny, retry=QUICK, transport=httpx.MockTransport(fail), timeout=3
    )
    with pytest.raises(kind, match="http://test"):
        ask(backend, request())


def test_spec(tiny: Path, tmp_path: Path) -> None:
    backend = open_backend(f"vllm=http://h:1,tokenizer={tiny}", Settings())
    assert backend.name == f"vllm=http://h:1,tokenizer={tiny}"
    asyncio.run(backend.aclose())
    with pytest.raises(ValueError, match="nowhere does not exist"):
        open_backend(f"vllm=http://h:1,tokenizer={tmp_path / 'nowhere'}")
