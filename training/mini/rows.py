"""Write the training rows of the embedded model: `python rows.py DATA OUT.jsonl --rows 60000 --seed 1`.

DATA is a folder of labelled sets (NAME/train.jsonl.gz). Only sets whose licence allows shipping weights
trained on them are read. Whole tasks are held out, so that transfer can be seen: none of their rows is used.
`--wordnet` is the `dict` folder of WordNet 3; `--valence` is a list of words with their valence (tones.py),
which needs the first; `--rated` is the folder of rated sentences (rated.py), `--packages` a list of packages
(packages.py). Without them their parts of the mixture are left out.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import label_sets
import made
import others
import words
from askings import asking
from edits import Edits, sentences
from label_sets import Asked
from manner import Manner
from packages import Packages
from pairs import Pairs
from rated import FILES, Rated
from tones import Tones
from wordnet import WordNet

Draw = Callable[[Random], tuple[Any, list[Asked]]]

MOST_CHARACTERS = 1200
"""Longest state of most rows."""
LONG, LONG_CHARACTERS = 0.25, 2500
"""Share of rows whose state may be longer, and how long."""


HELD_OUT = ("snips", "nlu_askubuntu", "nlu_chatbot", "nlu_webapplications")
"""Sets that may be trained on but are not."""


class Ready:
    """Decisions that were made from labelled sets before; a row of the mixture as it is."""

    def __init__(self, folder: Path) -> None:
        self.rows: list[tuple[Any, list[Asked]]] = []
        with gzip.open(folder / "decisions" / "train.jsonl.gz", "rt", encoding="utf-8") as lines:
            for line in lines:
                row = json.loads(line)
                if row["shippable"] and row["source"].rsplit("-", 2)[0] not in HELD_OUT:
                    asked = [(question, row["answers"][name]) for name, question in row["questions"].items()]
                    self.rows.append((row["state"], asked))

    def draw(self, random: Random) -> tuple[Any, list[Asked]]:
        """Any of them."""
        return random.choice(self.rows)


def mixture(
    folder: Path,
    wordnet: Path | None = None,
    valence: Path | None = None,
    rated: Path | None = None,
    packages: Path | None = None,
) -> list[tuple[float, str, Draw]]:
    """Weight, name and source of each part of the mixture."""

    def single(name: str) -> list[tuple[str, str]]:
        return [(row["text"], row["label"]) for row in label_sets.read(folder, name)]

    clinc, sgd = (
        label_sets.inverse(label_sets.GROUPS["clinc150"]),
        label_sets.inverse(label_sets.GROUPS["sgd_intents"]),
    )
    intents: dict[str, Callable[[str], str | None] | None] = {
        "banking77": None,
        "clinc150": clinc.get,
        "hwu64": lambda label: label_sets.GROUPS["hwu64"].get(label.split("_")[0], label.split("_")[0]),
        "sgd_intents": sgd.get,
        "bitext_support": None,
    }
    sets = {
        name: label_sets.LabelSet(single(name), words.INTENT, words.IS, group, pairs=True)
        for name, group in intents.items()
    }
    emotions = single("goemotions")
    feeling = label_sets.LabelSet(emotions, words.EMOTION, words.IS_EMOTION)
    feelings = label_sets.Feelings(emotions)
    moderation = [*single("hate_tdavidson")]
    tools = others.Options(
        label_sets.read(folder, "bfcl_tool_choice"),
        [
            "Select the tool to use.",
            "Which tool fits the request?",
            "Which function should be called?",
            "Pick the right tool.",
        ],
    )
    endings = others.Options(
        label_sets.read(folder, "codah"),
        [
            "Select the right completion.",
            "Which ending makes sense?",
            "How does it go on?",
            "Choose the most plausible ending.",
        ],
    )

    large = [sets["banking77"], sets["clinc150"], sets["hwu64"], sets["sgd_intents"]]
    large += [sets["banking77"], sets["clinc150"], feeling, sets["bitext_support"]]

    def many(random: Random) -> tuple[Any, list[Asked]]:
        return random.choice(large).many(random)

    def urgent(random: Random) -> tuple[Any, list[Asked]]:
        one = sets[random.choice(["banking77", "bitext_support", "clinc150"])]
        return made.urgency(random.choice(one.by_label[random.choice(one.labels)]), random)

    more: list[tuple[float, str, Draw]] = []
    if wordnet is not None:
        net = WordNet(wordnet)
        more.append((16, "wordnet", net.draw))
        if valence is not None:
            tones = Tones(valence, net.adjectives)
            more.append((8, "tones", tones.draw))
            lone, passages = plain_sentences(folder, net)
            more.append((22, "pairs", Pairs(Edits(net), lone, passages).draw))
            facts = [*lone[:20000], *(one for part in passages for one in part)]
            more.append((15, "manner", Manner(facts, judgements(emotions), tones.judgement).draw))
    if rated is not None:
        more.append((18, "rated", Rated(rated / name for name in FILES).draw))
    if packages is not None:
        more.append((8, "packages", Packages(packages).draw))
    reasoning = label_sets.read(folder, "bbh")
    sarcasm = [row for row in reasoning if row["task"] == "snarks"]
    short = [
        row
        for row in reasoning
        if len(row["options"]) <= 10 and row["task"] != "snarks" and max(map(len, row["options"])) <= 110
    ]
    clean = [text for text, label in emotions if label in ("gratitude", "curiosity", "optimism", "caring")]
    toxicity = single("surge_toxicity")
    abuse = others.Abuse(moderation, toxicity, clean)
    return [
        *more,
        (30, "many", many),
        (7, "abuse", abuse.draw),
        (2, "sarcasm", others.Sarcasm(sarcasm).draw),
        (3, "reasoning", others.Options(short, ANSWER).draw),
        (30, "ready", Ready(folder).draw),
        (3, "askings", asking),
        (3, "entailment", others.Entailment(label_sets.read(folder, "med")).draw),
        (3, "harms", others.Harms(label_sets.read(folder, "openai_moderation")).draw),
        (12, "banking77", sets["banking77"].draw),
        (14, "clinc150", sets["clinc150"].draw),
        (9, "hwu64", sets["hwu64"].draw),
        (7, "sgd_intents", sets["sgd_intents"].draw),
        (7, "bitext_support", sets["bitext_support"].draw),
        (8, "goemotions", feeling.draw),
        (9, "sentiment", feelings.draw),
        (4, "opinions", made.opinion),
        (4, "hate_tdavidson", label_sets.LabelSet(moderation, words.MODERATION, words.IS).draw),
        (2, "surge_toxicity", label_sets.LabelSet(toxicity, words.MODERATION, words.IS).draw),
        (3, "sms_spam", label_sets.LabelSet(single("sms_spam"), words.MODERATION, words.IS).draw),
        (3, "tools", tools.draw),
        (1, "endings", endings.draw),
        (1, "passages", others.Passages(label_sets.read(folder, "boolq")).draw),
        (5, "records", made.record),
        (5, "kinds", made.kind),
        (4, "topics", made.topic),
        (2, "urgency", urgent),
    ]


ANSWER = ["Answer the question.", "Which answer is right?", "Pick the right option.", "What is the answer?"]

OPINIONATED = (
    "admiration",
    "annoyance",
    "approval",
    "disapproval",
    "disgust",
    "disappointment",
    "love",
    "anger",
)


def judgements(emotions: list[tuple[str, str]]) -> list[str]:
    """Comments that judge something."""
    return [text for text, label in emotions if label in OPINIONATED and 25 < len(text) < 180]


def plain_sentences(folder: Path, net: WordNet) -> tuple[list[str], list[list[str]]]:
    """Sentences that state something, alone, and those of passages."""
    passages = [
        sentences(row["text"]["passage"].partition(" -- ")[2]) for row in label_sets.read(folder, "boolq")
    ]
    stories = [f"{row['text']} {row['label']}" for row in label_sets.read(folder, "codah")]
    lone = [row["text"]["premise"] for row in label_sets.read(folder, "med")]
    lone += [one for story in stories for one in sentences(story)]
    used = [
        one for sense in net.senses.values() for one in sense.examples if 30 < len(one) < 120 and " " in one
    ]
    lone += [one[0].upper() + one[1:] + "." for one in used]
    Random(0).shuffle(lone)
    return lone, passages


def rows(parts: list[tuple[float, str, Draw]], count: int, seed: int) -> list[dict[str, Any]]:
    """Rows in the shape that `jev tune` reads."""
    random = Random(seed)
    weights = [weight for weight, _, _ in parts]
    made_rows: list[dict[str, Any]] = []
    while len(made_rows) < count:
        _, name, draw = random.choices(parts, weights)[0]
        state, asked = draw(random)
        if random.random() < 0.04:
            state = made.longer(state, random)
        if (
            isinstance(state, str)
            and random.random() < 0.06
            and (more := made.contains(state, random)) is not None
        ):
            asked = [*asked, more]
        most = LONG_CHARACTERS if random.random() < LONG else MOST_CHARACTERS
        if not asked or len(json.dumps(state)) > most:
            continue
        ids = [f"q{number}" for number in range(1, len(asked) + 1)]
        made_rows.append(
            {
                "id": f"{name}-{len(made_rows)}",
                "state": state,
                "questions": {key: question for key, (question, _) in zip(ids, asked, strict=True)},
                "answers": {key: answer for key, (_, answer) in zip(ids, asked, strict=True)},
            }
        )
    return made_rows


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--wordnet", type=Path)
    parser.add_argument("--valence", type=Path)
    parser.add_argument("--rated", type=Path)
    parser.add_argument("--packages", type=Path)
    given = parser.parse_args()
    parts = mixture(given.data, given.wordnet, given.valence, given.rated, given.packages)
    with given.out.open("w", encoding="utf-8") as file:
        for row in rows(parts, given.rows, given.seed):
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
