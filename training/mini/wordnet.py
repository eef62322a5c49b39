"""Training rows from WordNet 3: words, what they mean, what they are kinds of, and the field they belong to.

Label sets without end, so that matching a description with a text is worth more than knowing labels by heart.
WordNet's licence allows any use; its `dict` folder (`data.noun`, `index.noun`, ...) is given by the caller.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import words
from label_sets import Asked

PARTS = {"n": "noun", "v": "verb", "a": "adj", "r": "adv"}
KINDS_OF = {
    5: "animal",
    6: "man-made object",
    8: "part of the body",
    11: "event in nature",
    12: "feeling",
    13: "food",
    14: "group of people",
    15: "place",
    17: "natural object",
    18: "person",
    20: "plant",
    21: "possession or money",
    26: "condition or illness",
    27: "substance",
    28: "time",
    4: "activity",
    10: "communication",
    23: "quantity",
    25: "shape",
}
"""Numbers of WordNet's noun files, and what they hold."""


@dataclass
class Sense:
    """One meaning."""

    part: str
    file: int
    names: list[str]
    gloss: str
    examples: list[str]
    links: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    common: bool = False


def _name(word: str) -> str:
    return re.sub(r"\(\w+\)$", "", word).replace("_", " ")


def load(folder: Path) -> dict[str, Sense]:
    """Senses by part of speech and offset."""
    senses: dict[str, Sense] = {}
    for letter, part in PARTS.items():
        for line in (folder / f"data.{part}").read_text(encoding="utf-8").splitlines():
            if line.startswith(" "):
                continue
            head, _, gloss = line.partition(" | ")
            parts = head.split()
            count = int(parts[3], 16)
            names = [_name(parts[4 + 2 * index]) for index in range(count)]
            at = 4 + 2 * count
            links = [
                (parts[at + 1 + 4 * index], parts[at + 3 + 4 * index] + parts[at + 2 + 4 * index])
                for index in range(int(parts[at]))
            ]
            examples = re.findall(r'"([^"]+)"', gloss)
            meaning = gloss.split('; "')[0].strip().rstrip(";")
            senses[letter + parts[0]] = Sense(letter, int(parts[1]), names, meaning, examples, links)
        for line in (folder / f"index.{part}").read_text(encoding="utf-8").splitlines():
            parts = line.split()
            if not line.startswith(" ") and int(parts[-1 - int(parts[2])]) > 0:
                first = senses.get(letter + parts[-int(parts[2])])
                if first is not None:
                    first.common = True
    return senses


