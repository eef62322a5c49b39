"""Wordings: instructions for every kind of question, styles of option names, shapes of states."""

from __future__ import annotations

import re
from random import Random
from typing import Any

INTENT = [
    "What is the intent of the message?",
    "Which of these best describes the request?",
    "What does the user want?",
    "Pick the intent that fits the message best.",
    "Route this message to the right handler.",
    "Classify the request.",
    "What is this message about?",
    "Which category does this belong to?",
    "Choose the label for this text.",
    "Which option matches what was said?",
    "Select the best match.",
    "Which action should be taken?",
    "Which queue should handle it?",
    "Sort this into one of the categories.",
    "Why did the customer write?",
    "Determine the purpose of the text.",
]
TOPIC = [
    "What is the topic?",
    "Which subject does the text belong to?",
    "What is this about?",
    "Which area does it concern?",
    "Choose the domain.",
    "Which section would this go into?",
    "Pick the best category.",
    "Classify the text by topic.",
    "Which heading fits the text?",
    "What field is the text from?",
]
EMOTION = [
    "Which emotion does the writer express?",
    "What feeling is shown here?",
    "Classify the emotion.",
    "Pick the emotion that fits best.",
    "How does the author feel?",
    "Which mood does this have?",
    "What is the emotional tone?",
]
SENTIMENT = [
    "What is the sentiment?",
    "Is the tone positive or negative?",
    "Which sentiment does this express?",
    "How does the writer feel about it?",
    "Classify the opinion.",
    "What is the attitude of the author?",
    "Judge the sentiment of the text.",
    "What is the sentiment of the review?",
]
MODERATION = [
    "Classify the text for moderation.",
    "Which label fits the comment?",
    "How should this comment be labelled?",
    "What kind of language is this?",
    "Judge the comment.",
]
KIND = [
    "What kind of thing is it?",
    "Which category does the word belong to?",
    "What is it?",
    "Choose the right class.",
    "Which of these is it an example of?",
    "What type of thing is named?",
]
IS = [
    "Is the message about {}?",
    "Is the intent {}?",
    "Does this concern {}?",
    "Should this be labelled {}?",
    "Would you label this as {}?",
    "Does the label {} fit?",
    "Is {} the right category?",
    "Is this a case of {}?",
    "Does the text fit the description: {}?",
    "{}: does that apply here?",
]
IS_EMOTION = [
    "Does the writer express {}?",
    "Is there {} in the text?",
    "Is the feeling {}?",
    "Does this show {}?",
    "Would you call the tone {}?",
]
IS_SENTIMENT = [
    "Is the sentiment {}?",
    "Is this {}?",
    "Is the opinion {}?",
    "Would you call this {}?",
    "Is the text {}?",
]
SAME = [
    "Do both messages want the same?",
    "Are the two texts about the same request?",
    "Is it the same intent?",
    "Would both go to the same handler?",
]
LIKE = [
    "Which of these is most alike?",
    "Which message asks for the same?",
    "Which example does it resemble?",
    "Put it with its like.",
    "Which group does the message belong to?",
]
NONE = ["none of these", "none of the above", "something else", "other", "no match", "anything else"]
SENTIMENT_NAMES = [
    ("negative", "neutral", "positive"),
    ("bad", "mixed", "good"),
    ("unfavourable", "neutral", "favourable"),
    ("criticism", "neither", "praise"),
    ("unhappy", "indifferent", "happy"),
    ("dislikes it", "no opinion", "likes it"),
    ("complaint", "neutral remark", "compliment"),
    ("thumbs down", "undecided", "thumbs up"),
    ("negative review", "neutral review", "positive review"),
    ("negative opinion", "balanced", "positive opinion"),
    ("critical", "matter-of-fact", "approving"),
    ("would not recommend", "unsure", "would recommend"),
    ("not satisfied", "so-so", "satisfied"),
]
FIVE_LEVELS = [
    ["very negative", "negative", "neutral", "positive", "very positive"],
    ["1 star", "2 stars", "3 stars", "4 stars", "5 stars"],
    ["terrible", "poor", "average", "good", "excellent"],
    ["hates it", "dislikes it", "is neutral", "likes it", "loves it"],
    ["awful", "bad", "okay", "good", "great"],
]
HOW_GOOD = [
    "How good is the writer's opinion?",
    "How positive is the text?",
    "Rate the sentiment.",
    "How satisfied is the writer?",
    "How favourable is this?",
]
SYNONYMS = {
    "joy": ["happiness", "joy", "being happy"],
    "anger": ["anger", "being angry", "rage"],
    "sadness": ["sadness", "being sad", "sorrow"],
    "fear": ["fear", "being afraid", "worry"],
    "gratitude": ["gratitude", "thankfulness"],
    "admiration": ["admiration", "respect"],
    "annoyance": ["annoyance", "irritation"],
    "disgust": ["disgust", "revulsion"],
    "surprise": ["surprise", "astonishment"],
    "love": ["love", "affection"],
    "optimism": ["optimism", "hope"],
    "amusement": ["amusement", "finding it funny"],
    "curiosity": ["curiosity", "interest"],
    "confusion": ["confusion", "being puzzled"],
    "neutral": ["neutral", "no emotion"],
    "disapproval": ["disapproval", "objection"],
    "approval": ["approval", "agreement"],
    "hate speech": ["hate speech", "hateful"],
    "offensive language": ["offensive language", "offensive", "rude language"],
    "neither": ["neither", "harmless", "acceptable"],
    "oos": ["out of scope", "something else", "other"],
}


