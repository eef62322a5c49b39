"""Training rows from sets of other forms: own options, passages, pairs, several labels."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import words
from label_sets import Asked, by_label


class Options:
    """Rows that bring their own options: tools for a request, endings for a sentence."""

    def __init__(self, rows: list[dict[str, Any]], instructions: Sequence[str]) -> None:
        self.rows, self.instructions = rows, instructions

    def draw(self, random: Random) -> tuple[Any, list[Asked]]:
        """A state and the choice among its options."""
        row = random.choice(self.rows)
        options: list[str] = list(dict.fromkeys(option[:110] for option in row["options"]))
        answer = row["label"][:110]
        if len(options) < 4 and "tool" in answer and random.random() < 0.7:
            more = [option[:110] for option in random.choice(self.rows)["options"] if option not in options]
            options += more[: random.randrange(4)]
        random.shuffle(options)
        criteria: dict[str, str | None] = dict.fromkeys(options)
        split = all(": " in option for option in options if not option.startswith("no "))
        if split and random.random() < 0.5:
            pairs = [option.partition(": ")[::2] for option in options]
            if len({name for name, _ in pairs}) == len(pairs):
                criteria = {name: text or None for name, text in pairs}
                answer = answer.partition(": ")[0]
        question = {"type": "choice", "instructions": random.choice(self.instructions), "criteria": criteria}
        asked: list[Asked] = [(question, answer)]
        if random.random() < 0.4:
            shown = random.choice(list(criteria))
            fits = f"Is this the right one: {shown}?"
            asked.append(({"type": "noul", "instructions": fits}, shown == answer))
        return row["text"], asked


class Passages:
    """Yes/no questions about a passage."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = [row for row in rows if len(row["text"]["passage"]) < 900]

    def draw(self, random: Random) -> tuple[Any, list[Asked]]:
        """The passage with the question as the instructions or inside the state."""
        row = random.choice(self.rows)
        text, right = row["text"], row["label"] == "yes"
        if random.random() < 0.6:
            return text["passage"], [({"type": "noul", "instructions": text["question"]}, right)]
        asking = random.choice(
            [
                "Answer the question from the passage.",
                "Is the answer yes?",
                "According to the passage, is it so?",
            ]
        )
        return text, [({"type": "noul", "instructions": asking}, right)]


class Entailment:
    """Pairs of sentences, of which the second follows from the first or does not."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows

    def draw(self, random: Random) -> tuple[Any, list[Asked]]:
        """The pair as an object or as one text."""
        row = random.choice(self.rows)
        first, second, follows = (
            row["text"]["premise"],
            row["text"]["hypothesis"],
            row["label"] == "entailment",
        )
        if random.random() < 0.1:
            first, follows = second, True
        keys = random.choice(
            [("premise", "hypothesis"), ("text", "claim"), ("first", "second"), ("s1", "s2")]
        )
        if random.random() < 0.3:
            return first, [({"type": "noul", "instructions": f"Does it follow that: {second}"}, follows)]
        state = {keys[0]: first, keys[1]: second}
        if random.random() < 0.5:
            asking = f"Does the {keys[1]} follow from the {keys[0]}?"
            return state, [({"type": "noul", "instructions": asking}, follows)]
        names = random.choice(
            [("entailment", "neutral"), ("entailment", "not entailment"), ("follows", "unknown")]
        )
        options = random.sample(names, 2)
        asking = random.choice(["How do the two relate?", f"What is the {keys[1]} to the {keys[0]}?"])
        question = {"type": "choice", "instructions": asking, "criteria": dict.fromkeys(options)}
        return state, [(question, names[0] if follows else names[1])]


class Harms:
    """Which categories of harm a text falls under, of those that were judged."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = [row for row in rows if row["judged"] and len(row["text"]) < 600]
        self.bad = [row for row in self.rows if row["labels"]]

    def draw(self, random: Random) -> tuple[Any, list[Asked]]:
        """A text with one to three yes/no questions."""
        row = random.choice(self.bad if random.random() < 0.65 else self.rows)
        judged = random.sample(row["judged"], min(len(row["judged"]), random.choice((1, 2, 3))))
        if row["labels"] and not set(judged) & set(row["labels"]):
            judged[0] = random.choice(row["labels"])
        asks = [
            "Does the text contain {}?",
            "Is it {}?",
            "Should it be flagged for {}?",
            "Would you flag this as {}?",
        ]
        asked: list[Asked] = []
        for one in judged:
            name = one.replace("/", " or ").replace("minors", "content about minors")
            asked.append(
                ({"type": "noul", "instructions": random.choice(asks).format(name)}, one in row["labels"])
            )
        if random.random() < 0.3:
            asked.append(({"type": "noul", "instructions": "Is the text harmless?"}, not row["labels"]))
        return words.shaped(row["text"], random), asked


