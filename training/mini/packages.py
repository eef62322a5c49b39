"""What a program is for, from the sections and tags of Debian's packages: `apt-cache dumpavail > FILE`.

Each facet of the tags (use, field, what it works with, kind of game) is a label set of its own; a package
counts where it has one value of it.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from pathlib import Path
from random import Random
from typing import Any

import words
from label_sets import Asked, LabelSet

SECTIONS = {
    "games": "games",
    "science": "science",
    "sound": "sound and music",
    "graphics": "graphics",
    "fonts": "fonts",
    "web": "web",
    "httpd": "web servers",
    "mail": "email",
    "editors": "text editors",
    "database": "databases",
    "kernel": "operating system kernel",
    "video": "video",
    "electronics": "electronics",
    "tex": "typesetting",
    "hamradio": "amateur radio",
    "vcs": "version control",
    "shells": "command shells",
    "math": "mathematics",
    "education": "education",
    "net": "networking",
    "admin": "system administration",
    "comm": "telephony and fax",
    "text": "text processing",
    "localization": "translations",
    "doc": "documentation",
    "java": "Java",
    "haskell": "Haskell",
    "perl": "Perl",
    "ruby": "Ruby",
    "php": "PHP",
}
FACETS = {
    "use": (
        ["What is the program used for?", "Which task does it help with?", "What do people do with it?"],
        ["Is it used for {}?", "Does it help with {}?", "Is {} its purpose?"],
    ),
    "field": (
        [
            "Which field is it for?",
            "Which subject is the software made for?",
            "Pick the field of its users.",
        ],
        ["Is it software for {}?", "Does it belong to {}?", "Would somebody in {} use it?"],
    ),
    "works-with": (
        ["What does it work with?", "Which kind of data does it handle?", "What does the tool process?"],
        ["Does it work with {}?", "Does it handle {}?", "Is {} what it processes?"],
    ),
    "game": (
        ["What kind of game is it?", "Which genre?", "Classify the game."],
        ["Is it a game of the kind {}?", "Is the genre {}?", "Would you file this game under {}?"],
    ),
}
NAMES = {"fps": "first-person shooter", "rpg": "role playing", "db": "databases", "pim": "personal data"}
"""Of values that nobody would guess."""
LEAST = 20
"""Packages of a label."""


class Packages:
    """Draws rows; see the module."""

    def __init__(self, file: Path) -> None:
        rows: dict[str, dict[str, str]] = defaultdict(dict)
        for block in file.read_text(encoding="utf-8").split("\n\n"):
            fields = dict(re.findall(r"^([A-Z][\w-]*): (.*(?:\n .*)*)", block, re.MULTILINE))
            text = fields.get("Description", "").split("\n")[0]
            if len(text) < 15:
                continue
            section = fields.get("Section", "").rpartition("/")[2]
            if section in SECTIONS:
                rows["section"][text] = SECTIONS[section]
            values: dict[str, set[str]] = defaultdict(set)
            for tag in re.split(r",\s*", fields.get("Tag", "")):
                facet, _, value = tag.partition("::")
                value = value.split(":")[0]
                values[facet].add(NAMES.get(value, value))
            for facet in FACETS:
                if len(values[facet]) == 1:
                    rows[facet][text] = values[facet].pop()
        self.sets = []
        for name, found in rows.items():
            often = Counter(found.values())
            kept = [(text, label) for text, label in found.items() if often[label] >= LEAST]
            asks, noul = FACETS.get(name, (words.TOPIC, words.IS))
            self.sets.append(LabelSet(kept, asks, noul))

    def draw(self, random: Random) -> tuple[Any, list[Asked]]:
        """A description with questions of one facet; half of them ask for the section."""
        return (self.sets[0] if random.random() < 0.5 else random.choice(self.sets)).draw(random)
