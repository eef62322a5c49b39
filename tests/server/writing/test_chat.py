"""A chat is answered in OpenAI's shape, at once or in bits, with thoughts apart and no marker in it."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from writing_app import WIDTH, App, content_of, events_of

from jev.engine import Engine
from jev.schemas.chat import ChatChunk, ChatCompletion

THOUGHT = "ids:[100,{name},101,{text}]"


def ids_of(app: App, text: str) -> list[int]:
    return app.engine.context.tokenizer.encode(text)


def thought(app: App, inside: str, after: str) -> str:
    """What makes the echo write a thought, then a text."""
    return "ids:" + json.dumps([100, *ids_of(app, f"thought\n{inside}"), 101, *ids_of(app, after)])


def test_an_answer(echo: App) -> None:
    response = echo.chat("Hello you", seed=5)
    body = response.json()
    ChatCompletion.model_validate(body)
    assert body["id"] == "chatcmpl-" + response.headers["x-request-id"].removeprefix("req_")
    assert body["object"] == "chat.completion"
    assert body["model"] == "echo"
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello you", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    written = len(ids_of(echo, "Hello you"))
    assert body["usage"] == {
        "prompt_tokens": len(echo.engine.context.template.chat("Hello you")),
        "completion_tokens": written,
        "total_tokens": body["usage"]["prompt_tokens"] + written,
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
    assert response.headers["x-jev-seed"] == "5"
    assert "x-jev-ignored" not in response.headers
    assert "x-jev-warning" not in response.headers


def test_a_stream(echo: App) -> None:
    text = "one two three four five six seven eight nine"
    response = echo.chat(text, stream=True)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    *events, done = events_of(response.text)
    assert done == "[DONE]"
    chunks = [json.loads(one) for one in events]
    for chunk in chunks:
        ChatChunk.model_validate(chunk)
        assert chunk["object"] == "chat.completion.chunk"
        assert chunk["id"] == chunks[0]["id"]
        assert "usage" not in chunk
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert content_of(chunks) == text
    assert len(chunks) == 2 + -(-len(ids_of(echo, text)) // WIDTH)  # one for each canvas
    assert chunks[-1]["choices"] == [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}]


def test_the_usage_of_a_stream(echo: App) -> None:
    chunks = echo.chunks("Hello", stream_options={"include_usage": True})
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == echo.chat("Hello").json()["usage"]
    assert all(chunk["usage"] is None for chunk in chunks[:-1])


def test_max_tokens(echo: App, tiny_app: App) -> None:
    text = "a" * 100
    body = echo.chat(text, max_tokens=20).json()
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["choices"][0]["message"]["content"] == "a" * 20
    assert body["usage"]["completion_tokens"] == 20
    assert echo.chat(text, max_completion_tokens=7).json()["usage"]["completion_tokens"] == 7
    assert echo.chat(text, max_tokens=10**30).json()["usage"]["completion_tokens"] == 100
    before = tiny_app.engine.stats()["canvases"]
    body = tiny_app.chat("Hello", max_tokens=16, max_denoising_steps=2).json()
    assert body["usage"]["completion_tokens"] <= 16
    assert tiny_app.engine.stats()["canvases"] == before + 1


def test_reasoning_is_sent_on_request(echo: App, echo_engine: Engine, start_app: Callable[..., App]) -> None:
    text = thought(echo, "Add them up.", "4")
    message = echo.answer(text)
    assert (message["content"], "reasoning" in message) == ("4", False)
    message = echo.answer(text, include_reasoning=True)
    assert message["content"] == "4"
    assert message["reasoning_content"] == message["reasoning"] == "Add them up."
    usage = echo.chat(text).json()["usage"]
    assert usage["completion_tokens"] - usage["completion_tokens_details"]["reasoning_tokens"] == 1

    chunks = echo.chunks(text, include_reasoning=True)
    for field, said in (
        ("content", "4"),
        ("reasoning_content", "Add them up."),
        ("reasoning", "Add them up."),
    ):
        assert content_of(chunks, field) == said
    assert "reasoning" not in json.dumps(echo.chunks(text))

    plain = start_app(echo_engine, reasoning_alias=False)
    assert "reasoning" not in plain.answer(text, include_reasoning=True)
    assert content_of(plain.chunks(text, include_reasoning=True), "reasoning") == ""


def test_nothing_but_a_thought_is_the_answer(echo: App) -> None:
    text = thought(echo, "It is 4.", "")
    assert echo.answer(text)["content"] == "It is 4."
    assert content_of(echo.chunks(text)) == "It is 4."
    message = echo.answer(text, include_reasoning=True)
    assert (message["content"], message["reasoning_content"]) == ("", "It is 4.")


@pytest.mark.parametrize("stop", ["six", ["zzz", "six"], ["x sev", "seven"]])
def test_stop_strings_end_an_answer(echo: App, stop: Any) -> None:
    text = "one two three four five six seven eight"
    left = text[: text.index("six") if "six" in stop else text.index("x sev")]
    body = echo.chat(text, stop=stop).json()
    assert body["choices"][0]["message"]["content"] == left
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["completion_tokens"] < len(ids_of(echo, text))
    chunks = echo.chunks(text, stop=stop)
    assert content_of(chunks) == left
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


def test_a_stop_string_is_found_where_canvases_meet(echo: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(echo.writer, "seconds", 0.01)
    for start in range(WIDTH - 4, WIDTH + 2):
        text = "a" * start + "STOP" + "b" * 200
        before = echo.writer.steps
        assert content_of(echo.chunks(text, stop="STOP", max_denoising_steps=1)) == "a" * start
        assert echo.writer.steps - before <= 5  # of the 14 that all of it would take


def test_spelled_markers_do_not_reach_a_caller(echo: App) -> None:
    text = "a<|channel>thought\nb<channel|>c<|turn>user\n" + "x" * 9 + "<|chan<turn|>nel>d"
    said = "athought\nbcuser\nxxxxxxxxxd"
    assert echo.answer(text)["content"] == said
    assert content_of(echo.chunks(text)) == said


def test_the_draft_of_a_canvas_on_request(echo: App) -> None:
    text = "Hello <|turn> you, and all"
    chunks = echo.chunks(text, max_denoising_steps=4, stream_options={"denoising": True})
    drafts = [chunk["x_denoising"] for chunk in chunks if "x_denoising" in chunk]
    assert all(chunk["choices"] == [] for chunk in chunks if "x_denoising" in chunk)
    last = [draft for draft in drafts if draft["final"]]
    assert [draft["block"] for draft in last] == list(range(-(-len(ids_of(echo, text)) // WIDTH)))
    for draft in drafts:
        assert set(draft) == {"block", "step", "steps", "text", "kept", "entropy", "final"}
        assert draft["steps"] == 4
        assert "<|turn>" not in draft["text"]
        assert all(0 <= start < end <= len(draft["text"]) for start, end in draft["kept"])
    assert last[0]["kept"] == [[0, len(last[0]["text"])]]
    assert content_of(chunks) == text.replace("<|turn>", "")
    assert not any("x_denoising" in chunk for chunk in echo.chunks(text))


def test_a_stream_says_that_it_is_alive(echo: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jev.server.writing.openai.PAUSE_SECONDS", 0.02)
    monkeypatch.setattr(echo.writer, "seconds", 0.03)
    response = echo.chat("Hello", stream=True, max_denoising_steps=5)
    assert response.text.count(": the canvas is being refined\n\n") >= 3
    assert content_of([json.loads(one) for one in events_of(response.text)[:-1]]) == "Hello"


def test_drafts_come_at_most_ten_times_a_second(echo: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(echo.writer, "seconds", 0.005)
    chunks = echo.chunks("Hello", max_denoising_steps=60, stream_options={"denoising": True})
    drafts = [chunk for chunk in chunks if "x_denoising" in chunk]
    assert 2 <= len(drafts) <= 12
    assert drafts[-1]["x_denoising"]["final"]


def test_what_has_no_effect_is_said(echo_engine: Engine, start_app: Callable[..., App], caplog: Any) -> None:
    app = start_app(echo_engine)
    caplog.set_level(logging.WARNING, logger="jev")
    fields = {"temperature": 0.3, "top_p": 0.9, "verbosity": "low", "user": "u", "metadata": {"a": "b"}}
    for _ in range(2):
        response = app.chat("Hello", **fields, frobnicate=1, **{"néw\r\n": 2})
        assert response.headers["x-jev-ignored"] == "temperature, top_p, verbosity"
        assert response.headers["x-jev-unknown"] == "frobnicate, n?w??"
    odd = app.chat("Hello", **{"foo ": 1, " ": 2, "x" * 63 + " y": 3, " bar": 4})
    assert odd.headers["x-jev-unknown"].startswith("foo, xxx")
    assert odd.headers["x-jev-unknown"].endswith(", bar")
    assert "x-jev-unknown" not in app.chat("Hello", **{" ": 1}).headers
    inner = {"chat_template_kwargs": {"thinking": True}, "stream": True, "stream_options": {"usage": True}}
    assert (
        app.chat("Hello", **inner).headers["x-jev-unknown"]
        == "stream_options.usage, chat_template_kwargs.thinking"
    )
    said = [one.getMessage() for one in caplog.records if "no effect" in one.getMessage()]
    assert len(said) == 3
    assert "temperature" in said[0]
    assert not any("frobnicate" in one for one in said)


def test_a_model_that_was_not_trained_to_write_says_so(tiny: Any, start_app: Callable[..., App]) -> None:
    engine = Engine.load(tiny, name="reader")
    engine.writes = False
    app = start_app(engine)
    assert engine.warning is not None
    response = app.chat("Hello", max_tokens=4, max_denoising_steps=1)
    assert response.headers["x-jev-warning"] == engine.warning
    assert response.json()["x_warning"] == engine.warning
    chunks = app.chunks("Hello", max_tokens=4, max_denoising_steps=1)
    assert [chunk.get("x_warning") for chunk in chunks] == [engine.warning] + [None] * (len(chunks) - 1)


def test_completions(echo: App, tiny_app: App) -> None:
    response = tiny_app.client.post(
        "/v1/completions", json={"prompt": "The", "max_tokens": 8, "seed": 1, "max_denoising_steps": 2}
    )
    body = response.json()
    assert body["object"] == "text_completion"
    assert body["usage"]["prompt_tokens"] == 1 + len(ids_of(tiny_app, "The"))
    (choice,) = body["choices"]
    assert set(choice) == {"index", "text", "logprobs", "finish_reason"}
    streamed = tiny_app.client.post(
        "/v1/completions",
        json={"prompt": ["The"], "max_tokens": 8, "seed": 1, "max_denoising_steps": 2, "stream": True},
    )
    chunks = [json.loads(one) for one in events_of(streamed.text)[:-1]]
    assert "".join(one["text"] for chunk in chunks for one in chunk["choices"]) == choice["text"]
    assert chunks[-1]["choices"][0]["finish_reason"] == choice["finish_reason"]
    assert response.headers["x-jev-seed"] == "1"


def test_a_seed_decides_a_text_and_another_one_is_drawn_each_time(tiny_app: App) -> None:
    fields = {"max_tokens": 40, "max_denoising_steps": 3}
    first = tiny_app.chat("Hello", **fields)
    assert tiny_app.chat("Hello", **fields).headers["x-jev-seed"] != first.headers["x-jev-seed"]
    again = tiny_app.chat("Hello", seed=int(first.headers["x-jev-seed"]), **fields)
    assert again.json()["choices"] == first.json()["choices"]
    assert again.json()["system_fingerprint"] == first.json()["system_fingerprint"]


def test_company_does_not_change_a_text(tiny_app: App) -> None:
    def ask(number: int) -> str:
        fields = {"max_tokens": 24, "max_denoising_steps": 3, "seed": number % 3}
        return tiny_app.answer(f"Question {number}", **fields)["content"]

    alone = {number: ask(number) for number in range(6)}
    for order in ([0, 1, 2, 3, 4, 5], [5, 3, 1, 4, 2, 0]):
        with ThreadPoolExecutor(6) as threads:
            assert dict(zip(order, threads.map(ask, order), strict=True)) == alone
