"""Proves that the page shows a text while it is refined, keeps what is committed, and says what went wrong.

What is said by a model is scripted here, except where the server is asked.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect
from starlette.responses import JSONResponse

sys.path.insert(0, str(Path(__file__).parent))  # importlib mode does not
from browsing import launched, needs_chromium, overflow, visited
from scripted_chat import refined, scripted, text

pytestmark = needs_chromium

USAGE = {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 21, "total_tokens": 30}}
END = [text("", "stop"), USAGE, "[DONE]"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as browser:
        yield browser


def say(page: Page, message: str) -> Locator:
    """Send a message with the keyboard: the answer's element."""
    page.locator("#message").fill(message)
    page.locator("#message").press("Enter")
    return page.locator(".message.assistant").last


def settle(page: Page, **settings: str) -> None:
    """Change the settings: `max_tokens`, `max_steps` and `chat_seed`."""
    if not page.locator("#max-tokens").is_visible():
        page.locator("#chat-settings summary").click()
    for name, value in settings.items():
        page.fill(f"#{name.replace('_', '-')}", value)


def is_complete(page: Page) -> None:
    expect(page.locator("#chat-status")).to_have_text("The answer is complete.")


def test_a_canvas_is_refined_until_it_is_committed(browser: Browser) -> None:
    gates = [Event() for _ in range(4)]
    script = [
        refined(0, 1, "🙂🙂ab cd xx", [[0, 1], [5, 7]]),  # spans count characters
        gates[0],
        refined(0, 6, "🙂🙂ab cd ef", [[0, 10]], True),  # not every step is sent
        gates[1],
        text("🙂🙂ab cd ef"),
        refined(1, 1, " gh??", [[0, 3]]),
        gates[2],
        text(" ghij"),
        gates[3],
        *END,
    ]
    with scripted(lambda _: script) as (url, bodies), visited(browser, f"{url}#write") as page:
        answer = say(page, "Hello")
        shown, draft = answer.locator(".text"), answer.locator(".draft")
        expect(shown).to_have_text("🙂🙂ab cd xx")
        assert draft.locator(".open").all_inner_texts() == ["🙂ab ", " xx"]
        assert draft.locator("span:not(.open)").all_inner_texts() == ["🙂", "cd"]
        expect(answer.locator("progress")).to_have_js_property("value", 1)
        expect(answer.locator(".meter")).to_contain_text("canvas 1 · step 1 of at most 8 · entropy 1.00")
        expect(page.locator("#messages")).to_have_attribute("aria-busy", "true")
        gates[0].set()
        expect(shown).to_have_text("🙂🙂ab cd ef")
        expect(draft.locator(".open")).to_have_count(0)
        gates[1].set()
        expect(shown).to_have_text("🙂🙂ab cd ef gh??")
        expect(answer.locator(".committed")).to_have_text("🙂🙂ab cd ef")
        expect(answer.locator(".meter")).to_contain_text("canvas 2")
        gates[2].set()
        expect(answer.locator(".committed")).to_have_text("🙂🙂ab cd ef ghij")
        expect(draft).to_be_empty()
        gates[3].set()
        is_complete(page)
        expect(page.locator("#message")).to_be_focused()
        about = page.locator(".message.assistant .meter")
        expect(about).to_contain_text("21 tokens · 7 steps on 2 canvases · ")
    assert bodies[0] == {
        "model": "jev-latest",
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 256,
        "stream": True,
        "stream_options": {"include_usage": True, "denoising": True},
    }


def test_a_chat_goes_on_over_a_reload(browser: Browser) -> None:
    def script(body: dict[str, Any]) -> list[Any]:
        return [text(f"answer {len(body['messages'])}"), *END]

    with scripted(script) as (url, bodies), visited(browser, f"{url}#write") as page:
        settle(page, max_tokens="32", chat_seed="7")
        page.locator("#refinement").uncheck()
        say(page, "first\nline")
        is_complete(page)
        page.reload()
        expect(page.locator(".message .text")).to_have_text(["first\nline", "answer 1"])
        say(page, "second")
        expect(page.locator(".message .text").last).to_have_text("answer 3")
        is_complete(page)
        page.locator("#new-chat").click()
        expect(page.locator(".message")).to_have_count(0)
        say(page, "third")
        is_complete(page)
    assert bodies[1]["messages"] == [
        {"role": "user", "content": "first\nline"},
        {"role": "assistant", "content": "answer 1"},
        {"role": "user", "content": "second"},
    ]
    assert (bodies[1]["max_tokens"], bodies[1]["seed"]) == (32, 7)
    assert bodies[1]["stream_options"] == {"include_usage": True}
    assert len(bodies[2]["messages"]) == 1


def test_markup_of_a_model_is_text(browser: Browser) -> None:
    markup = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>&lt;"
    gate = Event()
    script = [refined(0, 1, markup, [[0, 4]]), gate, text(markup), *END]
    warning = {"x-jev-warning": "<b>not</b> trained"}
    with scripted(lambda _: script, **warning) as (url, _), visited(browser, f"{url}#write") as page:
        answer = say(page, markup)
        expect(answer.locator(".text")).to_have_text(markup)
        expect(page.locator("#chat-warning")).to_have_text("<b>not</b> trained")
        gate.set()
        is_complete(page)
        page.reload()
        expect(page.locator(".message .text")).to_have_text([markup, markup])
        assert page.locator("img, main script, main b").count() == 0
        assert page.title() == "jev"


