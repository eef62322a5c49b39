"""Made-up reviews and remarks with a known mood, from a list of words with their valence.

The list has lines of a word, a tab and a mean between -4 and 4 (VADER's lexicon has that form; MIT licence).
"""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path
from random import Random
from typing import Any

import words
from label_sets import Asked, sentiment
from rated import plain_type

THINGS = [
    "film",
    "movie",
    "plot",
    "acting",
    "script",
    "ending",
    "soundtrack",
    "book",
    "story",
    "hotel",
    "room",
    "staff",
    "food",
    "service",
    "restaurant",
    "meal",
    "dessert",
    "phone",
    "screen",
    "battery",
    "camera",
    "sound",
    "software",
    "update",
    "app",
    "laptop",
    "keyboard",
    "printer",
    "delivery",
    "price",
    "quality",
    "design",
    "car",
    "seat",
    "trip",
    "flight",
    "show",
    "song",
    "album",
    "game",
    "course",
    "teacher",
    "weather",
    "manual",
    "support",
    "website",
    "toy",
    "shoe",
    "coat",
    "player",
    "router",
]
NAMING = [
    "The {0} is {1}.",
    "The {0} was {1}.",
    "{1} {0}!",
    "I found the {0} {1}.",
    "a {1} {0}",
    "such a {1} {0}",
]
TURNED = [
    "The {0} is not {1}.",
    "The {0} was hardly {1}.",
    "I did not find the {0} {1}.",
    "nothing {1} about the {0}",
]
BUT = ["{a} But {b}", "Although {a}, {b}", "{a} Still, {b}", "At first {a}; in the end {b}"]
PLAIN = [
    "The {0} arrived on Monday.",
    "I bought the {0} last year.",
    "The {0} has two parts.",
    "It comes with a {0}.",
    "They moved the {0} to the second floor.",
    "My sister has the same {0}.",
    "Where did you get the {0}?",
    "The {0} lasts about two hours.",
]
FILLERS = ["", "", "", "honestly, ", "well, ", "to me ", "i think ", "overall, ", "in my opinion "]


class Tones:
    """Draws remarks; see the module."""

    def __init__(self, lexicon: Path, adjectives: Set[str]) -> None:
        self.words: dict[int, list[str]] = {0: [], 1: [], 3: [], 4: []}
        for line in lexicon.read_text(encoding="utf-8").splitlines():
            word, value, *_ = line.split("\t")
            if word not in adjectives:
                continue
            mean = float(value)
            if abs(mean) >= 1.2:
                self.words[(4 if mean > 2.4 else 3) if mean > 0 else (0 if mean < -2.4 else 1)].append(word)

    def _remark(self, level: int, random: Random) -> str:
        thing = random.choice(THINGS)
        if level == 2:
            return random.choice(PLAIN).format(thing)
        if level in (1, 3) and random.random() < 0.2:
            return random.choice(TURNED).format(thing, random.choice(self.words[4 - level]))
        return random.choice(NAMING).format(thing, random.choice(self.words[level]))

    def judgement(self, random: Random) -> str:
        """A remark that is good or bad."""
        return self._remark(random.choice((0, 1, 3, 4)), random)

    def draw(self, random: Random) -> tuple[Any, list[Asked]]:
        """Some remarks with questions on their mood."""
        level = random.choice((0, 1, 1, 2, 3, 3, 4))
        form = random.random()
        if form < 0.2 and level != 2:
            first = self._remark(random.choice((1, 3) if level in (1, 3) else (4 - level,)), random)
            text = random.choice(BUT).format(a=first, b=self._remark(level, random))
            text += " " + self._remark(level, random)
        else:
            said = [self._remark(level, random) for _ in range(random.choice((1, 1, 2, 3)))]
            if form > 0.7:
                said.insert(random.randrange(len(said) + 1), self._remark(2, random))
            text = " ".join(said)
        text = random.choice(FILLERS) + text
        if random.random() < 0.4:
            text = plain_type(text)
        return words.shaped(text, random), [sentiment(level, random) for _ in range(random.choice((1, 2, 3)))]
