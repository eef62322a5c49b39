"""What of an item is shown, on a terminal and on the page: safe texts, and a key for each option.

Rows are texts of strangers: what could steer a terminal, or turn a line around, is replaced here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from jev.review.queue import Item
from jev.schemas import Choice, Noul, alternatives

LATER, UNDO, UNSURE, QUIT, MORE, FIND = "suxqm/"
"""The keys that are no option's, beside Enter, which takes the proposed answer."""

KEYS = "123456789" + "".join(
    c for c in "abcdefghijklmnopqrstuvwxyz" if c not in LATER + UNDO + UNSURE + QUIT + MORE
)
"""Keys of a choice's options, in order: 30 of them."""

FEW = 9
"""Options of a longer choice that have keys: the most likely ones. The others are found by typing."""

MAX_TEXT = 200_000
MAX_LINES = 5_000
"""Characters and lines of a text that are shown."""

_JOINERS = "\u200c\u200d"  # invisible, but parts of words and of emoji


@dataclass(frozen=True)
class Option:
    """An alternative of a question.

    Attributes:
        index: among `alternatives`.
        key: the key that takes it; empty if it has none.
        name: what it is called; of a score's level what it means.
        about: its description, if it has one.
        probability: that the model gave it.
        proposed: whether it is the model's answer, or the row's label.
    """

    index: int
    key: str
    name: str
    about: str
    probability: float | None
    proposed: bool


def options_of(item: Item) -> list[Option]:
    """All options of an item in the order of the question."""
    question = item.question
    names = alternatives(question)
    if isinstance(question, Noul):
        criteria = question.criteria
        about = (criteria.true, criteria.false) if criteria is not None else (None, None)
        keys = {0: "y", 1: "n"}
    elif isinstance(question, Choice):
        about = tuple(question.criteria.values())
        keys = _choice_keys(item, len(names))
    else:
        names, about = tuple(map(text_of, question.criteria)), (None,) * len(names)
        keys = dict(enumerate("0123456789"))
    shares = item.probabilities or (None,) * len(names)
    return [
        Option(
            index,
            keys.get(index, ""),
            one_line(name),
            "" if told is None else one_line(text_of(told)),
            share,
            index == item.proposed,
        )
        for index, (name, told, share) in enumerate(zip(names, about, shares, strict=True))
    ]


def _choice_keys(item: Item, count: int) -> dict[int, str]:
    if count <= len(KEYS):
        return dict(enumerate(KEYS[:count]))
    shares = item.probabilities or [index == item.proposed for index in range(count)]
    order = sorted(range(count), key=lambda index: -shares[index])
    return {index: KEYS[place] for place, index in enumerate(order[:FEW])}


def matching(options: list[Option], typed: str) -> list[Option]:
    """Options whose name or description has what was typed; those whose name begins with it come first."""
    wanted = typed.casefold()
    found = [option for option in options if wanted in f"{option.name}\n{option.about}".casefold()]
    return sorted(found, key=lambda option: not option.name.casefold().startswith(wanted))


def instructions_of(item: Item) -> str:
    """What the question asks; empty where it only describes its outcomes."""
    return "" if item.question.instructions is None else text_of(item.question.instructions)


def text_of(value: Any) -> str:
    """A text, or JSON with an indent, as it can be shown; cut off after so many characters and lines."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)
    *lines, last = clean(text[:MAX_TEXT]).split("\n", MAX_LINES)
    if len(text) <= MAX_TEXT and len(lines) < MAX_LINES:
        return "\n".join([*lines, last])
    shown = lines if len(lines) == MAX_LINES else [*lines, last]
    return "\n".join([*shown, f"[cut off: it has {len(text):,} characters]"])


def clean(text: str) -> str:
    """`text` without control characters but line breaks; what cannot be shown is a replacement character."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").expandtabs(4)
    return "".join(c if c.isprintable() or c == "\n" or c in _JOINERS else "\ufffd" for c in text)


def one_line(text: str) -> str:
    """`text` on one line, as it can be shown."""
    return clean(" ".join(text.split()))
