"""The chat layout in token ids: turns and the empty thought channel."""

from __future__ import annotations

from collections.abc import Sequence

from jev.model.errors import CheckpointError
from jev.model.tokenizer import Tokenizer


class Template:
    r"""Builds the fixed parts around texts; each text between two control tokens is one segment.

    `<bos><|turn>system\n{system}<turn|>\n<|turn>user\n{user}<turn|>\n<|turn>model\n`
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._encode = tokenizer.encode
        self._control = frozenset(tokenizer.control.values())
        self.bos = tokenizer.control_id("<bos>")
        self.pad = tokenizer.control_id("<pad>")
        self.turn = tokenizer.control_id("<|turn>")
        self.turn_end = tokenizer.control_id("<turn|>")
        self._images = [
            tokenizer.control_id(name) if tokenizer.has_control(name) else None
            for name in ("<|image>", "<|image|>", "<image|>")
        ]
        self.channel, self.channel_end = (
            tokenizer.control_id("<|channel>"),
            tokenizer.control_id("<channel|>"),
        )
        self._think = tokenizer.control_id("<|think|>") if tokenizer.has_control("<|think|>") else None
        self.empty_thought = (self.channel, *tokenizer.encode("thought\n"), self.channel_end)
        """What the model writes before an answer when it does not think."""
        self.model_turn = (self.turn, *tokenizer.encode("model\n"))
        """Opens the model's turn."""
        self.answer_turn = (self.turn_end, *tokenizer.encode("\n"), *self.model_turn)
        """Ends the user's turn and opens the model's."""

    def open_user(
        self, system: str | Sequence[str | int], user: str | Sequence[str | int] = ""
    ) -> tuple[int, ...]:
        """Ids up to and including the user's text or parts, whose turn stays open; see `rows`."""
        opened = (self.bos, *self._turn("system\n", system))
        return (*opened, self.turn_end, *self._encode("\n"), *self._turn("user\n", user))

    def chat(self, user: str | Sequence[str | int], system: str = "") -> tuple[int, ...]:
        """A prompt of one user's turn, behind a system turn if there is one; the model's turn is open."""
        line = self._encode("\n")
        before = (*self._turn("system\n", system), self.turn_end, *line) if system else ()
        return (self.bos, *before, *self._turn("user\n", user), *self.answer_turn)

    @property
    def can_think(self) -> bool:
        """Whether the tokenizer knows how a prompt asks for thoughts."""
        return self._think is not None

    def dialogue(
        self, turns: Sequence[tuple[str, Sequence[str | int]]], *, think: bool = False
    ) -> tuple[int, ...]:
        """A prompt of turns, each a role (system, user, model) and its parts; the model's next turn is open.

        With `think` the first turn, which is a system turn or else gets one before it, asks for thoughts.

        Raises:
            CheckpointError: for thoughts, where the tokenizer knows no token that asks for them.
        """
        turns = list(turns)
        line = self._encode("\n")
        ids = [self.bos]
        if think:
            if self._think is None:
                raise CheckpointError("tokenizer.json has no control token <|think|>")
            system = turns.pop(0)[1] if turns and turns[0][0] == "system" else ()
            asked = self._turn("\n", system)[1:]
            ids += [self.turn, *self._encode("system\n"), self._think, *asked, self.turn_end, *line]
        for role, parts in turns:
            ids += [*self._turn(f"{role}\n", parts), self.turn_end, *line]
        return (*ids, *self.model_turn)

    def shown(self, ids: Sequence[int]) -> tuple[int, ...]:
        """Ids that a reader of the model's turn sees: no thought channels and no control tokens.

        A turn that is nothing but thought is shown.
        """
        start, end = self.channel, self.channel_end
        outside: list[int] = []
        inside = False
        for one in ids:
            if one == start:
                inside = True
            elif one == end:
                inside = False
            elif not inside:
                outside.append(one)
        found = tuple(one for one in outside if not self.is_control(one))
        if found:
            return found
        name, thought = self.empty_thought[1:-1], tuple(one for one in ids if not self.is_control(one))
        return thought[len(name) :] if start in ids and thought[: len(name)] == name else thought

    def is_control(self, token: int) -> bool:
        """Whether an id structures a prompt and is no text."""
        return token in self._control

    def _turn(self, role: str, content: str | Sequence[str | int]) -> tuple[int, ...]:
        """A turn that stays open; its role and the text that follows are one segment."""
        parts = [content] if isinstance(content, str) else list(content)
        if parts and isinstance(parts[0], str):
            parts[0] = role + parts[0]
        else:
            parts.insert(0, role)
        return (self.turn, *self.rows(parts))

    @property
    def image_start(self) -> int | None:
        """The id that opens an image; None for a tokenizer that knows none."""
        return self._images[0]

    def rows(self, parts: Sequence[str | int]) -> tuple[int, ...]:
        """Ids of parts in order: text, or a number n = an image of n soft tokens between its brackets."""
        ids: list[int] = []
        for part in parts:
            if isinstance(part, str):
                ids += self._encode(part)
            else:
                start, image, end = self._images
                if start is None or image is None or end is None:
                    raise CheckpointError("tokenizer.json has no control tokens for images")
                ids += [start, *[image] * part, end]
        return tuple(ids)
