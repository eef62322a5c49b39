"""Proves that the curl command and the Python program that the page shows run, and ask what the page asks."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from playwright.sync_api import Browser, Page, expect

sys.path.insert(0, str(Path(__file__).parent))  # importlib mode does not
from browsing import launched, needs_chromium, visited
from deciding import attach, decide, set_questions, set_state

from jev.schemas import Noul, parse_request
from jev.schemas.questions import NoulCriteria

pytestmark = needs_chromium

NASTY = "it's \"$HOME\" `id` \\ \\\\ $(id)\nJSON\n\tEOF 'x' \u202e \u2028 é 🙂 \x7f </script> %s {} ${x}"
QUESTIONS = {
    NASTY: {"type": "choice", "instructions": NASTY, "criteria": {NASTY: NASTY, "10": None, "9": ""}},
    "plain": {"type": "choice", "instructions": "Which?", "criteria": {"b": None, "2": None, "1": None}},
    "sides": {"type": "noul", "criteria": {"true": NASTY, "false": None}},
    "object": {"type": "noul", "instructions": {"ask": [NASTY, 1.50, None, True]}},
    "scale": {"type": "score", "instructions": NASTY, "criteria": ["low", {"level": "high"}]},
}
FILES = [
    (f"a {n} it's $HOME `id` \\.txt".replace("\\", "#"), f"{n} is $HOME, `id` and \\\\".encode())
    for n in (1, 2)
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as browser:
        yield browser


def code(page: Page, kind: str) -> str:
    """The code that the page shows."""
    page.locator(f"input[name=share-kind][value={kind}]").check()
    return page.locator("#code").text_content() or ""


def run(*command: str | Path, cwd: Path, **variables: str) -> str:
    """What a command prints."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("JEV_")}
    done = subprocess.run(
        command, cwd=cwd, env={**kept, **variables}, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_is_shown_runs(browser: Browser, keyed_server: tuple[str, str], tmp_path: Path) -> None:
    url, key = keyed_server
    for name, content in FILES:
        (tmp_path / name).write_bytes(content)
    with visited(browser, f"{url}/") as page:
        page.fill("#key", key)
        page.keyboard.press("Enter")
        expect(page.locator("#key-form")).to_be_hidden()
        page.locator("#model").select_option("jev-mini")
        set_state(page, NASTY)
        set_questions(page, QUESTIONS)
        page.locator("#ask summary").click()
        page.fill("#option-instructions", NASTY)
        page.fill("#option-samples", "1")
        page.fill("#option-seed", "-3")
        page.locator("#option-layout").select_option("isolated")
        attach(page, *FILES)
        _, body = decide(page)
        assert "answers" in body, body
        answers = body["answers"]
        assert answers.keys() == QUESTIONS.keys()

        command = code(page, "curl")
        for shell in ("sh", "bash"):
            assert json.loads(run(shell, "-c", command, cwd=tmp_path, JEV_API_KEY=key))["answers"] == answers

        program = code(page, "python")
        assert key not in command + program
        (tmp_path / "shown.py").write_text(program, encoding="utf-8")
        told = "\nimport json\nprint(json.dumps({n: a.model_dump() for n, a in decision.answers.items()}))\n"
        (tmp_path / "asks.py").write_text(program + told, encoding="utf-8")
        assert "plain" in run(sys.executable, "shown.py", cwd=tmp_path, JEV_API_KEY=key)
        printed = run(sys.executable, "asks.py", cwd=tmp_path, JEV_API_KEY=key)
        assert json.loads(printed.splitlines()[-1]) == answers


def test_it_is_copied(browser: Browser, server: str) -> None:
    with visited(browser, f"{server}/", permissions=["clipboard-read", "clipboard-write"]) as page:
        shown = code(page, "python")
        page.locator("#copy").click()
        expect(page.locator("#copied")).to_have_text("Copied.")
        assert page.evaluate("navigator.clipboard.readText()") == shown
        assert "\nfrom jev import Choice, Jev, Noul, Score\n" in f"\n{shown}"
        assert 'Choice("What is the message about?", {' in shown


# --- for any request -----------------------------------------------------------------------------

TEXT = st.text(st.characters(codec="utf-8"), max_size=20) | st.sampled_from(
    [NASTY, "JSON", "$", "\\", "`", "'"]
)
NUMBER = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
VALUE = st.recursive(
    st.none() | st.booleans() | NUMBER | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
WORDS = TEXT | st.dictionaries(TEXT, VALUE, max_size=2)
SIDES = st.fixed_dictionaries({}, optional={"true": WORDS, "false": WORDS | st.none()})
QUESTION = st.one_of(
    st.fixed_dictionaries({"type": st.just("noul"), "instructions": WORDS}, optional={"criteria": SIDES}),
    st.fixed_dictionaries(
        {
            "type": st.just("choice"),
            "criteria": st.dictionaries(TEXT, WORDS | st.none(), min_size=1, max_size=4),
        },
        optional={"instructions": WORDS},
    ),
    st.fixed_dictionaries(
        {"type": st.just("score"), "criteria": st.lists(WORDS, min_size=1, max_size=3)},
        optional={"instructions": WORDS},
    ),
)
REQUEST = st.fixed_dictionaries(
    {
        "state": TEXT | st.dictionaries(TEXT, VALUE, max_size=3) | st.lists(VALUE, max_size=3),
        "questions": st.dictionaries(TEXT.filter(bool), QUESTION, min_size=1, max_size=3),
    },
    optional={"seed": st.integers(-9, 9), "instructions": TEXT.filter(bool), "diagnostics": st.booleans()},
)
NAME = st.text(
    st.characters(codec="utf-8", exclude_characters="/\\", exclude_categories=["C", "Z"]),
    min_size=1,
    max_size=8,
)

SHARE = """async ([texts, names, base]) => {
  const { parse, write } = await import("./page/json.js");
  const { curlOf, pythonOf } = await import("./page/share.js");
  return texts.map((text, at) => {
    const request = parse(text);
    return [write(request), curlOf(request, names[at], base, true), pythonOf(request, names[at], base, true)];
  });
}"""

CURL = """curl() { for part in "$@"; do case $part in http*) echo "$part" ;; esac; done; cat; }
"""


def drawn(strategy: st.SearchStrategy[Any], count: int) -> list[Any]:
    """Examples of a strategy, the same in every run."""
    found: list[Any] = []

    @settings(
        max_examples=count,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(strategy)
    def collect(value: Any) -> None:
        found.append(value)

    collect()
    return found


class Asked(Exception):
    """What a program asks."""


def asked_by(program: str, folder: Path) -> dict[str, Any]:
    """The body that a program would send."""
    import httpx

    import jev

    def answer(request: httpx.Request) -> httpx.Response:
        raise Asked(request)

    def client(base: str) -> jev.Jev:
        return jev.Jev(base, transport=httpx.MockTransport(answer))

    before = Path.cwd()
    os.chdir(folder)
    try:
        exec(compile(program.replace("Jev(", "Jev_(", 1), "shown", "exec"), {"Jev_": client})
    except Asked as asked:
        return json.loads(asked.args[0].content)
    finally:
        os.chdir(before)
    raise AssertionError("nothing was asked")


def meant(request: dict[str, Any]) -> str:
    """What a request says to the server, with the order of its names."""
    read, _ = parse_request(request)
    for question in read.questions.values():
        if isinstance(question, Noul) and question.criteria == NoulCriteria():
            question.criteria = None
    return json.dumps(read.model_dump())


@pytest.mark.skipif(shutil.which("sh") is None, reason="there is no shell")
def test_any_request_is_shared_as_it_is(browser: Browser, server: str, tmp_path: Path) -> None:
    requests = drawn(REQUEST, 60)
    names = drawn(st.lists(NAME, max_size=2, unique=True), 60)
    names = [[one for one in some if one not in (".", "..")] for some in (names * 60)[: len(requests)]]
    with visited(browser, f"{server}/") as page:
        texts = [
            json.dumps(request, ensure_ascii=at % 2 == 0, indent=at % 3)
            for at, request in enumerate(requests)
        ]
        shared = page.evaluate(SHARE, [texts, names, "http://127.0.0.1:9/"])
    for request, some, (body, command, program) in zip(requests, names, shared, strict=True):
        for name in some:
            (tmp_path / name).write_bytes(name.encode())
        files = [{"name": name, "data": base64.b64encode(name.encode()).decode()} for name in some]
        whole = {**request, "files": files} if files else request
        assert json.dumps(json.loads(body)) == json.dumps(request)
        url, _, sent = run("sh", "-c", CURL + command, cwd=tmp_path).partition("\n")
        assert url == "http://127.0.0.1:9/v1/systemone"
        assert json.dumps(json.loads(sent)) == json.dumps(whole)
        assert meant(asked_by(program, tmp_path)) == meant(whole)
