"""Proves that a review goes through in a browser: by keys and by touch, with strangers' texts as texts."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

sys.path.insert(0, str(Path(__file__).parents[1] / "e2e"))  # importlib mode does not
from browsing import launched, needs_chromium, overflow, until, visited
from docs_pages import FILES
from queue_lines import CHOICE, labels, line
from reviewing import served

pytestmark = needs_chromium

MARKUP = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"
PHONE = {"viewport": {"width": 360, "height": 640}, "has_touch": True}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as browser:
        yield browser


def stands(page: Page, text: str) -> None:
    """Wait for what the page says of its place in the queue."""
    expect(page.locator("#progress")).to_contain_text(text)


def test_single_keys_go_through_the_queue(tmp_path: Path, browser: Browser) -> None:
    many = {**CHOICE, "criteria": {f"option {number}": None for number in range(12)} | {"zebra": "striped"}}
    last = {"id": "r5", "state": "five", "questions": {"animal": many}}
    out = tmp_path / "out.jsonl"
    with served(tmp_path, [line(1), line(2), line(3), line(4), last]) as review:
        with visited(browser, review.url) as page:
            stands(page, "1 of 5 · 0 reviewed")
            expect(page.locator("#state")).to_have_text("state 1")
            expect(page.locator("#options .proposed")).to_contain_text("b")
            page.keyboard.press("1")
            stands(page, "2 of 5 · 1 reviewed · 1 corrected")
            assert labels(out) == {("r1", "which"): "a"}  # on disk before the next is shown
            page.keyboard.press("Enter")
            stands(page, "3 of 5 · 2 reviewed · 1 corrected")
            page.keyboard.press("u")
            stands(page, "2 of 5 · 1 reviewed")
            page.keyboard.press("3")
            stands(page, "3 of 5 · 2 reviewed · 2 corrected")
            page.keyboard.press("s")
            stands(page, "4 of 5 · 2 reviewed · 2 corrected")
            page.keyboard.press("x")
            stands(page, "5 of 5")
            page.keyboard.press("/")
            page.keyboard.type("zeb")
            expect(page.locator("#options button")).to_have_count(1)
            page.keyboard.press("Enter")
            expect(page.locator("#end")).to_be_visible()
            page.keyboard.press("q")
            expect(page.locator("#note")).to_contain_text("has ended")
        code, summary, _ = review.end()
    assert (code, summary["reviewed"], summary["corrected"], summary["unsure"]) == (0, 3, 2, 1)
    assert labels(out) == {("r1", "which"): "a", ("r2", "which"): "c", ("r5", "animal"): "zebra"}


def test_texts_of_strangers_stay_texts_and_pictures_are_shown(tmp_path: Path, browser: Browser) -> None:
    (tmp_path / "photo.png").write_bytes(FILES["photo.png"]())
    question = {**CHOICE, "instructions": MARKUP, "criteria": {MARKUP: MARKUP, "b": None}}
    one = {"id": MARKUP, "state": MARKUP * 200, "attachments": ["photo.png"], "questions": {"q": question}}
    with served(tmp_path, [one]) as review, visited(browser, review.url) as page:
        expect(page.locator("#instructions")).to_have_text(MARKUP)
        expect(page.locator("#options .name").first).to_have_text(MARKUP)
        image = page.locator("#files img")
        until(page, lambda: image.evaluate("one => one.naturalWidth") > 0)
        assert page.locator("#state img, #state script, #options img").count() == 0
        expect(page.locator("#more")).to_be_visible()
        page.keyboard.press("m")
        state = page.locator("#state")
        assert state.evaluate("one => one.scrollHeight <= one.clientHeight")
        assert page.title() == "jev review"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone(tmp_path: Path, browser: Browser, scheme: str) -> None:
    long = line(1, state="word " * 2000 + "x" * 3000)
    with (
        served(tmp_path, [long, line(2)]) as review,
        visited(browser, review.url, color_scheme=scheme, **PHONE) as page,
    ):
        stands(page, "1 of 2")
        assert overflow(page) == 0
        page.locator("#options button").nth(2).tap()
        stands(page, "2 of 2 · 1 reviewed · 1 corrected")
        page.locator("#accept").tap()
        expect(page.locator("#end")).to_be_visible()
        page.locator("#undo").tap()
        stands(page, "2 of 2 · 1 reviewed")


def test_two_pages_and_a_review_that_is_gone(tmp_path: Path, browser: Browser) -> None:
    with (
        served(tmp_path, [line(1), line(2), line(3)]) as review,
        visited(browser, review.url) as first,
        visited(browser, review.url) as second,
    ):
        stands(second, "1 of 3")
        first.keyboard.press("1")
        stands(first, "2 of 3")
        second.keyboard.press("2")  # of an item that is decided: it must not become the next one's answer
        expect(second.locator("#note")).to_contain_text("Another page was faster")
        stands(second, "2 of 3 · 1 reviewed")
        review.process.kill()
        review.process.wait()
        first.keyboard.press("1")
        expect(first.locator("#note")).to_contain_text("not running any more")
    assert labels(tmp_path / "out.jsonl") == {("r1", "which"): "a"}