def test_it_says_when_a_model_was_not_trained_to_write(browser: Browser) -> None:
    warned = {"choices": [], "x_warning": "This model was not trained to write"}
    with scripted(lambda _: [warned, text("x"), *END]) as (url, _), visited(browser, f"{url}#write") as page:
        expect(page.locator("#chat-warning")).to_be_hidden()
        say(page, "Hello")
        expect(page.locator("#chat-warning")).to_have_text(warned["x_warning"])


def test_stop(browser: Browser) -> None:
    never = Event()
    stopped = [refined(0, 1, "draft", []), never]
    scripts = iter([stopped, [text("kept"), *stopped], [text("!"), *END]])
    with scripted(lambda _: next(scripts)) as (url, bodies), visited(browser, f"{url}#write") as page:
        # Nothing is committed yet: the message comes back.
        answer = say(page, "Hello")
        expect(answer.locator(".draft")).to_have_text("draft")
        expect(page.locator("#stop")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.locator("#chat-status")).to_have_text("Stopped.")
        expect(page.locator("#message")).to_have_value("Hello")
        expect(page.locator(".message")).to_have_count(0)
        # What is committed stays.
        answer = say(page, "Hello")
        expect(answer.locator(".committed")).to_have_text("kept")
        expect(answer.locator(".draft")).to_have_text("draft")
        page.locator("#stop").click()
        expect(page.locator(".message.assistant .text")).to_have_text("kept")
        expect(page.locator(".message.assistant .meter")).to_have_text("stopped")
        say(page, "Go on")
        is_complete(page)
        never.set()
    assert [one["content"] for one in bodies[2]["messages"]] == ["Hello", "kept", "Go on"]


REFUSED = JSONResponse({"error": {"message": "messages: too long", "type": "invalid_request_error"}}, 400)
ISSUES = JSONResponse({"detail": [{"loc": ["body", "max_tokens"], "msg": "too many", "type": "x"}]}, 422)
NO_ROUTE = JSONResponse({"detail": {"error_type": "not_found_error", "message": "No such route"}}, 404)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ([REFUSED], "messages: too long"),
        ([ISSUES], "max_tokens: too many"),
        ([NO_ROUTE], "No such route: does this server write text?"),
        ([{"error": {"message": "The model failed"}}], "The model failed"),
        ([text("")], "The connection ended before the text did."),
    ],
)
def test_what_went_wrong(browser: Browser, script: list[Any], said: str) -> None:
    with scripted(lambda _: script) as (url, _), visited(browser, f"{url}#write") as page:
        say(page, "Hello")
        expect(page.locator("#chat-status")).to_have_text(said)
        expect(page.locator("#message")).to_have_value("Hello")
        expect(page.locator("#send")).to_be_visible()


def test_a_real_server(browser: Browser, server: str) -> None:
    with visited(browser, f"{server}/#write") as page:
        settle(page, max_tokens="none")
        page.locator("#chat-settings summary").click()
        say(page, "Hello")
        expect(page.locator("#chat-status")).to_contain_text("max_tokens")
        expect(page.locator("#max-tokens")).to_have_attribute("aria-invalid", "true")
        expect(page.locator("#max-tokens")).to_be_focused()
        settle(page, max_tokens="16", max_steps="3", chat_seed="7")
        said = []
        for _ in range(2):
            page.locator("#message").press("Enter") if not said else say(page, "Hello")
            expect(page.locator("#chat-status")).to_have_text("The answer is complete.")
            expect(page.locator("#chat-warning")).to_contain_text("not trained to write")
            about = page.locator(".message.assistant .meter")
            expect(about).to_contain_text("16 tokens · 3 steps on 1 canvas · ")
            expect(about).to_contain_text("seed 7 · ended by its limit")
            said.append(page.locator(".message.assistant .text").inner_text())
            page.locator("#new-chat").click()
        assert said[0] == said[1] != ""


def test_stopping_ends_the_work_of_a_real_server(browser: Browser, server: str) -> None:
    with visited(browser, f"{server}/#write") as page:
        answer = say(page, "Hello")
        expect(answer.locator(".draft")).not_to_be_empty()
        expect(answer.locator(".open").first).to_be_visible()
        page.locator("#stop").click()
        expect(page.locator("#chat-status")).to_have_text("Stopped.")
        settle(page, max_tokens="1", max_steps="1")
        say(page, "Hello")
        expect(page.locator("#chat-status")).to_have_text("The answer is complete.")


def test_a_chat_with_a_key(browser: Browser, keyed_server: tuple[str, str]) -> None:
    url, key = keyed_server
    with visited(browser, f"{url}/#write") as page:
        say(page, "Hello")
        expect(page.locator("#key")).to_be_focused()
        page.keyboard.type(key)
        page.keyboard.press("Enter")
        expect(page.locator("#key-form")).to_be_hidden()
        settle(page, max_tokens="1", max_steps="1")
        page.locator("#message").press("Enter")
        expect(page.locator("#chat-status")).to_have_text("The answer is complete.")


def test_on_a_phone(browser: Browser) -> None:
    gate = Event()
    script = [refined(0, 1, "unbroken" * 40, [[0, 9]]), gate, text("unbroken" * 400), *END]
    options: dict[str, Any] = {"viewport": {"width": 360, "height": 640}, "has_touch": True}
    with scripted(lambda _: script) as (url, _), visited(browser, f"{url}#write", **options) as page:
        answer = say(page, "unbroken" * 30)
        expect(answer.locator(".open")).to_have_count(1)
        assert overflow(page) == 0
        gate.set()
        is_complete(page)
        assert overflow(page) == 0
        expect(page.locator("#message")).to_be_in_viewport()
        expect(page.locator(".message.assistant .meter")).to_be_in_viewport()  # it follows what is written
