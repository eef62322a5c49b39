"""Sentences whose mood people have rated: remarks, reviews of several sentences, and which of two is better.

The files have lines of an id, a mean rating between -4 and 4 and a text, apart by tabs (the tweets and the
newspaper sentences that come with VADER; MIT licence. Its product and film reviews are those of the sets cr
and sst2, which stay untrained).
"""

from __future__ import annotations

import html
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

import words
from label_sets import Asked, sentiment

FILES = ("tweets_GroundTruth.txt", "nytEditorialSnippets_GroundTruth.txt")
NEWS_NAMES = [
    ("negative", "neutral", "positive"),
    ("bad", "neither", "good"),
    ("unfavourable", "neutral", "favourable"),
    ("pessimistic", "matter-of-fact", "optimistic"),
    ("gloomy", "neutral", "cheerful"),
    ("bad news", "no news", "good news"),
    ("negative tone", "neutral tone", "positive tone"),
]
"""What sentences that tell of something may be called; they are no reviews."""
BETTER = ["Which is more positive?", "Which of the two sounds happier?", "Which one is the better news?"]
WORSE = ["Which is more negative?", "Which of the two sounds worse?", "Which one is the more critical?"]
BEST = ["Which remark is the most positive?", "Pick the friendliest line.", "Which is the best news?"]
WORST = ["Which remark is the most negative?", "Pick the saddest or angriest line.", "Which is the worst?"]
APART = 1.5
"""Two ratings that differ less are not compared."""


def level(rating: float) -> int | None:
    """0 (very negative) to 4 (very positive); None between two levels."""
    size = abs(rating)
    if size < 0.3:
        return 2
    if size < 0.55:
        return None
    strong = size > 1.9
    return (4 if strong else 3) if rating > 0 else (0 if strong else 1)


def plain_type(text: str) -> str:
    """The text as old corpora have it: small letters, apart from its punctuation."""
    apart = re.sub(r"([.,!?;:()\"])", r" \1 ", text.lower())
    apart = re.sub(r"(\w)n't\b", r"\1 n't", apart)
    apart = re.sub(r"(\w)('(?:s|re|ve|ll|d|m))\b", r"\1 \2", apart)
    return re.sub(r"\s+", " ", apart).strip()


class Rated:
    """Draws rows; see the module."""

    def __init__(self, files: Iterable[Path]) -> None:
        self.sources: list[dict[int, list[str]]] = []
        self.rated: list[tuple[float, str]] = []
        for file in files:
            by_level: dict[int, list[str]] = defaultdict(list)
            for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
                _, rating, text = line.split("\t", 2)
                text = html.unescape(text).strip()
                if not 12 < len(text) < 400:
                    continue
                self.rated.append((float(rating), text))
                if (found := level(float(rating))) is not None:
                    by_level[found].append(text)
            self.sources.append(by_level)

    def draw(self, random: Random) -> tuple[Any, list[Asked]]:
        """A state with one to three questions."""
        form = random.random()
        if form < 0.12:
            return self._two(random)
        if form < 0.2:
            return self._several(random)
        mood = random.choice((0, 1, 1, 2, 3, 3, 4))
        source = random.choice(self.sources)
        names = words.SENTIMENT_NAMES if source is self.sources[0] else NEWS_NAMES
        text = self._review(source, mood, random) if form < 0.5 else random.choice(source[mood])
        if random.random() < 0.35:
            text = plain_type(text)
        count = random.choice((2, 2, 3))
        return words.shaped(text, random), [sentiment(mood, random, names) for _ in range(count)]

    def _review(self, source: dict[int, list[str]], mood: int, random: Random) -> str:
        """Two to six sentences, most of them of the mood."""
        said = [random.choice(source[mood]) for _ in range(random.choice((2, 3, 4)))]
        if mood != 2:
            near = {0: 1, 1: 0, 3: 4, 4: 3}[mood]
            said += [random.choice(source[random.choice((2, near))]) for _ in range(random.choice((0, 1, 2)))]
            random.shuffle(said)
        return " ".join(said)

    def _two(self, random: Random) -> tuple[Any, list[Asked]]:
        first, second = self._apart(random)
        keys = random.choice([("a", "b"), ("first", "second"), ("text_1", "text_2"), ("left", "right")])
        up = random.random() < 0.5
        options = random.sample(keys, 2)
        right = keys[0] if (first[0] > second[0]) == up else keys[1]
        asking = random.choice(BETTER if up else WORSE)
        question = {"type": "choice", "instructions": asking, "criteria": dict.fromkeys(options)}
        asked: list[Asked] = [(question, right)]
        if random.random() < 0.4:
            shown = random.choice(keys)
            than = "positive" if up else "negative"
            asks = f"Is {shown} more {than} than the other?"
            asked.append(({"type": "noul", "instructions": asks}, shown == right))
        return dict(zip(keys, (first[1], second[1]), strict=True)), asked

    def _several(self, random: Random) -> tuple[Any, list[Asked]]:
        """Sentences as options, of which one is rated apart from all others."""
        up = random.random() < 0.5
        right = random.choice(random.choice(self.sources)[4 if up else 0])[:110]
        others = random.choice(self.sources)
        wrong = [random.choice(others[random.choice((0, 1, 2) if up else (2, 3, 4))])[:110] for _ in range(4)]
        options = [right, *wrong[: random.choice((1, 2, 3, 4))]]
        options = list(dict.fromkeys(options))
        random.shuffle(options)
        state = random.choice(["Comments of the day", "What people said", "Feedback", {"kind": "remarks"}])
        asking = random.choice(BEST if up else WORST)
        return state, [
            ({"type": "choice", "instructions": asking, "criteria": dict.fromkeys(options)}, right)
        ]

    def _apart(self, random: Random) -> tuple[tuple[float, str], tuple[float, str]]:
        while True:
            first, second = random.sample(self.rated, 2)
            if abs(first[0] - second[0]) >= APART:
                return first, second
