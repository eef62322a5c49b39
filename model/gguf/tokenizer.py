"""A GGUF file's vocabulary as a tokenizer, and the check of its chat template."""

from __future__ import annotations

import re
from typing import Any

from jev.model.errors import CheckpointError
from jev.model.gguf.container import GGUFFile
from jev.model.tokenizer import Tokenizer, is_control_name

MODEL = "gemma4"

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""`tokenizer.ggml.token_type`."""

_BYTE = re.compile(r"<0x[0-9A-F]{2}>")


def tokenizer_of(file: GGUFFile) -> Tokenizer:
    """The tokenizer that a file's metadata describes, as safe from control tokens in text as any other.

    Raises:
        CheckpointError: naming the key that is missing or wrong.
    """
    check_template(file)
    return Tokenizer(spec_of(file), str(file.path))


def check_template(file: GGUFFile) -> None:
    """Refuse a chat template that does not make the turns that prompts are built with; none is fine.

    Raises:
        CheckpointError: it writes no `<|turn>` or no `<turn|>`.
    """
    if "tokenizer.chat_template" in file.metadata:
        template = file.metadata.text("tokenizer.chat_template")
        for name in ("<|turn>", "<turn|>"):
            if name not in template:
                raise CheckpointError(f"{file.path} has a tokenizer.chat_template without {name}")


def spec_of(file: GGUFFile) -> dict[str, Any]:
    """The vocabulary in the form of `tokenizer.json`.

    Raises:
        CheckpointError: naming the key that is missing or wrong.
    """
    metadata = file.metadata
    model = metadata.text("tokenizer.ggml.model")
    if model != MODEL:
        raise CheckpointError(f"{file.path} has the tokenizer {model[:100]!r}, expected {MODEL!r}")
    if metadata.flag("tokenizer.ggml.add_space_prefix", False):
        raise CheckpointError(f"{file.path} has tokenizer.ggml.add_space_prefix, which is not supported")
    tokens = metadata.strings("tokenizer.ggml.tokens")
    types = metadata.integers("tokenizer.ggml.token_type", most=BYTE)
    if len(types) != len(tokens):
        raise CheckpointError(
            f"{file.path} has {len(types)} values at tokenizer.ggml.token_type for {len(tokens)} tokens"
        )
    vocab = {token: number for number, token in enumerate(tokens)}
    if len(vocab) != len(tokens) or "" in vocab:
        raise CheckpointError(f"{file.path} has a token twice or an empty one at tokenizer.ggml.tokens")
    unknown = metadata.integer("tokenizer.ggml.unknown_token_id", vocab.get("<unk>"), least=0)
    if unknown >= len(tokens):
        raise CheckpointError(
            f"{file.path} has {unknown} at tokenizer.ggml.unknown_token_id, past its tokens"
        )
    return {
        "version": "1.0",
        "added_tokens": [
            _added(number, token, kind)
            for number, (token, kind) in enumerate(zip(tokens, types, strict=True))
            if kind in (UNKNOWN, CONTROL, USER_DEFINED) or is_control_name(token)
        ],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
            ],
        },
        "model": {
            "type": "BPE",
            "unk_token": tokens[unknown],
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": vocab,
            "merges": [_merge(file, one, vocab) for one in metadata.strings("tokenizer.ggml.merges")],
        },
    }


def _added(number: int, token: str, kind: int) -> dict[str, Any]:
    special = kind in (UNKNOWN, CONTROL)
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": number, "content": token, "special": special, **flags}


def _merge(file: GGUFFile, merge: str, vocab: dict[str, int]) -> list[str]:
    """The two pieces of a merge, which are written with a space between."""
    pieces = merge.split(" ")
    if len(pieces) != 2 or pieces[0] not in vocab or pieces[1] not in vocab or "".join(pieces) not in vocab:
        raise CheckpointError(
            f"{file.path} has the merge {merge[:100]!r}, which is not of two tokens to a third"
        )
    return pieces


def type_of(token: str, *, special: bool, added: bool) -> int:
    """The type that a token of a `tokenizer.json` has in a GGUF file."""
    if special:
        return CONTROL
    if added:
        return USER_DEFINED
    return BYTE if _BYTE.fullmatch(token) else NORMAL
