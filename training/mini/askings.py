"""Made-up questions with the kind of answer that they want: a person, a place, a number, a reason."""

from __future__ import annotations

from random import Random
from typing import Any

import words
from label_sets import Asked
from lexicon import KINDS
from wordnet import choice, noul, shown_of, some

FORMS: dict[tuple[str, ...], list[str]] = {
    ("person", "human being", "someone's name", "who"): [
        "Who invented the {tool}?",
        "Who was the first {job} in {country}?",
        "What {job} became famous in {city}?",
        "Who wrote the song about {city}?",
        "Name the {job} who lived in {city}.",
        "Which {job} won the prize?",
        "Whose {vehicle} is that?",
        "Who owns the {building}?",
    ],
    ("place", "location", "where", "a city or country"): [
        "Where is the {building}?",
        "What is the capital of {country}?",
        "Which country has the most {animal}s?",
        "Where do {animal}s live?",
        "What city has the oldest {building}?",
        "In which state is the {building}?",
        "Where was the {instrument} first made?",
        "What river flows through {city}?",
    ],
    ("number", "quantity", "amount", "how many or how much", "count"): [
        "How many {animal}s are there in {country}?",
        "How much does a {vehicle} cost?",
        "How tall is the {building}?",
        "How far is it from {city} to {country}?",
        "What is the population of {city}?",
        "What is the average weight of a {animal}?",
        "How fast can a {vehicle} go?",
        "How old is the {building}?",
    ],
    ("date or time", "when", "time", "point in time"): [
        "When was the {building} built?",
        "What year did the {job} die?",
        "On what day does the {sport} season start?",
        "When do {bird}s fly south?",
        "What time does the {building} open?",
        "In which year was {country} founded?",
    ],
    ("description", "explanation or definition", "definition", "what something is or why"): [
        "What is a {instrument}?",
        "What does {software} mean?",
        "Why do {animal}s sleep in winter?",
        "How does a {vehicle} work?",
        "What is the origin of the word {fruit}?",
        "How do you make {meal}?",
        "What causes {illness}?",
        "What is {material} used for?",
    ],
    ("abbreviation", "what letters stand for", "short form"): [
        "What does {short} stand for?",
        "What is the full form of {short}?",
        "What is {short} short for?",
        "{short} is an abbreviation of what?",
        "What is the abbreviation for {software}?",
    ],
    ("thing", "entity", "object, animal or product"): [
        "What animal eats {fruit}s?",
        "What {instrument} is the loudest?",
        "What colour is a {fruit}?",
        "What is the fastest {vehicle}?",
        "Which {sport} is played on ice?",
        "What {metal} is used in a {tool}?",
        "What language is spoken in {country}?",
        "What kind of {meal} has {vegetable} in it?",
        "What is the best-known {game}?",
    ],
    ("yes or no", "confirmation"): [
        "Is a {animal} bigger than a {bird}?",
        "Can a {vehicle} cross the {river}?",
        "Do {job}s need a {document}?",
        "Was the {building} in {city} ever rebuilt?",
        "Does {country} have a {building}?",
    ],
}
ASKS = [
    "What kind of answer does the question want?",
    "Which type of answer is expected?",
    "What is asked for?",
    "What does the question ask about?",
    "Classify the question by its answer.",
    "The answer will be a ...",
]


class _Fill(dict[str, str]):
    def __init__(self, random: Random) -> None:
        super().__init__()
        self.random = random

    def __missing__(self, key: str) -> str:
        if key == "short":
            return "".join(
                self.random.choice("ABCDEFGILMNOPRSTUVW") for _ in range(self.random.choice((2, 3, 3, 4)))
            )
        return self.random.choice(KINDS[key].split())


def asking(random: Random) -> tuple[Any, list[Asked]]:
    """A question and what kind of answer it wants."""
    kinds = list(FORMS)
    kind = random.choice(kinds)
    text = random.choice(FORMS[kind]).format_map(_Fill(random))
    if random.random() < 0.3:
        text = text[:-1] + " ?"
    right = random.choice(kind)
    others = [
        random.choice(one)
        for one in random.sample([one for one in kinds if one != kind], random.randrange(1, 8))
    ]
    asked = [choice(right, others, ASKS, random)]
    shown, so = shown_of(right, others, random)
    asks = ["Is the answer a {}?", "Does it ask for: {}?", "Would the answer be: {}?"]
    return words.shaped(text, random), some([*asked, noul(random.choice(asks).format(shown), so)], random)
