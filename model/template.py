"""The chat layout in token ids: turns and the empty thought channel."""

from __future__ import annotations

from jev.model.tokenizer import Tokenizer


class Template:
    r"""Builds the fixed parts around texts; each text between two control tokens is one segment.

    `<bos><|turn>system\n{system}<turn|>\n<|turn>user\n{user}<turn|>\n<|turn>model\n`
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._encode = tokenizer.encode
        self.bos = tokenizer.control_id("<bos>")
        self.pad = tokenizer.control_id("<pad>")
        self.turn = tokenizer.control_id("<|turn>")
        self.turn_end = tokenizer.control_id("<turn|>")
        channel, channel_end = tokenizer.control_id("<|channel>"), tokenizer.control_id("<channel|>")
        self.empty_thought = (channel, *tokenizer.encode("thought\n"), channel_end)
        """What the model writes before an answer when it does not think."""
        self.answer_turn = (self.turn_end, *tokenizer.encode("\n"), self.turn, *tokenizer.encode("model\n"))
        """Ends the user's turn and opens the model's."""

    def open_user(self, system: str, user: str = "") -> tuple[int, ...]:
        """Ids up to and including `user`, whose turn stays open."""
        return (
            self.bos,
            self.turn,
            *self._encode("system\n" + system),
            self.turn_end,
            *self._encode("\n"),
            self.turn,
            *self._encode("user\n" + user),
        )