def plain(label: str) -> str:
    """A label as words: GetWeather, get_weather and GET-WEATHER become get weather."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", label)
    return re.sub(r"[_\-?]+", " ", words).strip().lower()


def named(label: str, random: Random) -> str:
    """A label's words, or a synonym."""
    words = plain(label)
    return random.choice(SYNONYMS[words]) if words in SYNONYMS and random.random() < 0.6 else words


def styled(names: list[str], random: Random) -> list[str]:
    """All names in one style, as a schema would have them."""
    style = random.random()
    if style < 0.6:
        return names
    if style < 0.75:
        return [name.replace(" ", "_") for name in names]
    if style < 0.85:
        return [name.capitalize() for name in names]
    if style < 0.9:
        return [name.upper().replace(" ", "_") for name in names]
    if style < 0.95:
        return [name.title() for name in names]
    return [name.title().replace(" ", "") for name in names]


_KEYS = [
    "text",
    "message",
    "body",
    "content",
    "comment",
    "input",
    "utterance",
    "subject",
    "note",
    "description",
]
_EXTRA: list[tuple[str, list[Any]]] = [
    ("id", [17, "a-301", 90412]),
    ("channel", ["email", "chat", "phone", "web"]),
    ("lang", ["en"]),
    ("date", ["2024-03-01", "2025-11-30"]),
    ("user", ["anna", "u123", "guest"]),
    ("priority", [1, 2, 3]),
    ("source", ["app", "forum", "survey"]),
    ("verified", [True, False]),
]
_OPENINGS = ["Hi,", "Hello team,", "Good morning.", "Dear support,", "Hey there!", "To whom it may concern,"]
_CLOSINGS = ["Thanks.", "Best regards, Maria", "Cheers", "Thank you for your help!", "Sent from my phone"]
_TURNS = [
    ("Hello, how can I help you?", "agent"),
    ("Is there anything else?", "agent"),
    ("One moment please.", "agent"),
    ("Hi", "customer"),
]


def shaped(text: str, random: Random) -> Any:
    """The text as a state: as it is, in an object, as a mail, as a conversation, or as an attached file."""
    shape = random.random()
    if shape < 0.62:
        return text
    if shape < 0.84:
        fields: list[tuple[str, Any]] = [(random.choice(_KEYS), text)]
        for key, values in random.sample(_EXTRA, random.randrange(4)):
            fields.append((key, random.choice(values)))
        random.shuffle(fields)
        return dict(fields)
    if shape < 0.9:
        return f"{random.choice(_OPENINGS)}\n\n{text}\n\n{random.choice(_CLOSINGS)}"
    if shape < 0.95:
        turns = [{"role": who, "text": said} for said, who in random.sample(_TURNS, random.randrange(1, 3))]
        return [*turns, {"role": "customer", "text": text}]
    name = random.choice(["mail.txt", "note.md", "message.txt", "transcript.txt"])
    return f'\n\nAttachment "{name}" (text):\n{text}'
