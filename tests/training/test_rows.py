"""Every training row of the embedded model is a valid request, with an answer that could be given."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

import pytest

from jev.schemas import Row, SystemOneRequest, index_of

label_sets = import_module("label_sets")
rated = import_module("rated")
rows = import_module("rows")

RATINGS = [-3.5, -3.0, -2.6, -1.4, -1.0, -0.8, 0.0, 0.1, 0.2, 0.9, 1.0, 1.5, 2.6, 3.0, 3.4]
PACKAGES = [
    ("editing", "arts", "graphics"),
    ("viewing", "finance", "office/editors"),
    ("gameplaying", "biology", "games"),
]


@pytest.fixture(scope="module")
def parts(sets: Path, wordnet: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The whole mixture."""
    folder = tmp_path_factory.mktemp("sources")
    valence = folder / "words.txt"
    lines = [f"adj{number}\t{value}\t0.5\t[]\n" for number, value in enumerate((-3.0, -1.5, 1.5, 3.0))]
    valence.write_text("".join(lines))
    for name in rated.FILES:
        lines = [f"{value}\t{value}\tIt is {value} &amp; said in {name}\n" for value in RATINGS]
        (folder / name).write_text("".join(lines))
    packages = folder / "packages.txt"
    blocks = [
        f"Package: p{number}\nDescription: a program with the number {number}\nTag: use::{use}, a::b,"
        f"\n field::{field}\nSection: {section}\n"
        for number in range(90)
        for use, field, section in (PACKAGES[number % 3],)
    ]
    packages.write_text("\n".join(blocks))
    return rows.mixture(sets, wordnet, valence, folder, packages)


@pytest.fixture(scope="module")
def made(parts: list[Any]) -> list[dict[str, object]]:
    """Rows of the whole mixture."""
    return rows.rows(parts, 1500, 1)


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


def test_every_part_is_drawn(made: list[dict[str, object]], parts: list[Any]) -> None:
    """No part of the mixture is left out, and answers are not all alike."""
    drawn = {str(one["id"]).rsplit("-", 1)[0] for one in made}
    assert drawn == {name for _, name, _ in parts}
    assert drawn >= {"wordnet", "tones", "pairs", "manner", "rated", "packages"}
    yes = [answer for one in made for answer in one["answers"].values() if isinstance(answer, bool)]  # type: ignore[attr-defined]
    assert 0.3 < sum(yes) / len(yes) < 0.7


def test_long_lists_may_hold_every_label() -> None:
    """From 16 labels to all of them, at most 77 and "none of these", and no label twice."""
    labels = [f"thing number {number}" for number in range(90)]
    many = label_sets.LabelSet([(f"It is {label}.", label) for label in labels], ["Which?"], ["Is it {}?"])
    few = label_sets.LabelSet([(f"It is {label}.", label) for label in labels[:5]], ["Which?"], ["Is it {}?"])
    random, sizes = Random(5), set[int]()
    for _ in range(300):
        _, [(question, answer)] = many.many(random)
        assert answer in question["criteria"]
        sizes.add(len(question["criteria"]))
        _, [(question, answer)] = few.many(random)
        assert answer in question["criteria"]
        assert len(question["criteria"]) in (5, 6)
    assert min(sizes) in (15, 16)
    assert max(sizes) in (77, 78)


def test_held_out_tasks_are_held_out(sets: Path) -> None:
    """Ready decisions of held-out sets and of sets that may not be shipped are never drawn."""
    ready = rows.Ready(sets)
    assert {ready.draw(Random(seed))[0] for seed in range(20)} == {"Play it again."}


def test_the_same_seed_makes_the_same_rows(sets: Path) -> None:
    """Rows are a function of the sets and the seed."""
    assert rows.rows(rows.mixture(sets), 50, 3) == rows.rows(rows.mixture(sets), 50, 3)
    assert rows.rows(rows.mixture(sets), 50, 3) != rows.rows(rows.mixture(sets), 50, 4)


@pytest.mark.parametrize(
    ("rating", "level"),
    [(-3.1, 0), (-1.0, 1), (-0.4, None), (0.0, 2), (0.29, 2), (0.5, None), (0.6, 3), (1.9, 3), (2.5, 4)],
)
def test_ratings_become_levels(rating: float, level: int | None) -> None:
    """Between neutral and a side nothing is said."""
    assert rated.level(rating) == level


def test_answers_follow_the_ratings(parts: list[Any]) -> None:
    """Each question on two sentences, or on one of several, has the answer that the ratings give."""
    draw, random = next(draw for _, name, draw in parts if name == "rated"), Random(3)

    def rating(text: str) -> float:
        return float(text.split()[2])

    compared = 0
    for _ in range(400):
        state, asked = draw(random)
        question, answer = asked[0]
        if isinstance(state, dict) and set(state) == set(question.get("criteria") or ()):
            up = question["instructions"] in rated.BETTER
            assert answer == (max if up else min)(state, key=lambda key: rating(state[key]))
            compared += 1
        elif question.get("instructions") in (*rated.BEST, *rated.WORST):
            up = question["instructions"] in rated.BEST
            assert answer == (max if up else min)(question["criteria"], key=rating)
            compared += 1
    assert compared > 40


def test_plain_type_is_that_of_old_corpora() -> None:
    """Punctuation and clitics stand apart."""
    assert rated.plain_type("It isn't bad, he's SAID (twice).") == "it is n't bad , he 's said ( twice ) ."
