"""Pairs of sentences: whether the second follows, is contradicted or open, and whether both mean the same."""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random
from typing import Any

import words
from edits import Edits, negated, recast, renumbered
from label_sets import Asked
from wordnet import noul

FOLLOWS, OPEN, CONTRADICTS = range(3)

TRIES = 1000
"""Sentences that are tried before it is taken for granted that none can be changed."""

NAMES = [
    ("entailment", "neutral", "contradiction"),
    ("follows", "may or may not be", "contradicts"),
    ("true", "unknown", "false"),
    ("it follows", "not enough information", "it is the opposite"),
    ("supported", "not mentioned", "refuted"),
    ("implied", "unrelated or open", "impossible"),
    ("yes", "maybe", "no"),
]
TWO = [
    ("entailment", "not entailment"),
    ("follows", "does not follow"),
    ("entailed", "not entailed"),
    ("supported", "not supported"),
    ("implied", "not implied"),
    ("can be concluded", "cannot be concluded"),
]
RELATE = [
    "How does the {b} relate to the {a}?",
    "What is the relation of the two?",
    "Given the {a}, what is the {b}?",
    "Classify the pair.",
    "Does the {b} follow from the {a}?",
    "Judge the {b} by the {a}.",
]
IS_IMPLIED = [
    "Does the {b} follow from the {a}?",
    "Is the {b} true if the {a} is?",
    "Does the {a} imply the {b}?",
    "Can the {b} be concluded from the {a}?",
    "Is the second entailed by the first?",
    "Does the {a} support the {b}?",
]
IS_DENIED = [
    "Do the two contradict each other?",
    "Is the {b} false if the {a} is true?",
    "Does the {a} deny the {b}?",
]
SAME_NAMES = [
    ("same meaning", "different meaning"),
    ("paraphrase", "not a paraphrase"),
    ("equivalent", "not equivalent"),
    ("same", "different"),
    ("they say the same", "they say different things"),
    ("duplicate", "no duplicate"),
]
SAME = [
    "Do the two sentences mean the same?",
    "Is the second a paraphrase of the first?",
    "Are the two equivalent?",
    "Do both say the same thing?",
    "Is it the same statement in other words?",
]
KEYS = [
    ("premise", "hypothesis"),
    ("text", "claim"),
    ("first", "second"),
    ("sentence1", "sentence2"),
    ("source", "statement"),
    ("A", "B"),
    ("passage", "conclusion"),
]

# A scene is someone, doing something, somewhere; the second name of each is what the first is a kind of.
WHO = [
    ("man", "person"), ("woman", "person"), ("boy", "child"), ("girl", "child"), ("dog", "animal"),
    ("cat", "animal"), ("chef", "person"), ("player", "person"), ("lady", "woman"), ("kid", "child"),
    ("worker", "person"), ("puppy", "dog"), ("musician", "person"), ("baby", "child"),
]  # fmt: skip
DOING = [
    ("playing", "guitar", "instrument"), ("playing", "flute", "instrument"),
    ("slicing", "onion", "vegetable"), ("peeling", "potato", "vegetable"),
    ("riding", "horse", "animal"), ("riding", "bicycle", "bike"), ("cutting", "apple", "fruit"),
    ("holding", "ball", "toy"), ("chasing", "ball", "object"), ("watching", "bird", "animal"),
    ("carrying", "box", "container"), ("driving", "car", "vehicle"), ("reading", "newspaper", "paper"),
    ("cooking", "meal", "food"), ("eating", "banana", "fruit"), ("throwing", "frisbee", "toy"),
    ("painting", "wall", "surface"), ("pushing", "cart", "vehicle"),
    ("cleaning", "table", "piece of furniture"), ("drinking from", "cup", "container"),
]  # fmt: skip
WHERE = [
    "in the park", "on the beach", "in a kitchen", "near a lake", "on the street", "at home",
    "in the snow", "in front of a house", "on a stage", "in a field", "next to a river", "by the sea",
]  # fmt: skip
HOW = ["slowly", "quickly", "happily", "carefully", "loudly", "quietly"]
LOOKS = ["young", "old", "tall", "smiling", "tired", "little", "black", "brown", "famous"]
PASSIVE = {
    "playing": "played", "slicing": "sliced", "peeling": "peeled", "riding": "ridden", "cutting": "cut",
    "holding": "held", "chasing": "chased", "watching": "watched", "carrying": "carried",
    "driving": "driven", "reading": "read", "cooking": "cooked", "eating": "eaten", "throwing": "thrown",
    "painting": "painted", "pushing": "pushed", "cleaning": "cleaned",
}  # fmt: skip


