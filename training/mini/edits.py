"""Small changes to English sentences whose effect on the meaning is known, by WordNet and a few rules."""

from __future__ import annotations

import re
from collections import defaultdict
from random import Random

from wordnet import WordNet

_ARTICLES = {"a", "an", "the"}
_HEDGES = {
    "not",
    "no",
    "never",
    "without",
    "if",
    "none",
    "nobody",
    "nothing",
    "few",
    "n't",
    "hardly",
    "all",
    "every",
}
_AUXILIARY = re.compile(
    r"\b(is|are|was|were|can|will|has|have|could|should|would|must)\b(?! not|n't| no\b)", re.I
)
_FORMS = {
    "is not": "isn't", "are not": "aren't", "was not": "wasn't", "do not": "don't",
    "does not": "doesn't", "did not": "didn't", "can not": "can't", "will not": "won't",
    "it is": "it's", "I am": "I'm", "I would": "I'd", "I will": "I'll", "that is": "that's",
    "they are": "they're", "we are": "we're",
}  # fmt: skip
_WORD = re.compile(r"[A-Za-z]\w*")
_AGREEMENT = {
    "is": "are", "are": "is", "was": "were", "were": "was", "has": "have", "have": "has", "does": "do",
    "do": "does", "a": "an", "an": "a", "his": "he", "their": "they", "to": "for", "of": "at",
    "in": "of", "goes": "go", "makes": "make",
}  # fmt: skip


def sentences(text: str, least: int = 25, most: int = 180) -> list[str]:
    """The sentences of a text that are neither short nor long."""
    return [one for one in re.split(r"(?<=[.!?])\s+", text.strip()) if least <= len(one) <= most]


def certain(sentence: str) -> bool:
    """Whether nothing in it turns "more general" around, as a negation does."""
    return not set(_WORD.findall(sentence.lower())) & _HEDGES and "n't" not in sentence


class Edits:
    """Changes that need to know words.

    Args:
        net: where words come from.
    """

    def __init__(self, net: WordNet) -> None:
        self.adjectives = net.adjectives
        self.wider: dict[str, str] = {}
        self.cousins: dict[str, list[str]] = {}
        self.same: dict[str, list[str]] = defaultdict(list)
        self.opposite: dict[str, str] = {}
        below: dict[str, list[str]] = defaultdict(list)
        for key in net.nouns:
            sense, above = net.senses[key], net.above[key]
            if above and sense.common and " " not in sense.names[0]:
                self.wider.setdefault(sense.names[0], above[0])
                below[above[0]].append(sense.names[0])
        for name, higher in self.wider.items():
            self.cousins[name] = [one for one in below[higher] if one != name]
        for key in net.common:
            names = [name for name in net.senses[key].names if " " not in name]
            if key[0] != "v" and len(names) > 1 and names[0] not in self.same:
                self.same[names[0]] = names[1:]
        for key in net.opposed:
            if key[0] in "ar":
                target = next(target for kind, target in net.senses[key].links if kind == "!")
                self.opposite.setdefault(net.senses[key].names[0], net.senses[target].names[0])

    def widened(self, sentence: str, random: Random) -> str | None:
        """A noun becomes what it is a kind of: follows from the sentence."""
        if not certain(sentence):
            return None
        return self._swap(sentence, {name: [higher] for name, higher in self.wider.items()}, random)

    def moved(self, sentence: str, random: Random) -> str | None:
        """A noun becomes another of its kind."""
        return self._swap(sentence, self.cousins, random)

    def renamed(self, sentence: str, random: Random) -> str | None:
        """A word becomes a synonym."""
        return self._swap(sentence, self.same, random)

    def opposed(self, sentence: str, random: Random) -> str | None:
        """An adjective or adverb becomes its opposite."""
        return self._swap(sentence, {name: [other] for name, other in self.opposite.items()}, random)

    def shortened(self, sentence: str, random: Random) -> str | None:
        """An adjective between article and noun is left out, or what stands behind a comma: follows."""
        if not certain(sentence):
            return None
        words = sentence.split()
        places = [
            index
            for index in range(1, len(words) - 1)
            if words[index - 1].lower() in _ARTICLES and words[index] in self.adjectives
        ]
        if places:
            place = random.choice(places)
            words[place - 1] = _article(words[place - 1], words[place + 1])
            return " ".join(words[:place] + words[place + 1 :])
        head, comma, _ = sentence.partition(", ")
        if comma and len(head.split()) > 4 and _AUXILIARY.search(head):
            return head + "."
        return None

    def _swap(self, sentence: str, table: dict[str, list[str]], random: Random) -> str | None:
        places = [match for match in _WORD.finditer(sentence) if table.get(match[0].lower())]
        if not places:
            return None
        place = random.choice(places)
        other = random.choice(table[place[0].lower()])
        before = re.sub(r"\b(a|an)\s$", lambda m: _article(m[1], other) + " ", sentence[: place.start()])
        return before + other + sentence[place.end() :]


def _article(article: str, word: str) -> str:
    """`article` as it is before `word`."""
    if article.lower() not in ("a", "an"):
        return article
    right = "an" if word[:1].lower() in "aeiou" else "a"
    return right.capitalize() if article[0].isupper() else right


def negated(sentence: str, random: Random) -> str | None:
    """The sentence with "not" behind an auxiliary, or without the one that it has."""
    if re.search(r"\b(is|are|was|were|can|will) not\b", sentence):
        return re.sub(r"\b(is|are|was|were|can|will) not\b", r"\1", sentence, count=1)
    if not certain(sentence) or (found := _AUXILIARY.search(sentence)) is None:
        return None
    return sentence[: found.end()] + " not" + sentence[found.end() :]


def renumbered(sentence: str, random: Random) -> str | None:
    """Another number in place of one that is there."""
    found = list(re.finditer(r"\b\d+\b", sentence))
    if not found:
        return None
    place = random.choice(found)
    value = int(place[0]) + random.choice((-3, -1, 1, 2, 7, 10))
    return f"{sentence[: place.start()]}{abs(value)}{sentence[place.end() :]}"


def recast(sentence: str, random: Random) -> str | None:
    """The same in other words: a contraction, or what stands in front put behind."""
    for long, short in random.sample(list(_FORMS.items()), len(_FORMS)):
        for old, new in ((long, short), (short, long)):
            if re.search(rf"\b{old}\b", sentence):
                return re.sub(rf"\b{old}\b", new, sentence, count=1)
    found = re.match(r"((?:In|On|At|After|Before|During|When|If) [^,]{3,40}), (.+?)([.!?]?)$", sentence)
    if found is None:
        return None
    front, rest, end = found.groups()
    return rest[0].upper() + rest[1:] + " " + front[0].lower() + front[1:] + end


def broken(sentence: str, random: Random) -> str | None:
    """The sentence with a mistake in its grammar."""
    words = sentence.split()
    if len(words) < 5:
        return None
    form = random.random()
    places = [index for index, word in enumerate(words) if word in _AGREEMENT]
    if form < 0.4 and places:
        place = random.choice(places)
        words[place] = _AGREEMENT[words[place]]
    elif form < 0.6 and places:
        del words[random.choice(places)]
    elif form < 0.85:
        place = random.randrange(1, len(words) - 2)
        words[place], words[place + 1] = words[place + 1], words[place]
    else:
        word = words.pop(random.randrange(1, len(words) - 1))
        words.insert(random.randrange(1, len(words)), word)
    return None if " ".join(words) == sentence else " ".join(words)