class Abuse:
    """Whether a comment offends, insults a group, or is fine.

    Args:
        graded: text and "hate speech", "offensive language" or "neither".
        toxic: text and "toxic" or "not toxic".
        clean: comments that do none of it.
    """

    OFFENDS = (
        ["Is the comment offensive?", "Is the language rude or insulting?", "Does the post offend?",
         "Would you hide this from a family page?", "Is it offensive?"],
        [("offensive", "not offensive"), ("rude", "fine"), ("offensive", "acceptable"), ("insulting", "ok")],
        ["Is the text offensive?", "Judge the language.", "Moderate the comment."],
    )  # fmt: skip
    HATES = (
        ["Is this hate speech?", "Is the post hateful?", "Does it attack a group of people?",
         "Does the text express hatred?"],
        [("hateful", "not hateful"), ("hate speech", "no hate speech"), ("hate", "other")],
        ["Is the text hateful?", "Does the post attack people for what they are?", "Check for hate."],
    )  # fmt: skip
    TOXIC = (
        ["Is the comment toxic?", "Is this abusive?", "Should it be removed?"],
        [("toxic", "not toxic"), ("abusive", "ok"), ("remove", "keep")],
        ["Is it toxic?", "What should a moderator do?", "Judge the comment."],
    )

    def __init__(
        self, graded: Sequence[tuple[str, str]], toxic: Sequence[tuple[str, str]], clean: Sequence[str]
    ) -> None:
        self.graded, self.toxic = by_label(graded), by_label(toxic)
        self.clean = clean

    def draw(self, random: Random) -> tuple[Any, list[Asked]]:
        """A comment with one or two questions."""
        form = random.random()
        if form < 0.25:
            label = random.choice(list(self.toxic))
            text, known = random.choice(self.toxic[label]), [(self.TOXIC, label == "toxic")]
            if label == "not toxic":
                known += [(self.OFFENDS, False), (self.HATES, False)]
        elif form < 0.4:
            text = random.choice(self.clean)
            known = [(self.OFFENDS, False), (self.HATES, False), (self.TOXIC, False)]
        else:
            label = random.choice(list(self.graded))
            text = random.choice(self.graded[label])
            known = [(self.HATES, label == "hate speech"), (self.OFFENDS, label != "neither")]
        asked = [
            self._asked(*one, random) for one in random.sample(known, min(len(known), random.choice((1, 2))))
        ]
        return words.shaped(text, random), asked

    def _asked(
        self, wording: tuple[list[str], list[tuple[str, str]], list[str]], right: bool, random: Random
    ) -> Asked:
        nouls, names, asks = wording
        if random.random() < 0.5:
            return {"type": "noul", "instructions": random.choice(nouls)}, right
        yes, no = random.choice(names)
        options = random.sample(words.styled([yes, no], random), 2)
        answer = next(one for one in options if words.plain(one) == (yes if right else no))
        asking = random.choice(asks)
        return {"type": "choice", "instructions": asking, "criteria": dict.fromkeys(options)}, answer


class Sarcasm:
    """Which of two statements is meant otherwise than said, and whether one is."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows

    def draw(self, random: Random) -> tuple[Any, list[Asked]]:
        """One statement, or two as an object."""
        row = random.choice(self.rows)
        if random.random() < 0.6:
            shown = random.choice(row["options"])
            asks = [
                "Is this sarcastic?",
                "Is it ironic?",
                "Does the writer mean the opposite?",
                "Irony?",
            ]
            return words.shaped(shown[:500], random), [
                ({"type": "noul", "instructions": random.choice(asks)}, shown == row["label"])
            ]
        keys = random.choice([("a", "b"), ("first", "second"), ("one", "two")])
        options = random.sample(keys, 2)
        asking = random.choice(["Which statement is sarcastic?", "Which one is ironic?"])
        question = {"type": "choice", "instructions": asking, "criteria": dict.fromkeys(options)}
        state = dict(zip(keys, row["options"], strict=True))
        return state, [(question, keys[row["options"].index(row["label"])])]
