"""Proves that the built-in set is large, varied and consistent, and its files say what they are asked."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from jev.extractors.extract import extract
from jev.extractors.limits import Limits
from jev.extractors.options import Options
from jev.quality.smoke import read_smoke, smoke_path
from jev.quality.stability import paraphrases_of

ROWS = read_smoke()

SAYS = {
    "invoice_desks.pdf": "Amount due",
    "hosting.pdf": "renews automatically",
    "receipt.docx": "Paid in full",
    "nda.docx": "secret",
    "trips.xlsx": "Hotel Donau",
    "meters.csv": "electricity",
    "application.eml": "apply for the job",
}


def test_size_types_and_domains() -> None:
    assert len(ROWS) >= 60
    kinds = Counter(question.type for row in ROWS for question in row.questions.values())
    assert min(kinds[kind] for kind in ("noul", "choice", "score")) >= 30
    domains = Counter((row.row.metadata or {})["domain"] for row in ROWS)
    assert len(domains) >= 9
    assert len({row.row.id for row in ROWS}) == len(ROWS)


def test_every_question_has_a_reviewed_answer_and_another_wording() -> None:
    for row in ROWS:
        assert set(row.gold) == set(row.questions), row.row.id
        assert set(paraphrases_of(row)) == set(row.questions), row.row.id
        for name, texts in paraphrases_of(row).items():
            assert row.questions[name].instructions not in texts


def test_no_answer_can_be_had_by_always_saying_the_same() -> None:
    gold: dict[tuple[str, str], Counter[int]] = {}
    for row in ROWS:
        domain = (row.row.metadata or {})["domain"]
        for name, index in row.gold.items():
            gold.setdefault((domain, name), Counter())[index] += 1
    for (domain, name), counts in gold.items():
        if domain != "pictures":
            assert max(counts.values()) <= 0.75 * sum(counts.values()), (domain, name)


def test_all_files_are_used_and_all_kinds_are_there() -> None:
    used = {Path(path).name for row in ROWS for path in row.row.attachments}
    assert used == {file.name for file in smoke_path().with_name("files").iterdir()}
    assert {Path(name).suffix for name in used} == {".pdf", ".docx", ".xlsx", ".png", ".eml", ".csv"}


@pytest.mark.parametrize("name", sorted(SAYS))
def test_files_say_what_is_asked(name: str) -> None:
    data = (smoke_path().with_name("files") / name).read_bytes()
    evidence = extract(data, name, Limits(), picture_slots=8, options=Options())
    assert SAYS[name] in evidence.text
