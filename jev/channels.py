"""Ids that the model wrote -> the text and the reasoning that a caller gets, bit by bit.

Control tokens never become text, not even where the model spells one in ordinary tokens.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from jev.model.template import Template
from jev.model.tokenizer import Tokenizer

_NAME = "thought\n"
"""What the channel of a thought begins with."""

_MOST_HELD = 256
"""Characters that may wait to become a marker; nobody spells a longer one."""


@dataclass(frozen=True)
class Piece:
    """What came to light: a bit of the text, a bit of the reasoning."""

    text: str = ""
    reasoning: str = ""

    def __bool__(self) -> bool:
        """Whether there is anything."""
        return bool(self.text or self.reasoning)


class Markers:
    """The spellings of control tokens that structure turns and channels, such as `<|channel>`.

    Attributes:
        first: what they begin with.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(name for name in names if name.startswith("<|") or name.endswith("|>"))
        self._lengths = sorted({len(name) for name in self._names})
        self.first = frozenset(name[0] for name in self._names)
        self._last = frozenset(name[-1] for name in self._names)
        self._beginnings = frozenset(name[:end] for name in self._names for end in range(1, len(name)))

    def left(self, text: Sequence[str]) -> list[int]:
        """Which characters are left without markers, nor any that come together when others go."""
        kept: list[int] = []
        for index, character in enumerate(text):
            kept.append(index)
            if character not in self._last:
                continue
            for length in self._lengths:
                if "".join(text[one] for one in kept[-length:]) in self._names:
                    del kept[-length:]
                    break
        return kept

    def settled(self, text: str) -> int:
        """How many characters cannot be part of a marker, whatever follows.

        What is left may be several beginnings, since a marker between two halves brings these together.
        """
        start = len(text)
        index = start - 1
        longest = self._lengths[-1] if self._lengths else 0
        starts = {start}
        while index >= 0 and start - index < longest:
            if any(end in starts and text[index:end] in self._beginnings for end in self._ends(index, text)):
                starts.add(index)
                start = index
            index -= 1
        return start

    def _ends(self, index: int, text: str) -> range:
        return range(index + 1, min(len(text), index + self._lengths[-1]) + 1)


class _Bytes:
    """Text of ids, one after another; bytes wait until they are a character."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, token: int) -> str:
        byte = self._tokenizer.byte_values.get(token)
        if byte is not None:
            return self._utf8.decode(bytes((byte,)))
        return self.close() + self._tokenizer.decode((token,))

    def close(self) -> str:
        text = self._utf8.decode(b"", final=True)
        self._utf8.reset()
        return text


class _Clean:
    """Takes markers out of a text that comes bit by bit, and holds back what may become one."""

    def __init__(self, markers: Markers) -> None:
        self._markers = markers
        self._held = ""

    def feed(self, text: str) -> str:
        if not self._held and self._markers.first.isdisjoint(text):
            return text
        text = self._held + text
        text = "".join(text[index] for index in self._markers.left(text))
        end = self._markers.settled(text)
        if len(text) - end > _MOST_HELD:
            text, end = f"{text} ", len(text) + 1  # the space keeps its halves apart
        self._held = text[end:]
        return text[:end]

    def close(self) -> str:
        held, self._held = self._held, ""
        return held


class _Stop:
    """Cuts a text before the first stop string, and holds back what may become one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.found = False

    def feed(self, text: str) -> str:
        if self.found:
            return ""
        text = self._held + text
        # The one that is complete first, however the text is cut into bits.
        ends = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if ends:
            self.found, self._held = True, ""
            return text[: min(ends)[1]]
        longest = max(map(len, self._stops), default=1) - 1
        at = next(
            (
                start
                for start in range(max(0, len(text) - longest), len(text))
                if any(stop.startswith(text[start:]) for stop in self._stops)
            ),
            len(text),
        )
        self._held = text[at:]
        return text[:at]

    def close(self) -> str:
        held, self._held = self._held, ""
        return held


