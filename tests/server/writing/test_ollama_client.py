"""Ollama's own Python client chats, streams, asks about models and meets errors, against a real server."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import ollama
import pytest
from PIL import Image
from writing_app import serving, wait_for_rest

KEY = "sk-test"
MODEL = "jev-latest"


@pytest.fixture(scope="module")
def url(tiny: Path) -> Iterator[str]:
    with serving(tiny, api_keys=[KEY]) as url:
        yield url


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[ollama.Client]:
    with ollama.Client(url, headers={"authorization": f"Bearer {KEY}"}, timeout=30) as client:
        yield client


def hello(text: str = "echo:Hello you") -> Any:
    return [{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}]


def test_a_chat(client: ollama.Client) -> None:
    answer = client.chat(MODEL, hello(), options={"temperature": 0.2, "seed": 1})
    assert answer.message.content == "Hello you"
    assert answer.message.thinking is None
    assert (answer.done, answer.done_reason) == (True, "stop")
    assert answer.prompt_eval_count
    assert answer.eval_count
    assert answer.total_duration
    assert answer.model == MODEL


def test_a_stream(client: ollama.Client) -> None:
    text = "one two three four five six seven eight nine ten"
    lines = list(client.chat(f"{MODEL}:latest", hello(f"echo:{text}"), stream=True))
    assert "".join(line.message.content or "" for line in lines) == text
    assert [line.done for line in lines] == [False] * (len(lines) - 1) + [True]
    assert len(lines) > 3


def test_a_line_holds_whatever_its_text_does(client: ollama.Client) -> None:
    text = "a\u2028b\x85c\nd\re\x1cf"
    lines = list(client.chat(MODEL, hello(f"echo:{text}"), stream=True))
    assert "".join(line.message.content or "" for line in lines) == text


def test_options(client: ollama.Client) -> None:
    options: Any = {"num_predict": 20, "seed": 3, "max_denoising_steps": 2}
    first = client.generate(MODEL, "Hello", options=options)
    assert first.eval_count is not None
    assert first.eval_count <= 20
    assert client.generate(MODEL, "Hello", options=options).response == first.response
    bits = client.generate(MODEL, "Hello", options=options, stream=True)
    assert "".join(bit.response or "" for bit in bits) == first.response
    assert client.generate(MODEL, "Hello", options={**options, "seed": -1}).response != first.response
    assert client.chat(MODEL, hello("echo:a b c"), options={"stop": ["b"]}).message.content == "a "
    assert client.chat(MODEL, hello("echo:a b c"), options={"num_predict": 1}).done_reason == "length"


def test_thinking(client: ollama.Client) -> None:
    text = "echo:ids:[100,65,101,66]"
    answer = client.chat(MODEL, hello(text), think=True)
    assert answer.message.thinking
    assert answer.message.content
    assert client.chat(MODEL, hello(text), think=False).message.thinking is None
    lines = list(client.chat(MODEL, hello(text), think=True, stream=True))
    assert "".join(line.message.thinking or "" for line in lines) == answer.message.thinking


def test_pictures(client: ollama.Client) -> None:
    out = io.BytesIO()
    Image.new("RGB", (96, 96), "red").save(out, "PNG")
    message = {"role": "user", "content": "What?", "images": [out.getvalue()]}
    answer = client.chat(MODEL, [message], options={"num_predict": 4, "max_denoising_steps": 1})  # type: ignore[dict-item]
    assert answer.prompt_eval_count is not None
    assert answer.prompt_eval_count > 100
    data = base64.b64encode(out.getvalue()).decode()
    assert client.generate(
        MODEL, "What?", images=[data], options={"num_predict": 4, "max_denoising_steps": 1}
    )  # type: ignore[list-item]


def test_the_models(client: ollama.Client, url: str) -> None:
    names = [model.model for model in client.list().models]
    assert names == ["jev-latest", "jev-preview", "tiny"]
    assert [model.model for model in client.ps().models] == names
    shown = client.show("tiny")
    assert shown.modelinfo is not None
    assert shown.modelinfo["diffusion-gemma.context_length"] == 4096
    assert shown.capabilities == ["completion", "vision", "thinking"]
    answer = httpx.get(f"{url}/api/version", headers={"authorization": f"Bearer {KEY}"})
    assert answer.json()["version"]


def test_nothing_to_write_only_asks_for_the_model(client: ollama.Client) -> None:
    assert client.generate(MODEL).done_reason == "load"
    answer = client.chat(MODEL, [])
    assert (answer.done_reason, answer.message.content) == ("load", "")
    with pytest.raises(ollama.ResponseError, match="llama3"):
        client.generate("llama3")


def test_curl_needs_no_content_type(client: ollama.Client, url: str) -> None:
    headers = {"authorization": f"Bearer {KEY}", "content-type": "application/x-www-form-urlencoded"}
    answer = httpx.post(
        f"{url}/api/generate", content=b'{"prompt": "echo:Hi", "stream": false}', headers=headers
    )
    assert answer.json()["response"] == "Hi"
    assert answer.headers["content-type"] == "application/json"


def test_options_without_effect_are_said(url: str) -> None:
    body = {"prompt": "echo:Hi", "options": {"top_k": 5, "num_ctx": 99, "tempreature": 1}, "keep_alive": "5m"}
    answer = httpx.post(f"{url}/api/generate", json=body, headers={"authorization": f"Bearer {KEY}"})
    assert answer.headers["x-jev-ignored"] == "top_k, num_ctx"
    assert answer.headers["x-jev-unknown"] == "options.tempreature"


def test_errors(client: ollama.Client, url: str) -> None:
    with pytest.raises(ollama.ResponseError, match="llama3") as missing:
        client.chat("llama3", hello())
    assert missing.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match="format") as refused:
        client.chat(MODEL, hello(), format="json")
    assert refused.value.status_code == 400
    with pytest.raises(ollama.ResponseError) as unknown:
        ollama.Client(url).chat(MODEL, hello())
    assert unknown.value.status_code == 401
    late = ollama.Client(url, headers={"authorization": f"Bearer {KEY}", "timeout": "0.5"})
    slow: Any = {"max_denoising_steps": 1000, "stability": 1000}
    with pytest.raises(ollama.ResponseError, match="deadline"):
        list(late.chat(MODEL, hello("Hello"), stream=True, options=slow))


def test_a_client_that_goes_away_takes_its_text_along(client: ollama.Client, url: str) -> None:
    slow: Any = {"max_denoising_steps": 1000, "stability": 1000}
    with pytest.raises(httpx.ReadTimeout):
        ollama.Client(url, headers={"authorization": f"Bearer {KEY}"}, timeout=0.5).generate(
            MODEL, "Hello", options=slow
        )
    wait_for_rest(url, 2)


def test_decisions_through_the_same_client(client: ollama.Client) -> None:
    questions: Any = {"q": {"type": "noul", "instructions": "Is it late?"}}
    answers = client.systemone(MODEL, "It is late.", questions)
    assert 0 <= answers.answers["q"].noul <= 1  # type: ignore[union-attr]
