"""Training rows from labelled data sets: choice, noul and score views of the same labels."""

from __future__ import annotations

import gzip
import json
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import words

Asked = tuple[dict[str, Any], Any]
"""A question as on the wire, and its answer."""

INTENTS = ("banking77", "clinc150", "hwu64", "sgd_intents", "bitext_support")
SHIPPABLE = (
    *INTENTS,
    "goemotions",
    "hate_tdavidson",
    "surge_toxicity",
    "sms_spam",
    "bfcl_tool_choice",
    "codah",
    "boolq",
)

GROUPS: dict[str, dict[str, str]] = tomllib.loads((Path(__file__).parent / "groups.toml").read_text())
"""Of each set: a group's name and its labels; of hwu64 the beginning of a label and the group's name."""

MOST_OPTIONS = 77
"""Of a choice."""


def read(folder: Path, name: str) -> list[dict[str, Any]]:
    """The train rows of a set."""
    with gzip.open(folder / name / "train.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def inverse(groups: dict[str, str]) -> dict[str, str]:
    """Group by label."""
    return {label: group for group, labels in groups.items() for label in labels.split()}


def by_label(rows: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """The texts of each label."""
    found: dict[str, list[str]] = defaultdict(list)
    for text, label in rows:
        found[label].append(text)
    return found


class LabelSet:
    """Rows of one task with one label each.

    Args:
        rows: (text, label) pairs.
        instructions: wordings of the choice.
        noul: wordings of "is it {}".
        group: label -> a coarser label, for topic questions; None = there is none.
        article: what to call the thing in a pair question.
    """

    def __init__(
        self,
        rows: Iterable[tuple[str, str]],
        instructions: Sequence[str],
        noul: Sequence[str],
        group: Callable[[str], str | None] | None = None,
        *,
        pairs: bool = False,
    ) -> None:
        self.by_label = by_label((text[:700], label) for text, label in rows)
        self.labels = sorted(self.by_label)
        self.instructions, self.noul, self.group, self.pairs = instructions, noul, group, pairs
        self.near: dict[str, list[str]] = {}
        for label in self.labels:
            mine = set(words.plain(label).split())
            near = [
                other for other in self.labels if other != label and mine & set(words.plain(other).split())
            ]
            self.near[label] = near

    def draw(self, random: Random) -> tuple[Any, list[Asked]]:
        """A state and one to three questions about it."""
        label = random.choice(self.labels)
        text = random.choice(self.by_label[label])
        if self.pairs and random.random() < 0.06:
            return self._pair(label, text, random)
        if len(self.labels) > 8 and random.random() < 0.12:
            return self._like(label, text, random)
        asked = [self._question(label, text, random) for _ in range(random.choice((2, 3, 3, 4)))]
        return words.shaped(text, random), asked

    def many(self, random: Random) -> tuple[Any, list[Asked]]:
        """A state and one choice of many labels, up to all of them."""
        label = random.choice(self.labels)
        text = random.choice(self.by_label[label])
        most = min(len(self.labels), MOST_OPTIONS)
        count = most if random.random() < 0.3 else random.randrange(min(16, most), most + 1)
        near, asks = self.near[label], self.instructions
        question = self._choice(label, self.labels, near, self.by_label, random, asks, count)
        return (text if random.random() < 0.7 else words.shaped(text, random)), [question]

    def _like(self, label: str, text: str, random: Random) -> tuple[Any, list[Asked]]:
        """The label is shown by examples alone: as options, or as descriptions of names that say nothing."""
        count = random.choice((2, 3, 4, 5, 6, 8))
        pool = self.near[label] if len(self.near[label]) >= count and random.random() < 0.3 else self.labels
        others = random.sample([one for one in pool if one != label], min(count, len(pool) - 1))
        mine = [one for one in self.by_label[label] if one != text] or [text]
        pools = [mine, *(self.by_label[one] for one in others)]
        examples = [[random.choice(one)[:90] for _ in range(2)] for one in pools]
        right, wrong = examples[0], examples[1:]
        if random.random() < 0.45:
            options = [one[0] for one in (right, *wrong)]
            question = {"type": "choice", "instructions": random.choice(words.LIKE)}
            answer = right[0]
            described: dict[str, str | None] = dict.fromkeys(options)
        else:
            pattern = random.choice(["group {}", "Q{}", "queue {}", "team-{}", "class {}", "route_{}"])
            names = [pattern.format(number) for number in random.sample(range(1, 40), len(wrong) + 1)]
            form = random.choice(
                ["for example: {0}", "{0} / {1}", "messages like: {0}", "such as {0} or {1}"]
            )
            described = {name: form.format(*one) for name, one in zip(names, (right, *wrong), strict=True)}
            question = {"type": "choice", "instructions": random.choice([*self.instructions, *words.LIKE])}
            answer = names[0]
        keys = list(described)
        random.shuffle(keys)
        question["criteria"] = {key: described[key] for key in keys}
        return words.shaped(text, random), [(question, answer)]

    def _pair(self, label: str, text: str, random: Random) -> tuple[Any, list[Asked]]:
        same = random.random() < 0.5
        other = label if same else random.choice(self.near[label] or self.labels)
        second = random.choice(self.by_label[other])
        same = other == label
        keys = random.choice(
            [("first", "second"), ("a", "b"), ("message", "earlier_message"), ("text1", "text2")]
        )
        asking = random.choice(words.SAME)
        question: Asked = ({"type": "noul", "instructions": asking}, same)
        if random.random() < 0.3:
            names = random.choice(
                [["same", "different"], ["same intent", "another intent"], ["duplicate", "no duplicate"]]
            )
            question = (
                {
                    "type": "choice",
                    "instructions": asking,
                    "criteria": dict.fromkeys(random.sample(names, 2)),
                },
                names[0 if same else 1],
            )
        return dict(zip(keys, (text, second), strict=True)), [question]

    def _question(self, label: str, text: str, random: Random) -> Asked:
        kind = random.random()
        if self.group is not None and kind < 0.2 and (group := self.group(label)) is not None:
            groups = sorted({found for one in self.labels if (found := self.group(one)) is not None})
            if random.random() < 0.3:
                return self._noul(group, groups, [], random, words.IS)
            return self._choice(group, groups, [], None, random, words.TOPIC)
        if kind < 0.45:
            return self._noul(label, self.labels, self.near[label], random, self.noul)
        return self._choice(label, self.labels, self.near[label], self.by_label, random, self.instructions)

    def _noul(
        self, label: str, labels: list[str], near: list[str], random: Random, asks: Sequence[str]
    ) -> Asked:
        right = random.random() < 0.5
        shown = label
        if not right:
            pool = near if near and random.random() < 0.4 else labels
            shown = random.choice([one for one in pool if one != label])
        name = words.named(shown, random)
        if random.random() < 0.25:
            name = words.styled([name], random)[0]
        question: dict[str, Any] = {"type": "noul", "instructions": random.choice(asks).format(name)}
        form = random.random()
        if form < 0.1:
            question["criteria"] = {"true": f"it is {name}", "false": f"it is not {name}"}
        elif form < 0.15:
            question["criteria"] = {
                "true": name,
                "false": random.choice(["anything else", "something else", "not that"]),
            }
        elif form < 0.2:
            question = {"type": "noul", "criteria": {"true": name}}
        return question, right

    def _choice(
        self,
        label: str,
        labels: list[str],
        near: list[str],
        examples: dict[str, list[str]] | None,
        random: Random,
        asks: Sequence[str],
        count: int | None = None,
    ) -> Asked:
        if count is None:
            size = random.random()
            count = (
                random.randrange(2, 7)
                if size < 0.75
                else random.randrange(7, 12)
                if size < 0.96
                else random.randrange(12, 28)
            )
        others = [one for one in labels if one != label]
        hard = (
            random.sample(near, min(len(near), random.randrange(0, 1 + max(1, count // 2)))) if near else []
        )
        easy = [one for one in random.sample(others, min(len(others), count - 1)) if one not in hard]
        shown = [label, *(hard + easy)[: count - 1]]
        by_name = {words.named(one, random): one for one in reversed(shown)}  # the right one wins a tie
        absent = random.random()
        none = random.choice(words.NONE)
        if absent < 0.07 and len(by_name) > 2 and none not in by_name:
            by_name = {name: one for name, one in by_name.items() if one != label}
            right = none
            names = [*by_name, none]
        else:
            right = next(name for name, one in by_name.items() if one == label)
            names = list(by_name)
            if absent < 0.16 and none not in by_name:
                names.append(none)
        pairs = list(zip(words.styled(names, random), names, strict=True))
        if len({styled for styled, _ in pairs}) < len(pairs):
            pairs = list(zip(names, names, strict=True))
        random.shuffle(pairs)
        described: dict[str, str | None] = {}
        how = random.random()
        for styled, name in pairs:
            described[styled] = None
            if examples is not None and how < 0.12 and name in by_name and count < 28:
                described[styled] = f"for example: {random.choice(examples[by_name[name]])[:60]}"
            elif how > 0.94 and name in by_name:
                described[styled] = random.choice(["the text is about {}", "use this for {}", "{}"]).format(
                    name
                )
        answer = next(styled for styled, name in pairs if name == right)
        question: dict[str, Any] = {
            "type": "choice",
            "instructions": random.choice(asks),
            "criteria": described,
        }
        if random.random() < 0.03:
            del question["instructions"]
        return question, answer


class Feelings:
    """Sentiment and five-step scores from the emotion of a comment."""

    def __init__(self, rows: Iterable[tuple[str, str]]) -> None:
        level = inverse(GROUPS["feelings"])
        self.by_level: dict[int, list[str]] = defaultdict(list)
        for text, label in rows:
            if label in level:
                self.by_level[list(GROUPS["feelings"]).index(level[label])].append(text[:500])

    def draw(self, random: Random) -> tuple[Any, list[Asked]]:
        """A comment with one or two questions about how positive it is."""
        level = random.choice((0, 1, 1, 2, 3, 3, 4))
        text = random.choice(self.by_level[level])
        return words.shaped(text, random), [sentiment(level, random) for _ in range(random.choice((2, 3)))]


def sentiment(
    level: int, random: Random, names_of: Sequence[tuple[str, str, str]] = words.SENTIMENT_NAMES
) -> Asked:
    """A question about sentiment; `level` is 0 (very negative) to 4, `names_of` are its sides."""
    names = random.choice(names_of)
    side = 0 if level < 2 else 1 if level == 2 else 2
    form = random.random()
    if form < 0.4:
        kept = [0, 2] if side != 1 and random.random() < 0.6 else [0, 1, 2]
        random.shuffle(kept)
        options = words.styled([names[index] for index in kept], random)
        return (
            {
                "type": "choice",
                "instructions": random.choice(words.SENTIMENT),
                "criteria": dict.fromkeys(options),
            },
            options[kept.index(side)],
        )
    if form < 0.75:
        shown = side if random.random() < 0.5 else random.choice([one for one in (0, 2) if one != side])
        return (
            {"type": "noul", "instructions": random.choice(words.IS_SENTIMENT).format(names[shown])},
            shown == side,
        )
    if form < 0.85:
        return {"type": "score", "instructions": random.choice(words.HOW_GOOD), "criteria": list(names)}, side
    return {
        "type": "score",
        "instructions": random.choice(words.HOW_GOOD),
        "criteria": random.choice(words.FIVE_LEVELS),
    }, level