class Channels:
    """Reads a text as it is written.

    Thought channels are reasoning, also one that the text ends in. A text that is nothing but a thought is
    the answer, unless its reasoning is wanted.

    Args:
        tokenizer: of the model that writes.
        template: its chat layout.
        stop: strings that end the text; they and what follows are no part of it.
        reasoning: whether the reasoning is wanted.

    Attributes:
        stopped: whether a stop string was found; nothing more comes.
        tokens: ids that were read, up to the one that completed a stop string.
        reasoning_tokens: those of them that are in thought channels.
    """

    def __init__(
        self, tokenizer: Tokenizer, template: Template, *, stop: Sequence[str] = (), reasoning: bool = False
    ) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._markers = markers = Markers(tokenizer.control)
        self._wanted = reasoning
        self._bytes = _Bytes(tokenizer)
        self._text, self._thought = _Clean(markers), _Clean(markers)
        self._stop = _Stop(stop)
        self._inside = False
        self._name = ""
        self._answered = False
        self._thoughts: list[str] = []
        self.tokens = 0
        self.reasoning_tokens = 0

    @property
    def stopped(self) -> bool:
        """Whether a stop string was found."""
        return self._stop.found

    def feed(self, ids: Iterable[int]) -> Piece:
        """What ids that follow those before bring to light."""
        pieces = []
        for token in ids:
            if self.stopped:
                break
            self.tokens += 1
            self.reasoning_tokens += self._inside or token == self._template.channel
            pieces.append(self._one(token))
        return _joined(pieces)

    def close(self) -> Piece:
        """What is left at the end of the text."""
        if self.stopped:
            return Piece()
        pieces = [self._put(self._bytes.close()), self._leave()]
        pieces += [self._thinks(self._thought.close()), self._says(self._text.close())]
        if not (self._answered or self._wanted):
            pieces.append(self._says("".join(self._thoughts)))
        if not self.stopped:
            pieces.append(Piece(text=self._stop.close()))
        return _joined(pieces)

    def draft(self, ids: Sequence[int], kept: Sequence[bool]) -> tuple[str, list[tuple[int, int]]]:
        """A canvas that is being refined, thoughts too: its text without markers, and which spans are kept.

        Args:
            ids: the canvas.
            kept: which of them are kept.
        """
        shown = [pair for pair in zip(ids, kept, strict=True) if not self._template.is_control(pair[0])]
        characters: list[str] = []
        sure: list[bool] = []
        for is_kept, run in groupby(shown, key=lambda pair: pair[1]):
            text = self._tokenizer.decode([one for one, _ in run])
            characters += text
            sure += [is_kept] * len(text)
        left = self._markers.left(characters)
        spans: list[tuple[int, int]] = []
        place = 0
        for is_kept, run in groupby(left, key=lambda index: sure[index]):
            end = place + sum(1 for _ in run)
            if is_kept:
                spans.append((place, end))
            place = end
        return "".join(characters[index] for index in left), spans

    def _one(self, token: int) -> Piece:
        if not self._template.is_control(token):
            return self._put(self._bytes.feed(token))
        piece = self._put(self._bytes.close())
        if token == self._template.channel:
            piece = _joined((piece, self._leave()))
            self._inside, self._name = True, _NAME
        elif token == self._template.channel_end:
            piece = _joined((piece, self._leave()))
        return piece

    def _put(self, text: str) -> Piece:
        """More text where the text is now."""
        if not self._inside:
            return self._says(self._text.feed(text))
        # The channel's name, as far as it is there, is not part of the thought.
        while text and self._name and text[0] == self._name[0]:
            text, self._name = text[1:], self._name[1:]
        if not text:
            return Piece()
        begun, self._name = _NAME[: len(_NAME) - len(self._name)] if self._name else "", ""
        return self._thinks(self._thought.feed(begun + text))

    def _leave(self) -> Piece:
        """The end of a channel, if there is one; what began like its name and was not, is a thought."""
        begun = _NAME[: len(_NAME) - len(self._name)] if self._name else ""
        inside, self._inside, self._name = self._inside, False, ""
        return self._thinks(self._thought.feed(begun)) if inside and begun != _NAME.rstrip() else Piece()

    def _says(self, text: str) -> Piece:
        self._answered = self._answered or bool(text.strip())
        return Piece(text=self._stop.feed(text))

    def _thinks(self, text: str) -> Piece:
        if self._wanted:
            return Piece(reasoning=text)
        if not self._answered:
            self._thoughts.append(text)
        return Piece()


def _joined(pieces: Sequence[Piece]) -> Piece:
    if len(pieces) == 1:
        return pieces[0]
    return Piece("".join(one.text for one in pieces), "".join(one.reasoning for one in pieces))