def _a(name: str) -> str:
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def scene(relation: int, random: Random) -> tuple[str, str]:
    """Two descriptions of what someone does, the second with the relation to the first."""
    (who, wide), (verb, what, kind) = random.choice(WHO), random.choice(DOING)
    where, how, look = random.choice(WHERE), random.choice(HOW), random.choice(LOOKS)
    plain = f"{_a(who)} is {verb} {_a(what)}"
    full = random.choice(
        [
            f"{plain} {where}",
            f"{_a(look + ' ' + who)} is {verb} {_a(what)}",
            f"{plain} {how}",
            f"{plain} {where} {how}",
        ]
    )
    if relation == FOLLOWS:
        options = [
            (full, plain),
            (full, f"{_a(wide)} is {verb} {_a(what)}"),
            (full, f"{_a(who)} is {verb} {_a(kind)}"),
            (full, f"there is {_a(who)}"),
            (plain, f"the {who} is {verb} the {what}"),
            (plain, f"somebody is {verb} something"),
        ]
        if verb in PASSIVE:
            options += [
                (random.choice([plain, full]), f"{_a(what)} is being {PASSIVE[verb]} by {_a(who)}")
            ] * 2
    elif relation == CONTRADICTS:
        options = [
            (full, f"{_a(who)} is not {verb} {_a(what)}"),
            (plain, f"there is no {who} {verb} {_a(what)}"),
            (full, f"nobody is {verb} {_a(what)}"),
            (f"there is no {who} {verb} {_a(what)}", plain),
            (f"the {who} is not {verb} {_a(kind)}", f"the {who} is {verb} {_a(what)}"),
        ]
        if verb in PASSIVE:
            options.append((plain, f"{_a(what)} is not being {PASSIVE[verb]} by {_a(who)}"))
    else:
        other_who = random.choice([one for one, _ in WHO if one not in (who, wide)])
        other = random.choice([one for one in DOING if one[1] != what])
        options = [
            (plain, full),
            (full, f"{_a(who)} is {other[0]} {_a(other[1])} {where}"),
            (full, f"{_a(other_who)} is {verb} {_a(what)}"),
            (f"{_a(wide)} is {verb} {_a(what)}", plain),
            (f"{_a(who)} is {verb} {_a(kind)}", plain),
            (full, f"{_a(who)} is {verb} {_a(what)} for {_a(other_who)}"),
            (plain, f"{_a(other_who)} is {other[0]} {_a(other[1])}"),
        ]
    first, second = random.choice(options)
    return first[0].upper() + first[1:], second[0].upper() + second[1:]


