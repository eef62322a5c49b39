"""Every training row of the embedded model is a valid request, with an answer that could be given."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from random import Random

import pytest

from jev.schemas import Row, SystemOneRequest, index_of

rows = import_module("rows")


@pytest.fixture(scope="module")
def made(sets: Path, wordnet: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, object]]:
    """Rows of the whole mixture."""
    valence = tmp_path_factory.mktemp("valence") / "words.txt"
    lines = [f"adj{number}\t{value}\t0.5\t[]\n" for number, value in enumerate((-3.0, -1.5, 1.5, 3.0))]
    valence.write_text("".join(lines))
    return rows.rows(sets, 1500, 1, wordnet, valence)


def test_rows_are_valid(made: list[dict[str, object]]) -> None:
    """Each passes the checks of requests; each answer is one of the alternatives."""
    for one in made:
        row = Row.model_validate(one)
        assert row.questions
        assert row.answers
        assert row.questions.keys() == row.answers.keys()
        SystemOneRequest(state=row.state, questions=row.questions)
        for name, question in row.questions.items():
            index_of(question, row.answers[name])


def test_every_part_is_drawn(made: list[dict[str, object]], sets: Path, wordnet: Path) -> None:
    """No part of the mixture is left out, and answers are not all alike."""
    drawn = {str(one["id"]).rsplit("-", 1)[0] for one in made}
    assert drawn >= {"tones", "pairs", "manner", *(name for _, name, _ in rows.mixture(sets, wordnet))}
    yes = [answer for one in made for answer in one["answers"].values() if isinstance(answer, bool)]  # type: ignore[attr-defined]
    assert 0.3 < sum(yes) / len(yes) < 0.7


def test_held_out_tasks_are_held_out(sets: Path) -> None:
    """Ready decisions of held-out sets and of sets that may not be shipped are never drawn."""
    ready = rows.Ready(sets)
    assert {ready.draw(Random(seed))[0] for seed in range(20)} == {"Play it again."}


def test_the_same_seed_makes_the_same_rows(sets: Path) -> None:
    """Rows are a function of the sets and the seed."""
    assert rows.rows(sets, 50, 3) == rows.rows(sets, 50, 3)
    assert rows.rows(sets, 50, 3) != rows.rows(sets, 50, 4)
