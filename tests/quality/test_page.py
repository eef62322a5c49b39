"""Proves that the HTML page stands alone, shows what it should, and never runs what a state spells."""

from __future__ import annotations

import asyncio
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from quality_fakes import NOUL, Fake, tempered

from jev.quality.data import LabelledRow, read_rows
from jev.quality.page import render_page
from jev.quality.report import build_report
from jev.quality.run import run_backend
from jev.schemas import Question

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>&lt;"
OPTIONS = {EVIL: None, '"><svg onload=alert(3)>': None, "plain": None}


class Page(HTMLParser):
    """Elements with their attributes, the text of scripts, and all other text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.words: list[str] = []
        self._open = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._open = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._open = ""

    def handle_data(self, data: str) -> None:
        if self._open == "script":
            self.scripts[-1] += data
        else:
            self.words.append(data)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[LabelledRow]:
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    choice = {"type": "choice", "instructions": EVIL, "criteria": OPTIONS}
    score = {"type": "score", "instructions": "How?", "criteria": [EVIL, "good"]}
    lines = [
        {
            "id": EVIL,
            "state": f"{EVIL} {number}",
            "questions": {EVIL: choice, "red": NOUL, "how": score},
            "answers": {EVIL: "plain", "red": number % 2 == 0, "how": 0},
            "metadata": {EVIL: EVIL},
        }
        for number in range(12)
    ]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return read_rows(path)


def reported(rows: list[LabelledRow]) -> dict[str, Any]:
    def other(state: str, name: str, question: Question) -> list[float]:
        return list(tempered(1)(state, name, question))[::-1]

    async def ask() -> list[Any]:
        fakes = (Fake(tempered(1), EVIL), Fake(other, "other"))
        return [await run_backend(fake, rows, stability=4) for fake in fakes]

    return build_report(rows, asyncio.run(ask()), source=EVIL, options={"seed": 1}, slice_by=EVIL)


@pytest.fixture(scope="module")
def page(rows: list[LabelledRow]) -> str:
    return render_page(reported(rows), rows)


def test_needs_nothing_but_itself(page: str) -> None:
    elements = Page(page).elements
    assert not any("src" in attributes or "href" in attributes for _, attributes in elements)
    assert not {"link", "img", "iframe", "object"} & {tag for tag, _ in elements}
    # The SVG's own elements need no name space in HTML, so no address stands anywhere.
    assert not re.search(r"https?://", page)
    assert "default-src 'none'" in page


def test_nothing_that_was_asked_becomes_part_of_the_page(page: str) -> None:
    parsed = Page(page)
    assert len(parsed.scripts) == 2
    assert not any(name.startswith("on") for _, attributes in parsed.elements for name in attributes)
    text = "".join(parsed.words)
    assert "alert(1)" in text  # as words
    data, code = parsed.scripts
    assert "alert" not in code
    assert "innerHTML" not in code
    assert "<" not in data
    # Read back, it is what was asked.
    assert json.loads(data)["lists"][0]["entries"][0]["alternatives"]


def test_shows_every_flip_and_mistake_with_distributions(page: str, rows: list[LabelledRow]) -> None:
    report = reported(rows)
    (pair,) = report["comparisons"]
    data = json.loads(Page(page).scripts[0])
    flips, *wrong = data["lists"]
    assert len(flips["entries"]) == pair["flips"] > 0
    for listed, backend in zip(wrong, report["backends"], strict=True):
        figures = backend["figures"]
        assert len(listed["entries"]) == round(figures["n"] * (1 - figures["accuracy"])) > 0
    first = flips["entries"][0]
    assert first["answers"][0]["probabilities"] == pair["flip_list"][0]["first"]["probabilities"]
    assert data["rows"][str(first["row"])]["state"].startswith(EVIL)
    assert Page(page).elements.count(("figure", {})) == 3


def test_the_report_is_json_and_the_page_is_the_same_each_time(rows: list[LabelledRow]) -> None:
    report = reported(rows)
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    fixed = {**report, "created": "now"}
    for entry in fixed["backends"]:
        entry["costs"] = {**entry["costs"], "latency": None, "wall_seconds": 0}
    assert render_page(fixed, rows) == render_page(fixed, rows)


def test_a_page_without_reviewed_answers_or_mistakes(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"state": "a", "questions": {"red": NOUL}}) + "\n")
    rows = read_rows(path)

    async def ask() -> list[Any]:
        return [await run_backend(Fake(tempered(1)), rows)]

    report = build_report(rows, asyncio.run(ask()), source="x")
    assert report["backends"][0]["figures"]["accuracy"] is None
    assert "<script" not in render_page(report, rows)
