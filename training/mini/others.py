"""Training rows from sets of other forms: own options, passages, pairs, several labels."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import words
from label_sets import Asked


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