class Pairs:
    """Draws pairs; see the module.

    Args:
        edits: how sentences are changed.
        lone: sentences of all kinds.
        passages: the sentences of longer texts.
    """

    def __init__(self, edits: Edits, lone: Sequence[str], passages: Sequence[list[str]]) -> None:
        self.edits, self.lone = edits, lone
        self.passages = [one for one in passages if len(one) > 1]

    def draw(self, random: Random) -> tuple[Any, list[Asked]]:
        """A pair with one to three questions."""
        return self._paraphrase(random) if random.random() < 0.35 else self._inference(random)

    def _inference(self, random: Random) -> tuple[Any, list[Asked]]:
        relation = random.choice((FOLLOWS, FOLLOWS, OPEN, CONTRADICTS))
        first, second = scene(relation, random) if random.random() < 0.35 else self._related(relation, random)
        a, b = random.choice(KEYS)
        asked: list[Asked] = []
        for _ in range(random.choice((1, 2, 3))):
            form = random.random()
            if form < 0.35:
                names, asks = random.choice(NAMES), random.choice(RELATE)
                asked.append(_choice(list(names), names[relation], asks.format(a=a, b=b), random))
            elif form < 0.6:
                names, asks = random.choice(TWO), random.choice(RELATE + IS_IMPLIED)
                asked.append(_choice(list(names), names[relation != FOLLOWS], asks.format(a=a, b=b), random))
            elif form < 0.8 or relation == OPEN:
                asks = random.choice(IS_IMPLIED).format(a=a, b=b)
                asked.append(noul(asks, relation == FOLLOWS))
            elif form < 0.9:
                asks = random.choice(IS_DENIED).format(a=a, b=b)
                asked.append(noul(asks, relation == CONTRADICTS))
            else:
                names = random.choice(NAMES)
                shown = random.randrange(3)
                asks = random.choice(words.IS).format(names[shown])
                asked.append(noul(asks, shown == relation))
        return _pair(first, second, a, b, random), asked

    def _paraphrase(self, random: Random) -> tuple[Any, list[Asked]]:
        same = random.random() < 0.5
        first, second = self._alike(random) if same else self._unlike(random)
        if random.random() < 0.5:
            first, second = second, first
        a, b = random.choice(KEYS[2:5])
        asked: list[Asked] = []
        for _ in range(random.choice((1, 2))):
            if random.random() < 0.5:
                names = random.choice(SAME_NAMES)
                asked.append(_choice(list(names), names[not same], random.choice(SAME), random))
            else:
                asked.append(noul(random.choice(SAME), same))
        return _pair(first, second, a, b, random), asked

    def _sentence(self, random: Random) -> str:
        return (
            random.choice(self.lone) if random.random() < 0.6 else random.choice(random.choice(self.passages))
        )

    def _changed(self, ways: Sequence[Any], random: Random) -> tuple[str, str]:
        """A sentence and what one of `ways` makes of it."""
        for _ in range(TRIES):
            sentence = self._sentence(random)
            found = random.choice(ways)(sentence, random)
            if found is not None and found != sentence:
                return sentence, found
        raise ValueError("no sentence can be changed; are there words of the sentences in WordNet?")

    def _related(self, relation: int, random: Random) -> tuple[str, str]:
        edits = self.edits
        if relation == FOLLOWS:
            if random.random() < 0.3:
                passage = random.choice(self.passages)
                start = random.randrange(len(passage))
                part = passage[start : start + random.choice((2, 3))]
                said = random.choice(part)
                return " ".join(part), (
                    edits.shortened(said, random) or said
                ) if random.random() < 0.5 else said
            return self._changed(
                [edits.widened, edits.shortened, edits.renamed, edits.shortened, recast], random
            )
        if relation == CONTRADICTS:
            if random.random() < 0.2:
                passage = random.choice(self.passages)
                said = next((found for one in passage if (found := negated(one, random))), None)
                if said is not None:
                    return " ".join(passage[:3]), said
            return self._changed([negated, negated, edits.opposed, renumbered], random)
        if random.random() < 0.45:
            first, second = self._changed([edits.shortened, edits.widened], random)
            return second, first
        if random.random() < 0.4:
            return self._sentence(random), self._sentence(random)
        passage = random.choice(self.passages)
        first, second = random.sample(passage, 2)
        return first, second

    def _alike(self, random: Random) -> tuple[str, str]:
        if random.random() < 0.2:
            first, second = scene(FOLLOWS, random)
            if "being" in second and not re.search(r"(ly|in|on|by|at|near)\b", first):
                return first, second
        first, second = self._changed([self.edits.renamed, self.edits.renamed, recast], random)
        again = random.choice([self.edits.renamed, recast])(second, random)
        return first, again if again is not None and random.random() < 0.5 else second

    def _unlike(self, random: Random) -> tuple[str, str]:
        form = random.random()
        if form < 0.25:
            passage = random.choice(self.passages)
            first, second = random.sample(passage, 2)
            return first, second
        if form < 0.4:
            return scene(OPEN, random)
        return self._changed(
            [self.edits.moved, self.edits.moved, self.edits.opposed, negated, renumbered], random
        )


def _pair(first: str, second: str, a: str, b: str, random: Random) -> Any:
    """Both as a state."""
    form = random.random()
    if form < 0.55:
        return {a: first, b: second}
    if form < 0.9:
        return f"{a[0].upper()}{a[1:]}: {first}\n{b[0].upper()}{b[1:]}: {second}"
    return [first, second]


def _choice(names: list[str], right: str, asks: str, random: Random) -> Asked:
    index = names.index(right)
    styled = words.styled(names, random)
    options = list(styled)
    random.shuffle(options)
    return {"type": "choice", "instructions": asks, "criteria": dict.fromkeys(options)}, styled[index]
