"""Made-up states of a wanted length, and questions about them."""

from __future__ import annotations

import random

from jev import Choice, Noul, Score
from jev.schemas import Question

# Each is one token with the space before it, and every text begins with the same word without one,
# so that all texts of n words are as many tokens: about n with the checkpoints' usual tokenizer.
_COMMON = """
the a this that my your our their we you they it is was are were has had can will would should not
and or but so because when after before with for from about into over under again still order card
account money payment bank customer service phone email team office company product price bill day
week month year morning night today time problem question answer message number name house car water
food school city country book game music film show work job way thing part new old good bad great
small large long short first last next open late early high low right wrong send sent call called
ask asked help need want wait paid pay buy bought sell change check found lost broken working closed
made make get got give gave take took see saw say said tell told
"""
_WORDS = _COMMON.split()


def state(words: int, seed: int | str) -> str:
    """A text of `words` words (at least one), decided by `seed`."""
    chosen = random.Random(f"state/{seed}").choices(_WORDS, k=max(0, words - 1))
    return " ".join(["the", *chosen])


_QUESTIONS: tuple[tuple[str, Question], ...] = (
    ("urgent", Noul("Does the writer need an answer today?")),
    ("team", Choice("Which team should take this?", ["billing", "technical support", "sales", "other"])),
    ("mood", Score("How angry is the writer?", ["calm", "annoyed", "angry", "furious"])),
    ("refund", Noul("Does the writer ask for money back?", true="wants a refund", false="anything else")),
    ("topic", Choice("What is it about?", ["payment", "delivery", "account", "product", "something else"])),
    ("effort", Score("How much work is it to solve?", ["minutes", "an hour", "a day", "a week"])),
    ("known", Noul("Has the writer asked about the same thing before?")),
    ("channel", Choice("How should we reply?", ["phone", "email", "not at all"])),
)


def questions(count: int, first: int = 0) -> dict[str, Question]:
    """`count` questions with ids of their own, starting at number `first` of eight that repeat."""
    chosen = ((number, _QUESTIONS[number % len(_QUESTIONS)]) for number in range(first, first + count))
    return {f"{name}-{number}": question for number, (name, question) in chosen}
