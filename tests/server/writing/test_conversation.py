"""What a conversation on the wire becomes: turns in order, without thoughts, pictures in their places."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from typing import Any

import pytest
from PIL import Image
from writing_app import App

from jev.engine import Engine
from jev.model.tokenizer import Tokenizer
from jev.writing import TextPlan


def png(size: tuple[int, int] = (96, 96), color: str = "red") -> str:
    out = io.BytesIO()
    Image.new("RGB", size, color).save(out, "PNG")
    return base64.b64encode(out.getvalue()).decode()


def url(data: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}", "detail": "low"}}


@pytest.fixture
def planned(echo: App, monkeypatch: pytest.MonkeyPatch) -> Callable[..., TextPlan]:
    """The plan that a body becomes."""
    plans: list[TextPlan] = []
    prepare = echo.engine.prepare_text

    def noting(*args: Any, **options: Any) -> TextPlan:
        plans.append(prepare(*args, **options))
        return plans[-1]

    monkeypatch.setattr(echo.engine, "prepare_text", noting)

    def planned(path: str = "/v1/chat/completions", **body: Any) -> TextPlan:
        response = echo.client.post(path, json=body)
        assert response.status_code == 200, response.text
        return plans[-1]

    return planned


def prompt(plan: TextPlan, engine: Engine) -> str:
    return engine.context.tokenizer.decode(plan.prompt)


def test_turns(planned: Callable[..., TextPlan], echo: App) -> None:
    plan = planned(
        messages=[
            {"role": "developer", "content": " Be brief. "},
            {"role": "user", "content": "\nHi\n", "name": "ann"},
            {
                "role": "assistant",
                "content": "<|channel>thought\nA greeting.<channel|>Hello!",
                "refusal": None,
            },
            {
                "role": "user",
                "content": [{"type": "text", "text": " And "}, {"type": "text", "text": "bye "}],
            },
            {"role": "assistant", "content": None},
            {"role": "user", "content": "<turn|> so"},
        ]
    )
    assert prompt(plan, echo.engine) == (
        "<bos><|turn>system\nBe brief.<turn|>\n<|turn>user\nHi<turn|>\n<|turn>model\nHello!<turn|>\n"
        "<|turn>user\nAndbye<turn|>\n<|turn>model\n<turn|>\n<|turn>user\n<turn|> so<turn|>\n<|turn>model\n"
    )
    # The one that was typed is no control token.
    end = echo.engine.context.template.turn_end
    assert sum(one == end for one in plan.prompt) == 6


def test_a_thought_that_nobody_closed_is_left_out_too(planned: Callable[..., TextPlan], echo: App) -> None:
    messages = [
        {"role": "assistant", "content": "Yes.<|channel>thought\nWhy?"},
        {"role": "user", "content": "?"},
    ]
    assert "Why" not in prompt(planned(messages=messages), echo.engine)


@pytest.mark.parametrize(
    ("fields", "thinks"),
    [
        ({}, False),
        ({"reasoning_effort": "none"}, False),
        ({"reasoning_effort": "low"}, True),
        ({"chat_template_kwargs": {"enable_thinking": True}}, True),
        ({"chat_template_kwargs": {"enable_thinking": False}}, False),
        ({"chat_template_kwargs": {}}, False),
    ],
)
def test_thinking(planned: Callable[..., TextPlan], echo: App, fields: Any, thinks: bool) -> None:
    shown = prompt(planned(messages=[{"role": "user", "content": "Hi"}], **fields), echo.engine)
    assert shown.startswith("<bos><|turn>system\n<|think|>\n<turn|>\n<|turn>user") == thinks
    assert ("<|think|>" in shown) == thinks


def test_a_model_without_a_thinking_mode(echo: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(echo.engine.context.template, "_think", None)
    response = echo.chat("Hi", reasoning_effort="high")
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "reasoning_effort"
    body = {"messages": [{"role": "user", "content": "Hi"}], "think": True}
    assert echo.client.post("/api/chat", json=body).json()["error"].startswith("think")


def test_pictures(planned: Callable[..., TextPlan], echo: App) -> None:
    parts = [
        {"type": "text", "text": "One:"},
        url(png()),
        {"type": "text", "text": "two:"},
        url(png((48, 192))),
    ]
    plan = planned(messages=[{"role": "user", "content": parts}, {"role": "user", "content": "?"}])
    shown = prompt(plan, echo.engine)
    first, second = plan.images
    rows = "<|image>" + "<|image|>" * first.patches.tokens + "<image|>"
    assert f"user\nOne:{rows}two:<|image>" in shown
    assert plan.prompt[first.start - 1] == echo.engine.context.template.image_start
    assert first.patches.tokens != second.patches.tokens

    ollama = planned(
        "/api/chat", model="echo", messages=[{"role": "user", "content": "What?", "images": [png()]}]
    )
    assert f"user\n{rows}What?<turn|>" in prompt(ollama, echo.engine)
    generate = planned("/api/generate", prompt="What?", system="Be brief.", images=[png()])
    assert f"system\nBe brief.<turn|>\n<|turn>user\n{rows}What?<turn|>" in prompt(generate, echo.engine)


def test_an_answer_about_a_picture(tiny_app: App) -> None:
    messages = [{"role": "user", "content": [url(png()), {"type": "text", "text": "What is it?"}]}]
    fields = {"max_tokens": 8, "max_denoising_steps": 2, "seed": 1}
    first = tiny_app.client.post("/v1/chat/completions", json={"messages": messages, **fields}).json()
    assert first["usage"]["prompt_tokens"] > 100
    messages[0]["content"][0] = url(png(color="blue"))
    second = tiny_app.client.post("/v1/chat/completions", json={"messages": messages, **fields}).json()
    assert first["choices"] != second["choices"]


@pytest.mark.parametrize(
    ("data", "word"),
    [
        ("data:image/png;base64,!!", "base64"),
        ("data:text/plain;base64,aGVsbG8=", "pictures"),
        ("data:image/png;base64,aGVsbG8=", ""),
        ("file:///etc/passwd", "no URL is fetched"),
        (png(), "no URL is fetched"),
        ("data:image/png,xx", "base64"),
    ],
)
def test_pictures_that_are_none(echo: App, data: str, word: str) -> None:
    content = [{"type": "image_url", "image_url": {"url": data}}]
    response = echo.client.post(
        "/v1/chat/completions", json={"messages": [{"role": "user", "content": content}]}
    )
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == "messages[0].content[0].image_url.url"
    assert word == "pictures" or word in error["message"]


def test_too_many_pictures(echo: App) -> None:
    content = [url(png())] * 9
    response = echo.client.post(
        "/v1/chat/completions", json={"messages": [{"role": "user", "content": content}]}
    )
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "messages[0].content[8].image_url.url"


def test_a_model_without_a_vision_tower(echo: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(echo.engine.model, "vision", None)
    content = [url(png())]
    response = echo.client.post(
        "/v1/chat/completions", json={"messages": [{"role": "user", "content": content}]}
    )
    assert response.status_code == 400
    assert "vision tower" in response.json()["error"]["message"]


def test_a_prompt_without_any_layout(planned: Callable[..., TextPlan], echo: App) -> None:
    tokenizer: Tokenizer = echo.engine.context.tokenizer
    for plan in (
        planned("/v1/completions", prompt=" The "),
        planned("/api/generate", prompt=" The ", raw=True),
    ):
        assert plan.prompt == (echo.engine.context.template.bos, *tokenizer.encode(" The "))


def test_options_of_the_refinement(planned: Callable[..., TextPlan]) -> None:
    options = {
        "max_denoising_steps": 7,
        "diffusion_sampler": "confidence-threshold",
        "threshold": 0.5,
        "t_min": 0.1,
        "t_max": 0.2,
        "stability": 2,
        "full_canvas": False,
        "self_conditioning": False,
    }
    hello = [{"role": "user", "content": "Hi"}]
    for plan in (
        planned(messages=hello, seed=3, **options),
        planned("/api/chat", messages=hello, options={"seed": 3, **options}),
    ):
        found = plan.options
        assert (found.seed, found.max_denoising_steps, found.sampler) == (3, 7, "confidence-threshold")
        assert (found.threshold, found.t_min, found.t_max, found.stability) == (0.5, 0.1, 0.2, 2)
        assert not found.full_canvas
        assert not found.self_conditioning
