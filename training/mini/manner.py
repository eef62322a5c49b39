"""How a text says something: fact or opinion, for or against something, in good grammar or not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import words
from edits import broken
from label_sets import Asked
from wordnet import noul

FACT_NAMES = [
    ("objective", "subjective"),
    ("fact", "opinion"),
    ("statement of facts", "personal view"),
    ("description", "judgement"),
    ("report", "comment"),
    ("plot or facts", "review or opinion"),
    ("neutral description", "expression of taste"),
]
FACT = [
    "Is it a fact or an opinion?",
    "Is the text subjective or objective?",
    "What kind of statement is it?",
    "Does it describe or does it judge?",
    "Classify the sentence by its manner.",
]
IS_FACT = ["Is this a statement of facts?", "Is the text objective?", "Does it merely describe?"]
IS_OPINION = [
    "Is this an opinion?",
    "Is the text subjective?",
    "Does the writer judge something?",
    "Is it a personal view?",
]
GOOD_NAMES = [
    ("acceptable", "unacceptable"),
    ("grammatical", "ungrammatical"),
    ("correct", "incorrect"),
    ("well formed", "not well formed"),
    ("good English", "bad English"),
]
GOOD = [
    "Is the sentence correct?",
    "Judge the grammar.",
    "Is it good English?",
    "Would it be accepted by a native speaker?",
]
STANCE_NAMES = [
    ("favor", "against", "none"),
    ("for", "against", "neutral"),
    ("supports it", "opposes it", "takes no side"),
    ("in favour", "opposed", "no stance"),
    ("agrees", "disagrees", "neither"),
    ("pro", "contra", "unrelated"),
]
STANCE = [
    "What is the stance towards {t}?",
    "Is the author for or against {t}?",
    "What does the writer think of {t}?",
    "How does the text relate to {t}?",
]
TARGETS = [
    "nuclear power", "free public transport", "the new mayor", "school uniforms", "the trade agreement",
    "remote work", "the death penalty", "electric cars", "a ban on fireworks", "vaccination",
    "the tax reform", "animal testing", "the prime minister", "a four-day week",
    "the airport expansion", "gun control", "organic farming", "the strike", "home schooling",
    "a higher minimum wage", "the football club's owner", "a car-free city", "genetic engineering",
    "the pension reform", "wind farms", "religious schools", "space exploration", "open borders",
    "the monarchy", "equal pay",
]  # fmt: skip
PRO = [
    "{t} is the best thing that could happen to us", "We need {t}, now more than ever!",
    "I fully support {t}.", "so proud to see people standing up for {t}", "Thank goodness for {t}",
    "Anyone with a heart is for {t}", "{t}: it works, and the numbers prove it",
    "Nobody has ever given me a good reason against {t}", "Those who fight {t} are living in the past",
    "Finally somebody who says yes to {t} #progress", "I was against {t} once. I was wrong.",
    "It is time for {t}", "Count me in for {t}",
]  # fmt: skip
CONTRA = [
    "{t} is a disaster", "We do not need {t}", "Stop {t} before it is too late!",
    "{t} will ruin this country", "I can't believe anyone still defends {t}", "No to {t}",
    "{t} has cost us enough already", "Say what you want, {t} is a lie and a waste of money",
    "Who in their right mind would want {t}?", "I used to be for {t}, until I saw what it does",
    "They sell us {t} as progress. It is a step back.", "My family suffers because of {t}",
    "Fight {t} with all we have #enough",
]  # fmt: skip


class Manner:
    """Draws rows; see the module.

    Args:
        facts: sentences that state something.
        opinions: sentences that judge something, and a maker of more.
        remark: makes an opinion.
    """

    def __init__(
        self, facts: Sequence[str], opinions: Sequence[str], remark: Callable[[Random], str]
    ) -> None:
        self.facts, self.opinions, self.remark = facts, opinions, remark

    def draw(self, random: Random) -> tuple[Any, list[Asked]]:
        """A text with one or two questions."""
        form = random.random()
        return (
            self._fact(random)
            if form < 0.4
            else self._stance(random)
            if form < 0.7
            else self._grammar(random)
        )

    def _opinion(self, random: Random) -> str:
        return self.remark(random) if random.random() < 0.4 else random.choice(self.opinions)

    def _fact(self, random: Random) -> tuple[Any, list[Asked]]:
        fact = random.random() < 0.5
        text = random.choice(self.facts) if fact else self._opinion(random)
        if random.random() < 0.4:
            text = text.lower().replace(".", " .").replace(",", " ,")
        names = random.choice(FACT_NAMES)
        asked = [_of_two(names, names[not fact], random.choice(FACT), random)]
        if random.random() < 0.5:
            asks = random.choice(IS_FACT), fact
            if random.random() < 0.5:
                asks = random.choice(IS_OPINION), not fact
            asked = [*asked, noul(*asks)] if random.random() < 0.4 else [noul(*asks)]
        return words.shaped(text, random), asked

    def _grammar(self, random: Random) -> tuple[Any, list[Asked]]:
        good = random.random() < 0.5
        text = random.choice(self.facts)
        if not good:
            text = broken(text, random) or broken(random.choice(self.facts), random) or "It are broken."
        names = random.choice(GOOD_NAMES)
        asked = _of_two(names, names[not good], random.choice(GOOD), random)
        if random.random() < 0.5:
            asked = noul(random.choice(GOOD[:1] + GOOD[2:]), good)
        return text, [asked]

    def _stance(self, random: Random) -> tuple[Any, list[Asked]]:
        target, side = random.choice(TARGETS), random.randrange(3)
        if side == 2:
            other = random.choice([one for one in TARGETS if one != target])
            text = (
                random.choice(PRO + CONTRA).format(t=other)
                if random.random() < 0.4
                else self._opinion(random)
            )
        else:
            text = random.choice((PRO, CONTRA)[side]).format(t=target)
            if random.random() < 0.3:
                text += " " + random.choice(self.opinions if random.random() < 0.3 else self.facts)
        names = random.choice(STANCE_NAMES)
        state = random.choice(
            [
                {"text": text, "target": target},
                {"tweet": text, "topic": target},
                f"Tweet: {text}\nTarget: {target}",
                text,
            ]
        )
        shown = (
            target
            if isinstance(state, str) and "Target" not in state
            else random.choice([target, "the target"])
        )
        if isinstance(state, dict) and "topic" in state and shown == "the target":
            shown = "the topic"
        if random.random() < 0.6:
            order = list(names)
            asks = random.choice(STANCE).format(t=shown)
            if side != 2 and random.random() < 0.3:
                order.pop()
            options = words.styled(order, random)
            mixed = random.sample(options, len(options))
            return state, [
                ({"type": "choice", "instructions": asks, "criteria": dict.fromkeys(mixed)}, options[side])
            ]
        one = random.randrange(3) if random.random() < 0.5 else side
        asks = [
            "Is the text in favour of {t}?",
            "Is the text against {t}?",
            "Does the text take no side on {t}?",
        ][one]
        return state, [noul(asks.format(t=shown), one == side)]


def _of_two(names: tuple[str, str], right: str, asks: str, random: Random) -> Asked:
    styled = words.styled(list(names), random)
    mixed = random.sample(styled, 2)
    return {"type": "choice", "instructions": asks, "criteria": dict.fromkeys(mixed)}, styled[
        names.index(right)
    ]
