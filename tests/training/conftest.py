"""The scripts of training/mini, importable, and small sets in the form that they read."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest

MINI = Path(__file__).parents[2] / "training" / "mini"
sys.path.insert(0, str(MINI))

TEXTS = [
    "Where is my card?",
    "Play the next song.",
    "What a great day!",
    "Stop calling me.",
    "How old are you?",
]
LABELS = {
    "banking77": ["card_arrival", "lost_or_stolen_card", "top_up_failed"],
    "clinc150": ["play_music", "card_declined", "recipe", "oos"],
    "hwu64": ["play_music", "iot_cleaning", "lists_remove"],
    "sgd_intents": ["ReserveHotel", "PlaySong", "CheckBalance"],
    "bitext_support": ["get_refund", "cancel_order"],
    "goemotions": ["anger", "joy", "neutral", "admiration", "fear", "love", "disgust", "pride", "caring"],
    "hate_tdavidson": ["hate speech", "neither", "offensive language"],
    "surge_toxicity": ["toxic", "not toxic"],
    "sms_spam": ["spam", "not spam"],
}


def _write(folder: Path, name: str, rows: list[dict[str, Any]]) -> None:
    (folder / name).mkdir(parents=True)
    with gzip.open(folder / name / "train.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


@pytest.fixture(scope="session")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a few rows of every set that the mixture reads."""
    folder, random = tmp_path_factory.mktemp("sets"), Random(1)
    for name, labels in LABELS.items():
        rows = [
            {"text": f"{random.choice(TEXTS)} {number}", "label": one}
            for number in range(8)
            for one in labels
        ]
        _write(folder, name, [row | {"text": f"{row['text']} That is what I think."} for row in rows])
    tools = ["weather: tells the weather", "mail: sends a mail", "no suitable tool"]
    _write(folder, "bfcl_tool_choice", [{"text": "Will it rain?", "options": tools, "label": tools[0]}])
    endings = ["falls asleep.", "eats the moon.", "is a number.", "flies the sea."]
    _write(folder, "codah", [{"text": "The tired child", "options": endings, "label": endings[0]}])
    passage = {
        "passage": "Cats -- The adj8 noun9 is larger than a noun12 or noun20. In 1990, the adj10 noun16 was "
        "seen by 12 people. It is not the adj11 noun30 of them all.",
        "question": "are cats animals",
    }
    _write(folder, "boolq", [{"text": passage, "label": "yes"}])
    pair = {"premise": "All dogs bark.", "hypothesis": "All small dogs bark."}
    _write(folder, "med", [{"text": pair, "label": "entailment"}])
    puzzle = {
        "text": "( True ) and False is",
        "options": ["True", "False"],
        "label": "False",
        "task": "logic",
    }
    snark = {"text": "Which is sarcastic?", "options": ["Yes.", "Sure."], "label": "Sure.", "task": "snarks"}
    _write(folder, "bbh", [puzzle, snark])
    judged = {"text": "I will hurt you.", "labels": ["violence"], "judged": ["violence", "hate"]}
    _write(folder, "openai_moderation", [judged, {"text": "Hello.", "labels": [], "judged": ["hate"]}])
    question = {"type": "noul", "instructions": "Is it about music?"}
    held = {"state": "held out", "questions": {"q1": question}, "answers": {"q1": True}}
    _write(
        folder,
        "decisions",
        [
            held | {"source": "banking77-train-1", "shippable": True, "state": "Play it again."},
            held | {"source": "snips-train-1", "shippable": True},
            held | {"source": "sst2-train-1", "shippable": False},
        ],
    )
    return folder


@pytest.fixture(scope="session")
def wordnet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small network of words in WordNet's file form."""
    folder, random = tmp_path_factory.mktemp("dict"), Random(2)
    for part, letter in (("noun", "n"), ("verb", "v"), ("adj", "a"), ("adv", "r")):
        data, index = ["  1 a header"], ["  1 a header"]
        for number in range(160):
            word, twin = f"{part}{number}", f"other_{part}{number}"
            links = [f"@ {number % 8:08d} {letter} 0000"] if number >= 8 else []
            links += [f";c {number % 3:08d} n 0000"] if number % 2 else [f"! {number ^ 2:08d} {letter} 0101"]
            file = random.choice((5, 6, 18))
            gloss = f'what the {word} is thought of as a whole; "look at the {word} here"'
            data.append(
                f"{number:08d} {file:02d} {letter} 02 {word} 0 {twin} 0 {len(links):03d} "
                f"{' '.join(links)} | {gloss}  "
            )
            index.append(f"{word} {letter} 1 1 @ 1 1 {number:08d}  ")
        (folder / f"data.{part}").write_text("\n".join(data) + "\n")
        (folder / f"index.{part}").write_text("\n".join(index) + "\n")
    return folder
