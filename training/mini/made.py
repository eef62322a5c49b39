"""Made-up training rows: fields of records, words in texts, kinds of things, urgency, opinions, topics."""

from __future__ import annotations

import re
from random import Random
from typing import Any

import words
from label_sets import Asked, sentiment
from lexicon import FACTS, KINDS, OPINIONS, URGENCY

_VALUES: dict[str, list[Any]] = {
    "country": ["DE", "FR", "US", "GB", "JP", "BR", "IN"],
    "status": ["open", "closed", "pending", "shipped", "cancelled", "paid"],
    "plan": ["free", "basic", "pro", "enterprise"],
    "color": ["red", "blue", "green", "black", "white"],
    "size": ["small", "medium", "large"],
    "department": ["sales", "billing", "support", "legal", "shipping"],
    "payment_method": ["card", "cash", "invoice", "transfer"],
    "device": ["phone", "laptop", "tablet", "printer"],
    "city": ["Berlin", "Paris", "Tokyo", "Boston", "Madrid"],
    "severity": ["info", "warning", "error", "critical"],
    "language": ["English", "German", "French", "Spanish"],
    "weekday": ["Monday", "Tuesday", "Friday", "Sunday"],
}
_FLAGS = ["paid", "verified", "active", "archived", "refunded", "vip", "deleted", "encrypted", "overdue"]
_COUNTS = ["amount", "items", "attempts", "age", "latency_ms", "employees", "stock", "errors", "temperature"]
_BACKGROUND = [text for texts in FACTS.values() for text in texts]


def record(random: Random) -> tuple[Any, list[Asked]]:
    """A flat record with questions about its fields."""
    names = random.sample(list(_VALUES), random.randrange(2, 5))
    state: dict[str, Any] = {name: random.choice(_VALUES[name]) for name in names}
    flags = random.sample(_FLAGS, random.randrange(0, 3))
    state.update({flag: random.random() < 0.5 for flag in flags})
    counts = random.sample(_COUNTS, random.randrange(0, 3))
    state.update({count: random.choice([0, 1, 2, 3, 5, 12, 40, 75, 120, 250, 999, 4000]) for count in counts})
    items = list(state.items())
    random.shuffle(items)
    state = dict(items)
    asked: list[Asked] = []
    for _ in range(random.choice((1, 2, 3))):
        name = random.choice(list(state))
        words_of = name.replace("_", " ")
        if name in counts:
            limit = random.choice([1, 4, 10, 50, 100, 500, 1000])
            asked.append(
                (
                    {
                        "type": "noul",
                        "instructions": random.choice(
                            [f"Is {words_of} over {limit}?", f"Is the {words_of} more than {limit}?"]
                        ),
                    },
                    state[name] > limit,
                )
            )
        elif name in flags:
            asked.append(
                (
                    {
                        "type": "noul",
                        "instructions": random.choice(
                            [f"Is it {words_of}?", f"Is the record marked as {words_of}?", f"Is {name} true?"]
                        ),
                    },
                    state[name],
                )
            )
        elif random.random() < 0.5:
            options = random.sample(_VALUES[name], random.randrange(2, len(_VALUES[name]) + 1))
            if state[name] not in options:
                options[0] = state[name]
            random.shuffle(options)
            asking = random.choice(
                [
                    f"What is the {words_of}?",
                    f"Which {words_of} is it?",
                    f"Read the field {name}.",
                    f"Choose the {words_of}.",
                ]
            )
            asked.append(
                ({"type": "choice", "instructions": asking, "criteria": dict.fromkeys(options)}, state[name])
            )
        else:
            value = state[name] if random.random() < 0.5 else random.choice(_VALUES[name])
            asked.append(
                (
                    {
                        "type": "noul",
                        "instructions": random.choice(
                            [f"Is the {words_of} {value}?", f"Is {value} the {words_of}?"]
                        ),
                    },
                    value == state[name],
                )
            )
    return state, asked


def _kind_choice(kind: str, random: Random, asks: list[str]) -> Asked:
    others = random.sample([one for one in KINDS if one != kind], random.randrange(1, 9))
    options = words.styled([kind, *others], random)
    right = options[0]
    random.shuffle(options)
    return {"type": "choice", "instructions": random.choice(asks), "criteria": dict.fromkeys(options)}, right


