"""Proves that the page asks what is in its fields, shows the answers, and says what is wrong where."""

from __future__ import annotations

import base64
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

sys.path.insert(0, str(Path(__file__).parent))  # importlib mode does not
from browsing import behind_prefix, launched, needs_chromium, until, visited
from deciding import assert_shown, attach, decide, set_questions, set_state, show_questions, shown

pytestmark = needs_chromium

DROP = """() => {
  const given = new DataTransfer();
  given.items.add(new File(["dropped words"], "dropped.md", {type: "text/plain"}));
  for (const type of ["dragover", "drop"]) {
    const options = {dataTransfer: given, bubbles: true, cancelable: true};
    document.getElementById("state").dispatchEvent(new DragEvent(type, options));
  }
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as browser:
        yield browser


def test_an_example_shows_what_the_api_says(browser: Browser, server: str) -> None:
    with visited(browser, f"{server}/") as page:
        expect(page.locator("#server")).to_have_text("jev-mini")
        for title in ("Spam", "JSON record", "Support ticket"):
            page.get_by_role("button", name=title).click()
            expect(page.locator(".answer")).to_have_count(0)
            sent, body = decide(page)
            assert list(body["answers"]) == list(sent["questions"])
            assert_shown(page, body["answers"])
        assert list(shown(page)["anger"]) == ["0: calm", "1: annoyed", "2: furious"]
        topic = page.locator(".answer", has=page.get_by_text("topic", exact=True))
        answer = body["answers"]["topic"]
        expect(topic.locator("h3 strong")).to_have_text(answer["choice"])
        expect(topic).to_contain_text(f"confidence {answer['confidence']:.2f}")
        expect(topic).to_contain_text("reads")
        expect(page.locator("#spoken")).to_contain_text(f"topic: {answer['choice']}")


def error_of(field: Locator) -> str:
    """What the page says at a field."""
    expect(field).to_have_attribute("aria-invalid", "true")
    notes = (field.get_attribute("aria-describedby") or "").split()
    return "\n".join(field.page.locator(f"#{note}").inner_text() for note in notes)


def test_what_is_wrong_stands_where_it_is_wrong(browser: Browser, server: str) -> None:
    with visited(browser, f"{server}/") as page:
        page.locator("#ask summary").click()
        page.fill("#option-samples", "99")
        page.locator("#ask summary").click()
        page.get_by_label("Instructions of question 1").fill(" ")
        option = page.get_by_label("Name of option 2")
        option.fill("billing")
        page.keyboard.press("Control+Enter")  # the browser sees this one by itself
        expect(page.locator("#status")).to_have_text("1 thing is to be corrected.")
        assert error_of(option) == "Another option has this name"
        expect(option).to_be_focused()
        expect(page.locator("#code")).to_have_text("Another option has this name")
        expect(page.locator("#copy")).to_be_disabled()

        option.fill("travel")
        decide(page)
        expect(page.locator("#status")).to_have_text("2 things are to be corrected.")
        expect(option).not_to_have_attribute("aria-invalid", "true")
        name = page.get_by_label("Name of question 1")
        assert "needs instructions" in error_of(name)
        expect(name).to_be_focused()
        assert "32" in error_of(page.locator("#option-samples"))
        expect(page.locator("#option-samples")).to_be_visible()  # the options were opened

        page.fill("#option-samples", "four")
        page.get_by_label("Instructions of question 1").fill("Why?")
        page.get_by_label("Level 1", exact=True).fill("")
        page.get_by_label("Level 2", exact=True).fill("")
        page.get_by_label("Level 0", exact=True).fill("")
        decide(page)
        error_of(page.locator("#option-samples"))
        error_of(page.locator("li.question").nth(2).locator(".criteria"))

        page.fill("#option-samples", "")
        page.get_by_label("Level 0", exact=True).fill("low")
        attach(page, ("fine.txt", b"x"), ("broken.pdf", b"%PDF-1.7 and no more"))
        decide(page)
        assert "broken.pdf" in error_of(page.locator("li.file").nth(1))
        expect(page.get_by_label("Remove the file broken.pdf")).to_be_focused()
        page.keyboard.press("Enter")
        decide(page)
        expect(page.locator("[aria-invalid]")).to_have_count(0)
        expect(page.locator(".answer")).to_have_count(3)


def test_what_is_wrong_in_json(browser: Browser, server: str) -> None:
    with visited(browser, f"{server}/") as page:
        state, questions = page.locator("#state"), page.locator("#questions-json")
        set_state(page, '{"a": [1, 2}', "json")
        page.keyboard.press("Control+Enter")
        assert error_of(state) == "Not valid JSON: line 1, column 12: expected , or ]"
        set_state(page, "3", "json")
        decide(page)
        assert "a string, an object or an array" in error_of(state)
        set_state(page, "x")
        set_questions(page, '{"q": 1,\n "q": 2}')
        page.keyboard.press("Control+Enter")
        assert "line 2, column 2" in error_of(questions)
        set_questions(page, [])
        page.keyboard.press("Control+Enter")
        assert error_of(questions) == "Questions are an object: a name and a question each"
        set_questions(page, {"q": {"type": "score", "criteria": []}})
        decide(page)
        assert error_of(questions).startswith("q.criteria: ")
        set_questions(page, {})
        decide(page)
        assert error_of(questions)


def test_questions_as_json_and_back(browser: Browser, server: str) -> None:
    with visited(browser, f"{server}/") as page:
        show_questions(page, "json")
        before = json.loads(page.input_value("#questions-json"))
        assert [one["type"] for one in before.values()] == ["noul", "choice", "score"]
        show_questions(page, "form")
        page.get_by_label("Type of question 1").select_option("score")
        page.get_by_label("Type of question 1").select_option("noul")
        show_questions(page, "json")
        assert json.loads(page.input_value("#questions-json")) == before

        # Options are asked in their order, also those whose names look like numbers.
        names = ["2025", "b", "7"]
        set_questions(page, {"q": {"type": "choice", "criteria": dict.fromkeys(names)}})
        show_questions(page, "form")
        options = page.get_by_label(re.compile("^Name of option"))
        assert [one.input_value() for one in options.all()] == names
        assert list(decide(page)[0]["questions"]["q"]["criteria"]) == names

        # What the form cannot show stays JSON, and says why.
        structured = {"q": {"type": "noul", "instructions": {"ask": ["Is it so?"]}}}
        set_questions(page, structured)
        show_questions(page, "form", refused=True)
        assert "q: it has text that is structured" in error_of(page.locator("#questions-json"))
        assert decide(page)[0]["questions"] == structured
        set_questions(page, {"q": {"type": "noul", "instructions": "?", "instruction": "?"}})
        decide(page)
        expect(page.locator("#notes .warning")).to_contain_text("questions.q.instruction")


def test_files(browser: Browser, server: str, tmp_path: Path) -> None:
    with visited(browser, f"{server}/") as page:
        page.on("filechooser", lambda _: None)  # before it is needed: it takes a while to hold
        expect(page.locator("#server")).to_have_text("jev-mini")
        page.locator("#pick").focus()
        with page.expect_file_chooser() as chooser:
            page.keyboard.press("Enter")
        (tmp_path / "note.txt").write_text("Here is the lemon again.")
        chooser.value.set_files(tmp_path / "note.txt")
        page.evaluate(DROP)
        expect(page.locator("li.file .wrap")).to_have_text(["note.txt", "dropped.md"])
        sent, _ = decide(page)
        contents = [base64.b64decode(file["data"]) for file in sent["files"]]
        assert contents == [b"Here is the lemon again.", b"dropped words"]
        notes = page.locator("#notes .note")
        expect(notes).to_have_count(2)
        expect(notes.first).to_contain_text("note.txt text · 24 characters")

        attach(page, *((f"{n}.txt", b"x") for n in range(7)))
        expect(page.locator("li.file")).to_have_count(8)
        expect(page.locator("#files-note")).to_have_text("A request has at most 8 files; 1 not added.")
        for _ in range(8):
            page.get_by_label(re.compile("^Remove the file")).last.click()
        expect(page.locator("#pick")).to_be_focused()


def test_large_files_are_uploaded_once(browser: Browser, server: str, tmp_path: Path) -> None:
    (tmp_path / "large.txt").write_bytes(b"word " * (9 * 2**20 // 5))
    (tmp_path / "empty.txt").touch()
    with visited(browser, f"{server}/") as page:
        uploads: list[str] = []
        page.on("request", lambda one: uploads.append(one.url) if one.url.endswith("/v1/files") else None)
        page.set_input_files("#picker", [tmp_path / "large.txt", tmp_path / "empty.txt"])
        page.keyboard.press("Control+Enter")
        assert "empty" in error_of(page.locator("li.file").nth(1)).lower()  # refused as an upload already
        page.get_by_label("Remove the file empty.txt").click()
        for _ in range(2):
            sent, _ = decide(page)
            assert sent["files"][0].keys() == {"name", "file"}
            assert "large.txt" in error_of(page.locator("li.file"))  # too much text, said at the file
        assert len(uploads) == 2


def kept(page: Page) -> str:
    """What the page has stored, beside the key."""
    return page.evaluate("sessionStorage.getItem('jev.page') ?? ''")


def test_a_reload_loses_nothing(browser: Browser, server: str) -> None:
    with visited(browser, f"{server}/") as page:
        set_state(page, '{"a": "ü"}', "json")
        page.get_by_label("Instructions of question 2").fill("Which one?")
        page.locator("#add-score").click()
        page.locator("#ask summary").click()
        page.fill("#option-seed", "7")
        page.locator("#option-diagnostics").uncheck()
        page.locator("#model").select_option("jev-mini")
        attach(page, ("kept.txt", "häl\0lo".encode()))
        until(page, lambda: "kept.txt" in kept(page))
        page.locator("#tab-write").click()
        page.fill("#message", "not sent yet")
        page.reload()
        expect(page.locator("#message")).to_have_value("not sent yet")
        page.locator("#tab-decide").click()
        expect(page.locator("#model")).to_have_value("jev-mini")
        expect(page.locator("#state")).to_have_value('{"a": "ü"}')
        expect(page.get_by_label("Instructions of question 2")).to_have_value("Which one?")
        expect(page.get_by_label("Name of question 4")).to_have_value("q4")
        page.get_by_label("Remove question 4").click()
        sent, _ = decide(page)
        assert (sent["state"], sent["seed"], sent["model"]) == ({"a": "ü"}, 7, "jev-mini")
        assert "diagnostics" not in sent
        assert base64.b64decode(sent["files"][0]["data"]).decode() == "häl\0lo"

        attach(page, ("large.txt", b"x" * 2**20))
        until(page, lambda: '"large.txt"]' in kept(page))
        page.reload()
        expect(page.locator("li.file")).to_have_count(0)
        expect(page.locator("#files-note")).to_contain_text("add them again: kept.txt, large.txt")


def test_a_server_that_wants_a_key(browser: Browser, keyed_server: tuple[str, str]) -> None:
    url, key = keyed_server
    with visited(browser, f"{url}/") as page:
        expect(page.locator("#key-note")).to_have_text("This server wants an API key.")
        page.keyboard.press("Control+Enter")
        expect(page.locator("#notes .error")).to_contain_text("Send an API key")
        expect(page.locator("#key")).to_be_focused()
        page.keyboard.type("wrong")
        page.keyboard.press("Enter")
        expect(page.locator("#key-note")).to_have_text("The API key is not valid")
        page.fill("#key", key)
        page.keyboard.press("Enter")
        expect(page.locator("#key-form")).to_be_hidden()
        expect(page.locator("#model option")).not_to_have_count(1)
        decide(page)
        expect(page.locator(".answer")).to_have_count(3)
        expect(page.locator("#code")).to_contain_text('-H "Authorization: Bearer $JEV_API_KEY"')
        page.reload()
        expect(page.locator("#model option")).not_to_have_count(1)
        assert key not in page.url + page.content()
        assert page.evaluate("localStorage.length") == 0
        assert key not in kept(page)
        page.locator("#key-button").click()
        page.keyboard.press("Enter")
        expect(page.locator("#key-note")).to_have_text("The key is forgotten.")
        assert page.evaluate("sessionStorage.getItem('jev.key')") is None


def test_below_a_path_of_a_proxy(browser: Browser, server: str) -> None:
    with behind_prefix(server, "/tools/jev") as url, visited(browser, url) as page:
        expect(page.locator("#server")).to_have_text("jev-mini")
        decide(page)
        expect(page.locator(".answer")).to_have_count(3)
        expect(page.locator("#code")).to_contain_text(f"{url}v1/systemone")
        page.locator("input[name=share-kind][value=python]").check()
        expect(page.locator("#code")).to_contain_text(f'with Jev("{url.rstrip("/")}") as client')


def refuse(page: Page, path: str, status: int, message: str, **headers: str) -> None:
    """Answer a path with an error of the server's shape."""
    body = {"detail": {"error_type": "x", "message": message}}
    page.route(path, lambda route: route.fulfill(status=status, json=body, headers=headers), times=1)


def test_it_waits_for_the_model_and_says_when_the_server_is_gone(browser: Browser, server: str) -> None:
    with visited(browser, "about:blank") as page:
        refuse(page, "**/ready", 503, "The model is loading")
        page.goto(f"{server}/")
        expect(page.locator("#server")).to_have_text("The model is loading")
        expect(page.locator("#server")).to_have_text("jev-mini")
        page.route("**/v1/systemone", lambda route: route.abort(), times=1)
        page.keyboard.press("Control+Enter")
        expect(page.locator("#notes .error")).to_have_text("The server cannot be reached.")
        refuse(page, "**/v1/systemone", 529, "The queue is full", **{"Retry-After": "3"})
        page.keyboard.press("Control+Enter")
        expect(page.locator("#notes .error")).to_have_text("The queue is full (try again in 3 s)")