class WordNet:
    """Draws rows; see the module."""

    def __init__(self, folder: Path) -> None:
        self.senses = load(folder)
        short = {
            key: one
            for key, one in self.senses.items()
            if 12 < len(one.gloss) < 130 and len(one.names[0]) < 24
        }
        self.common = [key for key, one in short.items() if one.common and not one.names[0].isdigit()]
        self.nouns = [key for key in self.common if key[0] == "n" and self.senses[key].file in KINDS_OF]
        self.by_file: dict[int, list[str]] = defaultdict(list)
        for key in self.nouns:
            self.by_file[self.senses[key].file].append(key)
        self.above = {key: self._above(key) for key in self.nouns}
        counts: dict[str, int] = defaultdict(int)
        for chain in self.above.values():
            for one in chain:
                counts[one] += 1
        self.classes = {one for one, count in counts.items() if 6 <= count <= 400}
        self.classed = [key for key in self.nouns if set(self.above[key]) & self.classes]
        self.fields: dict[str, list[str]] = defaultdict(list)
        for one in short.values():
            for kind, target in one.links:
                if kind == ";c":
                    self.fields[self.senses[target].names[0]].append(one.gloss)
        self.fields = {name: found for name, found in self.fields.items() if len(found) > 15}
        self.paired = [key for key in self.common if len(self.senses[key].names) > 1]
        self.opposed = [key for key in self.common if any(kind == "!" for kind, _ in self.senses[key].links)]
        self.used = [
            key
            for key in self.common
            if self.senses[key].examples and self.senses[key].names[0] in self.senses[key].examples[0]
        ]

    @property
    def adjectives(self) -> set[str]:
        """All of them."""
        return {name for key, one in self.senses.items() if key[0] == "a" for name in one.names}

    def _above(self, key: str) -> list[str]:
        """Names of what it is a kind of, nearest first."""
        found: list[str] = []
        while True:
            higher = [target for kind, target in self.senses[key].links if kind in ("@", "@i")]
            if not higher or len(found) > 12:
                return found
            key = higher[0]
            found.append(self.senses[key].names[0])

    def draw(self, random: Random) -> tuple[Any, list[Asked]]:
        """A state with questions."""
        make = random.choice(
            (
                self.defined,
                self.meaning,
                self.kind,
                self.kind,
                self.sort,
                self.field,
                self.field,
                self.same,
                self.common_to,
            )
        )
        return make(random)

    def _others(self, key: str, random: Random, count: int) -> list[Sense]:
        """Other meanings, some of the same file."""
        one = self.senses[key]
        near = self.by_file.get(one.file, []) if random.random() < 0.4 else []
        pool = (
            near
            if len(near) > 20
            else [other for other in drawn(self.common, 60, random) if other[0] == key[0]]
        )
        found = [self.senses[other] for other in drawn(pool, count + 2, random)]
        return [other for other in found if not set(other.names) & set(one.names)][:count]

    def defined(self, random: Random) -> tuple[Any, list[Asked]]:
        """A definition, and the word."""
        key = random.choice(self.common)
        one = self.senses[key]
        name = random.choice(one.names)
        others = self._others(key, random, size(random) - 1)
        state = random.choice(["{}", "Definition: {}", "It is {}", "{}."]).format(one.gloss)
        asks = [
            "Which word is described?",
            "Which word fits the definition?",
            "What is it?",
            "Find the term.",
        ]
        asked = [choice(name, [random.choice(other.names) for other in others], asks, random)]
        shown, right = shown_of(name, [other.names[0] for other in others], random)
        asks = ["Is this the meaning of {}?", "Does it describe {}?", "Is {} meant?", "Does {} fit?"]
        return state, some([*asked, noul(random.choice(asks).format(quoted(shown, random)), right)], random)

    def meaning(self, random: Random) -> tuple[Any, list[Asked]]:
        """A word, alone or in a sentence, and its meaning."""
        key = random.choice(self.used if random.random() < 0.6 else self.common)
        one = self.senses[key]
        name = one.names[0]
        sentence = random.choice(one.examples) if one.examples else name
        state = random.choice([name, sentence, f"{name}: {sentence}", {"word": name, "sentence": sentence}])
        others = self._others(key, random, min(4, size(random) - 1))
        asks = [
            f"What does {name} mean?",
            f"Choose the meaning of {name}.",
            f"Which definition of {name} is right?",
        ]
        glosses = [other.gloss for other in others]
        asked = [choice(one.gloss, glosses, asks, random)]
        shown, right = shown_of(one.gloss, glosses, random)
        return state, some([*asked, noul(f"Does {name} mean: {shown}?", right)], random)

    def kind(self, random: Random) -> tuple[Any, list[Asked]]:
        """A thing, and what it is a kind of."""
        key = random.choice(self.classed)
        one, chain = self.senses[key], self.above[key]
        right = random.choice([above for above in chain if above in self.classes])
        pool = [other for other in drawn(sorted(self.classes), 30, random) if other not in chain]
        others = pool[: size(random) - 1]
        text = [one.names[0], f"{one.names[0]}: {one.gloss}", one.gloss, *one.examples[:1]]
        state = words.shaped(
            random.choice(text[:2] if one.names[0] not in " ".join(text[3:]) else text), random
        )
        asked = [choice(right, others, words.KIND, random)]
        shown, so = shown_of(right, others, random)
        asks = [
            "Is it a kind of {}?",
            "Is this a {}?",
            "Does it belong to the class {}?",
            "Would you call it a {}?",
        ]
        return state, some([*asked, noul(random.choice(asks).format(shown), so)], random)

    def sort(self, random: Random) -> tuple[Any, list[Asked]]:
        """A thing, and which large class it is of."""
        number = random.choice(list(self.by_file))
        one = self.senses[random.choice(self.by_file[number])]
        others = drawn([name for file, name in KINDS_OF.items() if file != number], size(random) - 1, random)
        text = random.choice([one.names[0], f"{one.names[0]} ({one.gloss})", one.gloss])
        asked = [choice(KINDS_OF[number], others, words.KIND, random)]
        shown, so = shown_of(KINDS_OF[number], others, random)
        return words.shaped(text, random), some([*asked, noul(f"Is it a {shown}?", so)], random)

    def field(self, random: Random) -> tuple[Any, list[Asked]]:
        """One to three definitions from a field such as law or music."""
        name = random.choice(list(self.fields))
        text = "; ".join(drawn(self.fields[name], random.choice((1, 1, 2, 3)), random))
        text = re.sub(r"^\([^)]*\)\s*", "", text)
        others = drawn([other for other in self.fields if other != name], size(random) - 1, random)
        asked = [choice(name, others, words.TOPIC, random)]
        shown, so = shown_of(name, others, random)
        return words.shaped(text, random), some(
            [*asked, noul(random.choice(words.IS).format(shown), so)], random
        )

    def same(self, random: Random) -> tuple[Any, list[Asked]]:
        """Which word means the same, or the opposite."""
        if random.random() < 0.3:
            key = random.choice(self.opposed)
            one = self.senses[key]
            target = next(self.senses[target] for kind, target in one.links if kind == "!")
            name, right = one.names[0], target.names[0]
            asks = ["Which word is the opposite?", f"What is the opposite of {name}?", "Find the antonym."]
            wrong = "Do {} and {} mean the same?"
            asked = [
                choice(
                    right,
                    [other.names[0] for other in self._others(key, random, size(random) - 1)],
                    asks,
                    random,
                )
            ]
            return name, some([*asked, noul(wrong.format(name, right), False)], random)
        key = random.choice(self.paired)
        one = self.senses[key]
        name, right = random.sample(one.names, 2)
        others = [other.names[0] for other in self._others(key, random, size(random) - 1)]
        asks = ["Which word means the same?", f"Which word could replace {name}?", "Find the synonym."]
        asked = [choice(right, others, asks, random)]
        shown, so = shown_of(right, others, random)
        sentence = next((text for text in one.examples if name in text), name)
        state = random.choice([name, sentence, {"word": name}])
        return state, some([*asked, noul(f"Does {name} mean the same as {shown}?", so)], random)

    def common_to(self, random: Random) -> tuple[Any, list[Asked]]:
        """Several things of one kind, perhaps with one that is of another."""
        right = random.choice(sorted(self.classes))
        members = [key for key in self.classed if right in self.above[key]]
        shown = [self.senses[key].names[0] for key in drawn(members, random.randrange(3, 6), random)]
        others = [one for one in drawn(sorted(self.classes), 12, random) if one != right]
        chains = [set(self.above[key]) for key in members]
        others = [one for one in others if not any(one in chain for chain in chains)]
        state: Any = random.choice([", ".join(shown), shown, {"items": shown}])
        if others and random.random() < 0.5:
            asks = ["What do they have in common?", "What are all of these?", "Which class holds them all?"]
            return state, [choice(right, others[: size(random) - 1], asks, random)]
        outside = [key for key in self.classed if right not in self.above[key]]
        odd = self.senses[random.choice(outside)].names[0]
        asks = ["Which one does not belong?", "Find the odd one out.", f"Which of these is no {right}?"]
        mixed = [*shown, odd]
        random.shuffle(mixed)
        return ", ".join(mixed), [choice(odd, shown, asks, random)]


