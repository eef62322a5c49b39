"""What is not served is refused with 400, in the shape of the API that was asked, naming the field."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from writing_app import App

from jev.engine import Engine
from jev.schemas.completion import OpenAIErrorBody

USER = {"role": "user", "content": "Hello"}
PICTURE = {"type": "image_url", "image_url": {"url": "https://example.com/cat.png"}}


def refusal(app: App, body: dict[str, Any], path: str = "/v1/chat/completions") -> dict[str, Any]:
    """The error of a body that is refused."""
    response = app.client.post(path, json=body)
    assert response.status_code == 400, response.text
    return OpenAIErrorBody.model_validate(response.json()).error.model_dump()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", [{"type": "function", "function": {"name": "f"}}]),
        ("functions", [{"name": "f"}]),
        ("tool_choice", "auto"),
        ("tool_choice", {"type": "function", "function": {"name": "f"}}),
        ("function_call", "auto"),
        ("n", 2),
        ("best_of", 3),
        ("logprobs", True),
        ("top_logprobs", 5),
        ("response_format", {"type": "json_object"}),
        ("response_format", {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}),
        ("structured_outputs", {"json": {}}),
        ("guided_json", {}),
        ("logit_bias", {"50": 1}),
        ("bad_words", ["no"]),
        ("min_tokens", 1),
        ("audio", {"voice": "x"}),
        ("modalities", ["text", "audio"]),
        ("web_search_options", {}),
    ],
)
def test_unsupported_fields(echo: App, field: str, value: Any) -> None:
    error = refusal(echo, {"messages": [USER], field: value})
    assert error["param"] == field
    assert error["code"] == "unsupported_parameter"
    assert error["type"] == "invalid_request_error"
    assert error["message"].startswith(f"{field}: ")


def test_values_that_ask_for_nothing_are_taken(echo: App) -> None:
    nothing = {
        "tools": [],
        "tool_choice": "none",
        "n": 1,
        "logprobs": False,
        "top_logprobs": 0,
        "response_format": {"type": "text"},
        "logit_bias": {},
        "bad_words": [],
        "min_tokens": 0,
        "functions": None,
        "stop": None,
        "seed": None,
        "max_tokens": None,
        "modalities": ["text"],
    }
    assert echo.answer("Hello", **nothing)["content"] == "Hello"


@pytest.mark.parametrize(
    ("field", "value", "param"),
    [
        ("temperature", 2.5, "temperature"),
        ("temperature", "hot", "temperature"),
        ("top_p", -0.1, "top_p"),
        ("top_k", 1.5, "top_k"),
        ("min_p", 2, "min_p"),
        ("presence_penalty", 3, "presence_penalty"),
        ("repetition_penalty", 0, "repetition_penalty"),
        ("max_tokens", 0, "max_tokens"),
        ("max_completion_tokens", "many", "max_completion_tokens"),
        ("seed", -1, "seed"),
        ("seed", 2**63, "seed"),
        ("stop", ["a"] * 5, "stop"),
        ("stop", "", "stop"),
        ("stop", [1], "stop[0]"),
        ("stop", 7, "stop"),
        ("stream", "yes", "stream"),
        ("stream_options", {"denoising": True}, None),
        ("max_denoising_steps", 0, "max_denoising_steps"),
        ("max_denoising_steps", 1001, "max_denoising_steps"),
        ("diffusion_sampler", "ddim", "diffusion_sampler"),
        ("threshold", 1.1, "threshold"),
        ("entropy_bound", 0, "entropy_bound"),
        ("t_min", 0.9, "t_max"),
        ("stability", -1, "stability"),
        ("confidence", 0, "confidence"),
        ("max_canvas", 17, "max_canvas"),
        ("reasoning_effort", "immense", "reasoning_effort"),
        ("include_reasoning", 1, "include_reasoning"),
        ("chat_template_kwargs", {"enable_thinking": "yes"}, "chat_template_kwargs.enable_thinking"),
        ("model", "", "model"),
        ("messages", [], "messages"),
        ("messages", "Hello", "messages"),
        ("messages", [{"role": "tool", "content": "x"}], "messages[0].role"),
        ("messages", [USER, {"role": "user"}], "messages[1]"),
        ("messages", [{"role": "user", "content": 5}], "messages[0].content"),
        ("messages", [{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ("messages", [{"role": "user", "content": [PICTURE]}], "messages[0].content[0].image_url.url"),
        ("messages", [{"role": "assistant", "content": [PICTURE]}], "messages[0]"),
        ("messages", [{"role": "assistant", "tool_calls": [{}]}], "messages[0].tool_calls"),
    ],
)
def test_values_out_of_range(echo: App, field: str, value: Any, param: str | None) -> None:
    error = refusal(echo, {"messages": [USER], field: value})
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize("kind", ["input_audio", "video_url", "file", "x", None])
def test_parts_that_are_not_text_or_pictures(echo: App, kind: Any) -> None:
    error = refusal(echo, {"messages": [{"role": "user", "content": [{"type": kind, kind or "x": {}}]}]})
    assert error["param"] == "messages[0].content[0]"
    assert "'text' or 'image_url'" in error["message"]


def test_no_url_is_fetched(echo: App) -> None:
    error = refusal(echo, {"messages": [{"role": "user", "content": [PICTURE]}]})
    assert "no URL is fetched" in error["message"]
    assert "example.com" not in error["message"]


def test_two_limits_that_differ(echo: App) -> None:
    error = refusal(echo, {"messages": [USER], "max_tokens": 5, "max_completion_tokens": 6})
    assert "max_completion_tokens" in error["message"]
    assert echo.answer("Hello", max_tokens=5, max_completion_tokens=5)


@pytest.mark.parametrize(
    ("field", "value", "param"),
    [
        ("echo", True, "echo"),
        ("suffix", "end", "suffix"),
        ("best_of", 2, "best_of"),
        ("logprobs", 0, "logprobs"),
        ("prompt", ["a", "b"], "prompt"),
        ("prompt", [1, 2], "prompt"),
        ("prompt", [[1, 2]], "prompt[0]"),
        ("prompt", None, "prompt"),
    ],
)
def test_completions(echo: App, field: str, value: Any, param: str) -> None:
    error = refusal(echo, {"prompt": "The", field: value}, "/v1/completions")
    assert error["param"] is not None
    assert error["param"].startswith(param)


def test_a_prompt_that_is_too_long(echo: App) -> None:
    limit = echo.engine.max_context
    template = echo.engine.context.template
    room = limit - 16 - len(template.chat(""))
    assert echo.chat("a" * room, max_denoising_steps=1).status_code == 200
    for size in (room + 1, 100 * limit):
        error = refusal(echo, {"messages": [{"role": "user", "content": "a" * size}]})
        assert (error["param"], error["code"]) == ("messages", "context_length_exceeded")
        assert str(limit) in error["message"] or str(limit - 16) in error["message"]
    error = refusal(echo, {"prompt": "a" * limit}, "/v1/completions")
    assert error["param"] == "prompt"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_other_errors_have_openais_shape_too(
    echo: App, echo_engine: Engine, start_app: Callable[..., App], path: str
) -> None:
    body = {"prompt": "x", "messages": [USER]}

    def error(response: Any, status: int) -> dict[str, Any]:
        assert response.status_code == status, response.text
        return OpenAIErrorBody.model_validate(response.json()).error.model_dump()

    client = echo.client
    assert error(client.post(path, json={**body, "model": "gpt-5"}), 404)["code"] == "model_not_found"
    assert error(client.post(path, content=b"{"), 400)["code"] == "invalid_json"
    assert error(client.post(path, json=[]), 400)["param"] is None
    for given in (
        {"content": b"x", "headers": {"content-type": "text/html"}},
        {"content": b"x", "headers": {"content-type": "multipart/form-data"}},
        {"files": {"request": b"{}"}},
    ):
        assert error(client.post(path, **given), 415)["message"] == "Send application/json"
    assert error(client.get(path), 405)["type"] == "invalid_request_error"
    assert error(client.post(path, json=body, headers={"timeout": "x"}), 400)["param"] == "timeout"
    assert error(client.post(path, json=body, headers={"timeout": "1e-9"}), 529)["code"] == "overloaded"

    keyed = start_app(echo_engine, api_keys=["right"], max_body_bytes=1000, rate_limit_rpm=2).client
    assert error(keyed.post(path, json=body), 401)["code"] == "invalid_api_key"
    wrong = keyed.post(path, json=body, headers={"authorization": "Bearer wrong"})
    assert error(wrong, 401)["type"] == "authentication_error"
    right = {"authorization": "Bearer right"}
    assert error(keyed.post(path, json={**body, "x": "a" * 2000}, headers=right), 413)
    assert keyed.post(path, json={**body, "max_tokens": 4}, headers=right).status_code == 200
    late = keyed.post(path, json=body, headers=right)
    assert error(late, 429)["type"] == "rate_limit_error"
    assert int(late.headers["retry-after"]) >= 1


def test_no_model_yet(echo_engine: Engine, start_app: Callable[..., App]) -> None:
    app = start_app(echo_engine)
    service = app.client.app.state.service  # type: ignore[attr-defined]
    serving, service._serving = service._serving, None
    try:
        response = app.chat("Hello")
    finally:
        service._serving = serving
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "model_unavailable"


@pytest.mark.parametrize(
    ("path", "body", "word"),
    [
        ("/api/chat", {"messages": [USER], "format": "json"}, "format"),
        ("/api/chat", {"messages": [USER], "tools": [{}]}, "tools"),
        ("/api/chat", {"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ("/api/chat", {"messages": [{**USER, "images": ["!"]}]}, "messages[0].images[0]"),
        ("/api/chat", {"messages": [USER], "think": "a lot"}, "think"),
        ("/api/chat", {"messages": [USER], "options": {"num_predict": "x"}}, "options.num_predict"),
        ("/api/chat", {"messages": [USER], "options": {"seed": -2}}, "options.seed"),
        ("/api/chat", {"messages": [USER], "options": {"stop": [""]}}, "options.stop[0]"),
        ("/api/chat", {"messages": [USER], "options": {"max_canvas": 17}}, "options.max_canvas"),
        ("/api/generate", {"prompt": "x", "suffix": "y"}, "suffix"),
        ("/api/generate", {"prompt": "x", "template": "{{ .Prompt }}"}, "template"),
        ("/api/generate", {"prompt": "x", "context": [1]}, "context"),
        ("/api/generate", {"prompt": "x", "logprobs": True}, "logprobs"),
        ("/api/generate", {"prompt": "x", "raw": True, "images": ["aGk="]}, "images and system need"),
        ("/api/generate", {"prompt": "x", "raw": True, "system": "y"}, "images and system need"),
        ("/api/generate", {"prompt": 5}, "prompt"),
        ("/api/generate", [], ""),
    ],
)
def test_ollama(echo: App, path: str, body: Any, word: str) -> None:
    response = echo.client.post(path, json=body)
    assert response.status_code == 400, response.text
    assert set(response.json()) == {"error"}
    assert response.json()["error"].startswith(word)


def test_a_content_type_of_a_form_does_not_matter(echo: App) -> None:
    """`curl -d` sends it, and Ollama's documentation uses that."""
    form = {"content-type": "application/x-www-form-urlencoded"}
    for path, body in (("/api/show", b'{"model": "jev-latest"}'), ("/api/generate", b'{"prompt": "x"}')):
        assert echo.client.post(path, content=body, headers=form).status_code == 200


def test_other_errors_have_ollamas_shape_too(
    echo: App, echo_engine: Engine, start_app: Callable[..., App]
) -> None:
    body = {"prompt": "x"}
    for response, status in (
        (echo.client.post("/api/generate", json={**body, "model": "llama3"}), 404),
        (echo.client.post("/api/show", json={"model": "llama3"}), 404),
        (echo.client.post("/api/pull", json={"model": "llama3"}), 404),
        (echo.client.get("/api/chat"), 405),
        (echo.client.post("/api/chat", content=b"{"), 400),
        (start_app(echo_engine, api_keys=["k"]).client.post("/api/generate", json=body), 401),
    ):
        assert response.status_code == status, response.text
        assert set(response.json()) == {"error"}