def kind(random: Random) -> tuple[Any, list[Asked]]:
    """A word (or a phrase with it) and what kind of thing it is; or a kind and which word is one."""
    name = random.choice(list(KINDS))
    word = random.choice(KINDS[name].split())
    form = random.random()
    if form < 0.5:
        state = random.choice([word, f"the {word}", f"{word}, of course", word.capitalize()])
        shown = name if random.random() < 0.5 else random.choice(list(KINDS))
        noul = f"Is it a kind of {shown}?" if random.random() < 0.5 else f"Does this name a {shown}?"
        asked = [_kind_choice(name, random, words.KIND)]
        if shown == name or word not in KINDS[shown].split():
            asked.append(({"type": "noul", "instructions": noul}, shown == name))
        return state, asked
    others = [random.choice(KINDS[one].split()) for one in random.sample(list(KINDS), random.randrange(2, 7))]
    listed = [one for one in dict.fromkeys(others) if one not in KINDS[name].split() and one != word]
    if form < 0.75:
        options = [word, *listed]
        random.shuffle(options)
        asking = random.choice([f"Which of these is a {name}?", f"Pick the {name}.", f"Find the {name}."])
        return random.choice([f"We look for a {name}.", f"Category: {name}", name]), [
            ({"type": "choice", "instructions": asking, "criteria": dict.fromkeys(options)}, word)
        ]
    shown = [word, *listed]
    random.shuffle(shown)
    state = random.choice(["{}", "Words: {}", "We saw {}."]).format(", ".join(shown))
    present = random.random() < 0.5
    asks_for = (
        name if present else random.choice([one for one in KINDS if not set(KINDS[one].split()) & set(shown)])
    )
    return state, [
        (
            {
                "type": "noul",
                "instructions": random.choice(
                    [
                        f"Does the text name a {asks_for}?",
                        f"Is there a {asks_for} in it?",
                        f"Does it mention any {asks_for}?",
                    ]
                ),
            },
            present,
        )
    ]


def contains(text: str, random: Random) -> Asked | None:
    """Which word stands in the text."""
    inside = list(dict.fromkeys(re.findall(r"[a-z]{4,}", text.lower())))
    outside = [
        word
        for one in random.sample(list(KINDS), 6)
        for word in KINDS[one].lower().split()[:2]
        if word not in text.lower()
    ]
    if not inside or len(outside) < 5:
        return None
    word = random.choice(inside)
    if random.random() < 0.5:
        right = random.random() < 0.5
        shown = word if right else random.choice(outside)
        return {
            "type": "noul",
            "instructions": random.choice(
                [
                    'Does the text contain the word "{}"?',
                    'Is the word "{}" used in the text?',
                    "Does it say {}?",
                    "Is {} mentioned?",
                ]
            ).format(shown),
        }, right
    options = [word, *random.sample(outside, random.randrange(1, 6))]
    random.shuffle(options)
    return {
        "type": "choice",
        "instructions": random.choice(
            [
                "Which word appears in the text?",
                "Which of these words is used?",
                "Which word is in the state?",
            ]
        ),
        "criteria": dict.fromkeys(options),
    }, word


def urgency(text: str, random: Random) -> tuple[Any, list[Asked]]:
    """A request with a word on how urgent it is."""
    level = random.randrange(3)
    said = random.choice(URGENCY[level])
    state = words.shaped(f"{text} {said}" if random.random() < 0.6 else f"{said} {text}", random)
    form = random.random()
    if form < 0.4:
        levels = random.choice(
            [
                ["low", "medium", "high"],
                ["can wait", "soon", "at once"],
                ["not urgent", "somewhat urgent", "very urgent"],
            ]
        )
        return state, [
            (
                {
                    "type": "score",
                    "instructions": random.choice(
                        ["How urgent is it?", "Rate the urgency.", "What priority should it have?"]
                    ),
                    "criteria": levels,
                },
                level,
            )
        ]
    if form < 0.7:
        return state, [
            (
                {
                    "type": "noul",
                    "instructions": random.choice(
                        ["Is it urgent?", "Does it need an answer today?", "Must someone act at once?"]
                    ),
                },
                level == 2,
            )
        ]
    options = ["low priority", "normal priority", "high priority"]
    right = options[level]
    random.shuffle(options)
    return state, [
        ({"type": "choice", "instructions": "Which priority?", "criteria": dict.fromkeys(options)}, right)
    ]


_THINGS = [
    "The phone:",
    "About the hotel.",
    "My new vacuum cleaner.",
    "I watched the film last night.",
    "The restaurant on Main Street.",
    "This book.",
    "Customer service.",
    "The new update.",
    "",
    "",
    "",
]


def opinion(random: Random) -> tuple[Any, list[Asked]]:
    """One or two remarks of the same mind about a thing."""
    level = random.randrange(5)
    said = random.sample(OPINIONS[level], random.choice((1, 2)))
    text = " ".join(part for part in (random.choice(_THINGS), *said) if part)
    return words.shaped(text, random), [sentiment(level, random) for _ in range(random.choice((2, 3)))]


def topic(random: Random) -> tuple[Any, list[Asked]]:
    """A sentence or two of one subject."""
    name = random.choice(list(FACTS))
    text = " ".join(random.sample(FACTS[name], random.choice((1, 1, 2))))
    others = random.sample([one for one in FACTS if one != name], random.randrange(1, 9))
    options = words.styled([name, *others], random)
    right = options[0]
    random.shuffle(options)
    asked: list[Asked] = [
        (
            {
                "type": "choice",
                "instructions": random.choice(words.TOPIC),
                "criteria": dict.fromkeys(options),
            },
            right,
        )
    ]
    shown = name if random.random() < 0.5 else random.choice(others)
    asked.append(({"type": "noul", "instructions": random.choice(words.IS).format(shown)}, shown == name))
    return words.shaped(text, random), asked[: random.choice((1, 2))]


def longer(state: Any, random: Random) -> Any:
    """The state among other sentences, as long mails and threads have it."""
    if not isinstance(state, str):
        return state
    parts = random.sample(_BACKGROUND, random.randrange(3, 12))
    parts.insert(random.randrange(len(parts) + 1), state)
    return "\n".join(parts)
