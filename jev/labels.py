"""The tokens that stand for answers, checked against the loaded tokenizer once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from string import ascii_lowercase, ascii_uppercase

from jev.model.errors import CheckpointError
from jev.model.tokenizer import Tokenizer
from jev.schemas import MAX_LEVELS, MAX_OPTIONS


@dataclass(frozen=True)
class Label:
    """A label as text and as the one token it is."""

    text: str
    id: int


@dataclass(frozen=True)
class Labels:
    """Label tokens by question type; all are single tokens and distinct within a type.

    Attributes:
        noul: `yes`, `no`.
        score: `0` to `9`.
        choice: `A`-`Z`, `a`-`z`, then two-letter upper-case combinations in alphabetical order as
            far as they are one token; at most 255.
    """

    noul: tuple[Label, ...]
    score: tuple[Label, ...]
    choice: tuple[Label, ...]

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Labels:
        """Look the labels up.

        Raises:
            CheckpointError: naming the first label that is not one token of its own.
        """
        labels = cls(
            noul=_required(tokenizer, ("yes", "no")),
            score=_required(tokenizer, tuple(map(str, range(MAX_LEVELS)))),
            choice=(*_required(tokenizer, tuple(ascii_uppercase)), *_more_options(tokenizer)),
        )
        for kind in (labels.noul, labels.score, labels.choice):
            ids = [label.id for label in kind]
            if len(set(ids)) != len(ids):
                raise CheckpointError(f"the labels {kind[0].text!r} ... do not have distinct tokens")
        return labels


def _required(tokenizer: Tokenizer, texts: tuple[str, ...]) -> tuple[Label, ...]:
    return tuple(_label(tokenizer, text) for text in texts)


def _label(tokenizer: Tokenizer, text: str) -> Label:
    token = tokenizer.single(text)
    if token is None:
        count = len(tokenizer.encode(text))
        raise CheckpointError(f"the label {text!r} is not one token in this tokenizer but {count}")
    return Label(text, token)


def _more_options(tokenizer: Tokenizer) -> Iterator[Label]:
    pairs = ("".join(pair) for pair in product(ascii_uppercase, repeat=2))
    left = MAX_OPTIONS - len(ascii_uppercase)
    for text in (*ascii_lowercase, *pairs):
        token = tokenizer.single(text)
        if token is None:
            continue
        yield Label(text, token)
        left -= 1
        if not left:
            return
