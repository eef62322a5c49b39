"""Proves that the page works by keyboard, on a phone and in both colour schemes, and shows markup as text."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Error, Page, expect

sys.path.insert(0, str(Path(__file__).parent))  # importlib mode does not
from browsing import launched, needs_chromium, overflow, until, visited
from deciding import attach, decide, set_questions, set_state, show_questions, shown

pytestmark = needs_chromium

MARKUP = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"
PHONE = {"viewport": {"width": 360, "height": 640}, "has_touch": True}

HAS_RING = """() => {
  const at = document.activeElement;
  const ring = at.matches(".switch input") ? at.nextElementSibling : at;
  return at === document.body || getComputedStyle(ring).outlineStyle !== "none";
}"""
UNNAMED = """() => {
  const named = (one) =>
    one.labels?.length || one.ariaLabel || one.ariaLabelledByElements?.length || one.textContent.trim();
  const controls = "input:not([type=file]), select, textarea, button, [role], ol, ul[id]";
  const found = document.querySelectorAll(controls);
  return [...found].filter((one) => one.role !== "status" && !named(one)).map((one) => one.outerHTML);
}"""
SMALL = """() => [...document.querySelectorAll("button, input:not([type=checkbox], [type=radio]), select")]
  .filter((one) => one.offsetParent && one.offsetHeight < 32).map((one) => one.outerHTML)"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as browser:
        yield browser


class Keyboard:
    """Somebody who has only a keyboard."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.press = page.keyboard.press
        self.type = page.keyboard.type

    @property
    def focused(self) -> str:
        """The id or label of the element that has the focus."""
        return self.page.evaluate("document.activeElement.id || document.activeElement.ariaLabel || ''")

    def tab_to(self, name: str) -> None:
        """Press Tab until an element has the focus; each on the way shows that it has it."""
        for _ in range(60):
            self.press("Tab")
            assert self.page.evaluate(HAS_RING), self.focused
            if self.focused == name:
                return
        raise AssertionError(f"{name} is never reached")


def test_all_of_it_with_the_keyboard(browser: Browser, server: str) -> None:
    with visited(browser, f"{server}/") as page:
        keyboard = Keyboard(page)
        keyboard.tab_to("tab-decide")
        keyboard.press("ArrowRight")
        assert keyboard.focused == "tab-write"
        expect(page.locator("#panel-write")).to_be_visible()
        keyboard.press("Home")
        expect(page.locator("#tab-decide")).to_have_attribute("aria-selected", "true")
        expect(page.locator("#panel-write")).to_be_hidden()
        keyboard.tab_to("state")
        keyboard.press("Control+A")
        keyboard.type("The band played two songs.")
        for _ in range(3):
            keyboard.tab_to("Remove question 1")
            keyboard.press("Enter")
        assert keyboard.focused == "add-noul"
        keyboard.tab_to("add-choice")
        keyboard.press("Enter")
        keyboard.type("subject")  # the name is selected
        keyboard.tab_to("Instructions of question 1")
        keyboard.type("What is it about?")
        keyboard.tab_to("Name of option 1")
        keyboard.type("music")
        keyboard.tab_to("Name of option 2")
        keyboard.type("travel")
        keyboard.tab_to("Add an option to question 1")
        keyboard.press("Enter")
        assert keyboard.focused == "Name of option 3"
        keyboard.type("food")
        sent, _ = decide(page)
        assert sent["state"] == "The band played two songs."
        criteria = {"music": None, "travel": None, "food": None}
        assert sent["questions"] == {
            "subject": {"type": "choice", "instructions": "What is it about?", "criteria": criteria}
        }
        assert shown(page)["subject"].keys() == criteria.keys()
        assert keyboard.focused == "Name of option 3"  # where it was


def test_every_control_has_a_name(browser: Browser, server: str) -> None:
    with visited(browser, f"{server}/") as page:
        attach(page, ("a.txt", b"x"))
        decide(page)
        assert page.evaluate(UNNAMED) == []
        for name in ("decide", "write"):
            tab, panel = page.locator(f"#tab-{name}"), page.locator(f"#panel-{name}")
            expect(tab).to_have_attribute("aria-controls", f"panel-{name}")
            expect(panel).to_have_role("tabpanel")
            expect(panel).to_have_attribute("aria-labelledby", f"tab-{name}")
        for live in ("#status", "#spoken"):
            expect(page.locator("[role=status]", has=page.locator(live))).to_have_count(1)


def test_markup_of_strangers_is_text(browser: Browser, server: str) -> None:
    criteria = {MARKUP: MARKUP, "other": None}
    questions = {
        MARKUP: {"type": "choice", "instructions": MARKUP, "criteria": criteria},
        "levels": {"type": "score", "instructions": "?", "criteria": [MARKUP, "b"]},
    }
    with visited(browser, f"{server}/") as page:
        set_state(page, MARKUP)
        set_questions(page, questions)
        show_questions(page, "form")
        attach(page, (f"{MARKUP.replace('/', ':')}.txt", b"x"))
        assert decide(page)[0]["questions"] == questions
        assert shown(page)[MARKUP].keys() == criteria.keys()
        set_questions(page, {MARKUP: {"type": "noul", "instructions": "?", MARKUP: 1}})
        decide(page)
        expect(page.locator("#notes .warning")).to_contain_text("<img")
        for kind in ("python", "curl"):
            page.locator(f"input[name=share-kind][value={kind}]").check()
            expect(page.locator("#code")).to_contain_text("<script>")
        set_questions(page, {MARKUP: {"type": "noul"}})
        decide(page)
        expect(page.locator("#ask .error")).to_contain_text("<img")
        assert page.title() == "jev"
        assert page.locator("img, main script").count() == 0


def test_the_policy_holds_where_the_code_would_not(browser: Browser, server: str) -> None:
    context = browser.new_context()
    page = context.new_page()
    said: list[str] = []
    page.on("console", lambda one: said.append(one.text))
    page.goto(f"{server}/")
    with pytest.raises(Error, match="TrustedHTML"):
        page.evaluate("document.body.innerHTML = '<b>x</b>'")
    page.evaluate("fetch('http://127.0.0.1:9/').catch(() => 0)")
    until(page, lambda: any("Content Security Policy" in one and "connect-src" in one for one in said))
    context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone(browser: Browser, server: str, scheme: Any) -> None:
    long = "unbroken" * 20
    many = {f"option {number}": None for number in range(30)}
    questions = {
        long: {"type": "choice", "instructions": long, "criteria": {long: long, "b": None}},
        "many": {"type": "choice", "instructions": "?", "criteria": many},
    }
    with visited(browser, f"{server}/", color_scheme=scheme, **PHONE) as page:
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", background))) > 384) == (scheme == "light")
        assert overflow(page) == 0
        set_questions(page, questions)
        show_questions(page, "form")
        attach(page, (f"{long}.txt", b"x"))
        page.locator("#ask summary").tap()
        assert overflow(page) == 0
        page.get_by_role("button", name="Decide", exact=True).tap()
        expect(page.locator("#status")).to_contain_text("2 answers")
        expect(page.locator(".answer").first).to_be_in_viewport()
        assert overflow(page) == 0
        bars = page.locator(".answer").last.locator("li")
        expect(bars).to_have_count(12)
        page.get_by_role("button", name="18 more").tap()
        expect(bars).to_have_count(30)
        assert page.evaluate(SMALL) == []
        page.locator("#tab-write").tap()
        assert overflow(page) == 0
        assert page.evaluate(SMALL) == []
