"""Proves that every label is one token of its own, and that a tokenizer without them is refused by name."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase
from typing import TYPE_CHECKING, Any, cast

import pytest

from jev.errors import InvalidRequestError
from jev.labels import Label, Labels
from jev.model import embedded
from jev.model.errors import CheckpointError
from jev.model.tokenizer import Tokenizer
from jev.prompt import labels_for, plan_isolated
from jev.schemas import Choice, Noul, Score, SystemOneRequest

if TYPE_CHECKING:
    from jev.engine import Engine

PAIRS = ["".join(pair) for pair in product(ascii_uppercase, repeat=2)]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(embedded.path())


@pytest.fixture(scope="module")
def labels(tokenizer: Tokenizer) -> Labels:
    return Labels.of(tokenizer)


def texts(kind: tuple[Label, ...]) -> list[str]:
    return [label.text for label in kind]


def test_spelling_and_order(tokenizer: Tokenizer, labels: Labels) -> None:
    assert texts(labels.noul) == ["yes", "no"]
    assert texts(labels.score) == list("0123456789")
    single = [pair for pair in PAIRS if tokenizer.single(pair) is not None]
    assert texts(labels.choice) == [*ascii_uppercase, *ascii_lowercase, *single][:255]
    assert len(single) > 203  # so there is a label for each of the 255 options


def test_each_is_one_distinct_token_that_reads_as_itself(tokenizer: Tokenizer, labels: Labels) -> None:
    for kind, count in ((labels.noul, 2), (labels.score, 10), (labels.choice, 255)):
        assert len(kind) == len({label.id for label in kind}) == len(set(texts(kind))) == count
        for label in kind:
            assert tokenizer.encode(label.text) == [label.id]
            assert tokenizer.decode([label.id]) == label.text
            assert label.id not in tokenizer.control.values()


def test_tiny_checkpoint_has_them_all(tiny: Path) -> None:
    found = Labels.of(Tokenizer.from_folder(tiny))
    assert [len(found.noul), len(found.score), len(found.choice)] == [2, 10, 255]


@pytest.mark.parametrize(
    ("question", "used"),
    [
        (Noul("?"), ["yes", "no"]),
        (Choice(["x"]), ["A"]),
        (Choice(["x", "y", "z"]), ["A", "B", "C"]),
        (Choice([str(n) for n in range(28)]), [*ascii_uppercase, "a", "b"]),
        (Score(["x"] * 10), list("0123456789")),
    ],
)
def test_labels_of_a_question(labels: Labels, question: Any, used: list[str]) -> None:
    assert texts(tuple(labels_for("q", question, labels))) == used


# Tokenizers that lack some


def without_merges(folder: Path, of: str) -> Tokenizer:
    """The folder's tokenizer, unable to join the letters of `of`."""
    spec = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    merges = spec["model"]["merges"]
    spec["model"]["merges"] = [pair for pair in merges if "".join(pair) not in (of, of.replace(" ", ""))]
    return Tokenizer(spec)


@pytest.mark.parametrize("word", ["yes", "no"])
def test_word_of_several_tokens(tiny: Path, word: str) -> None:
    with pytest.raises(CheckpointError) as error:
        Labels.of(without_merges(tiny, word))
    assert str(error.value) == f"the label {word!r} is not one token in this tokenizer but 2"


def test_pair_of_several_tokens_is_passed_over(tiny: Path) -> None:
    found = texts(Labels.of(without_merges(tiny, "AC")).choice)
    assert "AC" not in found
    assert found[52:55] == ["AA", "AB", "AD"]
    assert len(found) == 255


class Letters:
    """A tokenizer that knows single characters and the given words."""

    def __init__(self, *words: str, unknown: str = "", same: tuple[str, ...] = ()) -> None:
        self.words, self.unknown, self.same = words, unknown, same

    def single(self, text: str) -> int | None:
        if text in tuple(self.unknown) or (len(text) > 1 and text not in self.words):
            return None
        return 7 if text in self.same else int.from_bytes(text.encode()) + 100

    def encode(self, text: str) -> list[int]:
        return [1] * len(text)

    def labels(self) -> Labels:
        return Labels.of(cast(Tokenizer, self))


def test_fewer_options_than_255() -> None:
    found = Letters("yes", "no", "QX", unknown=ascii_lowercase[3:]).labels()
    assert texts(found.choice) == [*ascii_uppercase, "a", "b", "c", "QX"]


@pytest.mark.parametrize("letter", ["A", "Z", "0", "9"])
def test_letters_and_digits_are_required(letter: str) -> None:
    with pytest.raises(CheckpointError, match=f"^the label '{letter}' is not one token"):
        Letters("yes", "no", unknown=letter).labels()


@pytest.mark.parametrize(("same", "named"), [(("yes", "no"), "yes"), (("3", "4"), "0"), (("A", "b"), "A")])
def test_two_labels_with_one_token(same: tuple[str, ...], named: str) -> None:
    with pytest.raises(CheckpointError, match=f"^the labels '{named}' .* distinct"):
        Letters("yes", "no", same=same).labels()


def test_more_options_than_labels_is_refused_with_both_numbers(engine: Engine, labels: Labels) -> None:
    few = replace(labels, choice=labels.choice[:30])
    names = [f"option {n}" for n in range(31)]
    assert len(labels_for("q", Choice(names[:30]), few)) == 30
    request = SystemOneRequest(state="s", questions={"ok": Noul("?"), "big": Choice(names)})
    with pytest.raises(InvalidRequestError) as error:
        plan_isolated(request, replace(engine.context, labels=few))
    (issue,) = error.value.issues
    assert issue.loc == ["body", "questions", "big", "criteria"]
    assert issue.msg == "31 options, but this model's tokenizer has labels for 30"
    assert error.value.status == 422
