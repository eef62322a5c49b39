"""OpenAI's own Python client chats, streams and meets its own errors, against a real server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from writing_app import pending_texts, serving, wait_for_rest

KEY = "sk-test"
MODEL = "jev-latest"


@pytest.fixture(scope="module")
def url(tiny: Path) -> Iterator[str]:
    with serving(tiny, api_keys=[KEY], max_texts=3) as url:
        yield url


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0, timeout=30) as client:
        yield client


def hello(text: str = "echo:Hello you") -> Any:
    return [{"role": "user", "content": text}]


def test_models_are_listed(client: OpenAI) -> None:
    listed = client.models.list().data
    assert {"jev-latest", "tiny"} <= {one.id for one in listed}
    assert all(one.object == "model" and one.created > 0 for one in listed)
    assert [client.models.retrieve(one.id) for one in listed] == listed
    with pytest.raises(openai.NotFoundError, match="No model named 'gpt-5'; loaded: tiny") as missing:
        client.models.retrieve("gpt-5")
    assert missing.value.code == "model_not_found"


def test_a_chat(client: OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=hello(), seed=1, temperature=0.5)
    assert answer.choices[0].message.content == "Hello you"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.model == "tiny"


def test_a_chat_with_the_model(client: OpenAI) -> None:
    fields: Any = {"model": MODEL, "max_tokens": 20, "seed": 7, "extra_body": {"max_denoising_steps": 3}}
    answer = client.chat.completions.create(messages=hello("Hello"), **fields)
    with client.chat.completions.create(messages=hello("Hello"), stream=True, **fields) as stream:
        bits = [chunk.choices[0].delta.content or "" for chunk in stream]
    assert "".join(bits) == answer.choices[0].message.content
    raw = client.chat.completions.with_raw_response.create(messages=hello("Hello"), **fields)
    assert raw.headers["x-jev-seed"] == "7"
    assert raw.parse().choices == answer.choices


def test_a_stream(client: OpenAI) -> None:
    text = "one two three\u2028four\x85five\nsix\rseven eight nine ten"
    stream = client.chat.completions.create(
        model=MODEL, messages=hello(f"echo:{text}"), stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == text
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens > 16


def test_drafts_and_reasoning_come_through(client: OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL,
        messages=hello("echo:ids:[100,101,65]"),
        stream=True,
        stream_options={"denoising": True},  # type: ignore[typeddict-unknown-key]
        extra_body={"include_reasoning": True},
    )
    drafts = [
        chunk.model_extra["x_denoising"] for chunk in stream if "x_denoising" in (chunk.model_extra or {})
    ]
    assert drafts[-1]["final"]


def test_completions(client: OpenAI) -> None:
    text = client.completions.create(model=MODEL, prompt="echo:The sky", stop=["ky"])
    assert (text.choices[0].text, text.choices[0].finish_reason) == ("The s", "stop")
    bits = list(client.completions.create(model=MODEL, prompt="echo:The sky", stream=True))
    assert "".join(bit.choices[0].text for bit in bits) == "The sky"


def test_errors(client: OpenAI, url: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=MODEL, messages=hello(), n=2)
    assert refused.value.param == "n"
    assert refused.value.code == "unsupported_parameter"
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=MODEL, messages=hello("a" * 100_000))
    assert refused.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-5", messages=hello())
    assert missing.value.code == "model_not_found"
    assert str(missing.value.request_id).startswith("req_")
    wrong = OpenAI(base_url=f"{url}/v1", api_key="sk-wrong", max_retries=0)
    with wrong, pytest.raises(openai.AuthenticationError):
        wrong.chat.completions.create(model=MODEL, messages=hello())
    with pytest.raises(openai.InternalServerError) as late:
        client.chat.completions.create(model=MODEL, messages=hello(), extra_headers={"timeout": "0.000001"})
    assert late.value.status_code == 529


def test_an_error_in_a_stream(client: OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL,
        messages=hello("Hello"),
        stream=True,
        extra_headers={"timeout": "0.5"},
        extra_body={"max_denoising_steps": 1000, "stability": 1000},
    )
    with pytest.raises(openai.APIError, match="deadline"):
        list(stream)


def test_a_client_that_goes_away_takes_its_text_along(client: OpenAI, url: str) -> None:
    fields: Any = {"model": MODEL, "messages": hello("Hello"), "extra_body": {"max_denoising_steps": 1000}}
    stream = client.chat.completions.create(stream=True, **fields)
    next(iter(stream))
    assert pending_texts(url) == 1
    stream.close()
    wait_for_rest(url, 2)

    async def impatient() -> None:
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as client:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(client.chat.completions.create(**fields), 0.5)

    asyncio.run(impatient())
    wait_for_rest(url, 2)


def test_too_many_texts(client: OpenAI, url: str) -> None:
    fields: Any = {"model": MODEL, "messages": hello("Hello"), "extra_body": {"max_denoising_steps": 1000}}
    streams = [client.chat.completions.create(stream=True, **fields) for _ in range(3)]
    with pytest.raises(openai.InternalServerError) as full:
        client.chat.completions.create(**fields)
    assert full.value.status_code == 529
    assert int(full.value.response.headers["retry-after"]) >= 1
    for stream in streams:
        stream.close()
    wait_for_rest(url, 2)


def test_decisions_are_answered_beside_a_text(client: OpenAI, url: str) -> None:
    stream = client.chat.completions.create(
        model=MODEL, messages=hello("Hello"), stream=True, extra_body={"max_denoising_steps": 1000}
    )
    next(iter(stream))
    body = {"state": "x", "questions": {"q": {"type": "noul", "instructions": "?"}}}
    headers = {"authorization": f"Bearer {KEY}"}
    began = time.monotonic()
    assert httpx.post(f"{url}/v1/systemone", json=body, headers=headers).status_code == 200
    assert time.monotonic() - began < 5
    assert pending_texts(url) == 1
    stream.close()
    wait_for_rest(url, 2)
