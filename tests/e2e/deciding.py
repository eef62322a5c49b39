"""What tests do on the page's tab "Decide", and what it should show."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from playwright.sync_api import FilePayload, Page, expect


def shown(page: Page) -> dict[str, dict[str, float]]:
    """The probabilities that the page shows, in percent, by question and label."""
    return {
        answer.locator("h3 span").inner_text(): {
            bar.locator(".label").inner_text(): float(bar.locator(".share").inner_text().removesuffix(" %"))
            for bar in answer.locator(".bars li").all()
        }
        for answer in page.locator(".answer").all()
    }


def expected(answers: dict[str, Any]) -> dict[str, dict[str, float]]:
    """What `shown` should be, from a response."""
    found = {}
    for name, answer in answers.items():
        if answer["type"] == "noul":
            bars = {"yes": answer["noul"], "no": 1 - answer["noul"]}
        elif answer["type"] == "choice":
            bars = answer["probabilities"]
        else:
            bars = {
                f"{level}: {text}": answer["probabilities"][level] for level, text in answer["legend"].items()
            }
        found[name] = {label: 100 * p for label, p in bars.items()}
    return found


def assert_shown(page: Page, answers: dict[str, Any]) -> None:
    """The page shows these answers, in their order."""
    found, told = shown(page), expected(answers)
    assert list(found) == list(told)
    for name, bars in told.items():
        assert found[name] == pytest.approx(bars, abs=0.051), name


def decide(page: Page) -> tuple[dict[str, Any], dict[str, Any]]:
    """Ask with the keyboard: the request that was sent and the body that came back, once it is shown."""
    with page.expect_response("**/v1/systemone") as response:
        page.keyboard.press("Control+Enter")
    expect(page.locator("#status")).to_have_text(re.compile(r"^\d+ answers? in|corrected|not decided"))
    sent = json.loads(response.value.request.post_data or "")
    return sent, response.value.json()


def set_state(page: Page, text: str, kind: str = "text") -> None:
    """Put a state in, as "text" or as "json"."""
    page.locator(f"input[name=state-kind][value={kind}]").check()
    page.fill("#state", text)


def show_questions(page: Page, kind: str, *, refused: bool = False) -> None:
    """Show the questions as a "form" or as "json"."""
    page.locator(f"input[name=question-kind][value={kind}]").click()
    expect(page.locator(f"input[name=question-kind][value={kind}]")).to_be_checked(checked=not refused)


def set_questions(page: Page, questions: Any) -> None:
    """Put questions in as JSON."""
    show_questions(page, "json")
    page.fill("#questions-json", questions if isinstance(questions, str) else json.dumps(questions))


def attach(page: Page, *named: tuple[str, bytes]) -> None:
    """Choose files."""
    given: list[FilePayload] = [
        {"name": name, "mimeType": "text/plain", "buffer": content} for name, content in named
    ]
    page.set_input_files("#picker", given)
