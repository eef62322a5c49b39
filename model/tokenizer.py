"""Text to ids and back. Text is always plain text here: control tokens exist only by name."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import tokenizers

from jev.model.config import read_json
from jev.model.errors import CheckpointError

_CONTROL = re.compile(
    r"<\|.*|.*\|>|<(pad|eos|bos|unk|mask)>|<unused\d+>|<(start|end)_of_\w+>|\[multimodal\]|\[@BOS@\]"
)
"""Added tokens that structure a prompt, whether or not the file calls them special."""


class Tokenizer:
    """A checkpoint's `tokenizer.json`, unable to produce control tokens from text.

    Attributes:
        longest: characters of the longest token; text of n characters has at least n / longest
            tokens, which bounds a text's length before it is encoded.
        byte_values: what the tokens that stand for one byte of UTF-8 each stand for, by id.
    """

    def __init__(self, spec: dict, source: str = "tokenizer.json") -> None:
        """Build from decoded JSON; `source` is what errors call it.

        Raises:
            CheckpointError: one sentence naming what is wrong.
        """
        self._source = source
        try:
            added = spec.get("added_tokens") or []
            self.control = {one["content"]: one["id"] for one in added if _is_control(one)}
            for one in added:
                one["special"] = one["content"] in self.control
            self._tokenizer = tokenizers.Tokenizer.from_str(json.dumps(spec))
        except Exception as error:
            raise CheckpointError(f"{self._source} cannot be used: {error}") from None
        # Special tokens in text are split like any other text.
        self._tokenizer.encode_special_tokens = True
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        vocabulary = self._tokenizer.get_vocab()
        if not vocabulary:
            raise CheckpointError(f"{self._source} has no tokens")
        for content, index in self.control.items():
            if self._tokenizer.token_to_id(content) != index:
                raise CheckpointError(
                    f"{self._source} gives control token {content} the id {index} of another token"
                )
        self.vocab_size = max(vocabulary.values()) + 1
        self.longest = max(map(len, vocabulary))
        names = ((byte, f"<0x{byte:02X}>") for byte in range(256))
        self.byte_values = {vocabulary[name]: byte for byte, name in names if name in vocabulary}
        self._check_control()

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer:
        """Load `tokenizer.json` from a checkpoint folder."""
        return cls(read_json(folder / "tokenizer.json"))

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, every character of it read as text."""
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`, control tokens included."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)

    def control_id(self, name: str) -> int:
        """The id of a control token such as `<|turn>`."""
        if name not in self.control:
            raise CheckpointError(f"{self._source} has no control token {name}")
        return self.control[name]

    def has_control(self, name: str) -> bool:
        """Whether there is a control token of this name."""
        return name in self.control

    def single(self, text: str) -> int | None:
        """The id of `text` if it is exactly one token that decodes to it, else None."""
        ids = self.encode(text)
        return ids[0] if len(ids) == 1 and self.decode(ids) == text else None

    def _check_control(self) -> None:
        ids = set(self.control.values())
        for content in self.control:
            if ids.intersection(self.encode(content)):
                raise CheckpointError(f"{self._source} turns the text {content!r} into a control token")


def _is_control(added: dict) -> bool:
    return bool(added.get("special")) or is_control_name(added["content"])


def is_control_name(token: str) -> bool:
    """Whether a token of this name structures a prompt, whatever a file calls it."""
    return _CONTROL.fullmatch(token) is not None