def drawn(pool: Sequence[str], count: int, random: Random) -> list[str]:
    """That many of them, or all if there are fewer."""
    return random.sample(pool, min(count, len(pool)))


def size(random: Random) -> int:
    """How many options: mostly few."""
    return random.choice((2, 3, 4, 4, 5, 5, 6, 7, 8, 10, 12))


def choice(right: str, others: Sequence[str], asks: Sequence[str], random: Random) -> Asked:
    """A choice with the options in any order and one style."""
    names = [right, *(other for other in dict.fromkeys(others) if other.lower() != right.lower())]
    styled = words.styled(names, random) if max(map(len, names)) < 30 else names
    if len(set(styled)) < len(styled):
        styled = names
    options = list(styled)
    random.shuffle(options)
    question = {"type": "choice", "instructions": random.choice(asks), "criteria": dict.fromkeys(options)}
    return question, styled[0]


def noul(instructions: str, right: bool) -> Asked:
    """A yes/no question."""
    return {"type": "noul", "instructions": instructions}, right


def shown_of(right: str, others: Sequence[str], random: Random) -> tuple[str, bool]:
    """The right name or one of the others, half and half."""
    if not others or random.random() < 0.5:
        return right, True
    return random.choice(others), False


def quoted(name: str, random: Random) -> str:
    """The name, perhaps in quotation marks."""
    return f'"{name}"' if random.random() < 0.3 else name


def some(asked: list[Asked], random: Random) -> list[Asked]:
    """All of them, or one."""
    asked = [one for one in asked if one[0]["type"] != "choice" or len(one[0]["criteria"]) > 1]
    return asked if random.random() < 0.6 else asked[-1:] if random.random() < 0.4 else asked[:1]
