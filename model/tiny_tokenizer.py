"""Write a small tokenizer in the Gemma manner: BPE with byte fallback and `▁` for a space."""

from __future__ import annotations

import json
from itertools import islice, product
from pathlib import Path
from string import ascii_uppercase

from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

LEAST_VOCAB = 1024
"""Fewest ids that hold the control tokens, the bytes and the pieces."""

# The published ids; the three image tokens are the last ids of the vocabulary.
_CONTROL = {
    "<pad>": 0,
    "<eos>": 1,
    "<bos>": 2,
    "<unk>": 3,
    "<|tool>": 46,
    "<tool|>": 47,
    "<|tool_call>": 48,
    "<tool_call|>": 49,
    "<|tool_response>": 50,
    "<tool_response|>": 51,
    '<|"|>': 52,
    "<|think|>": 98,
    "<|channel>": 100,
    "<channel|>": 101,
    "<|turn>": 105,
    "<turn|>": 106,
}
_IMAGE = ("<|image>", "<|image|>", "<image|>")
_MASK_ID = 4
_NEWLINE_ID = 107  # "\n", then "\n\n" and "\n\n\n"
_SPACES_ID = 138  # two spaces
_BYTE_ID = 238  # <0x00> to <0xFF>
_PIECES_ID = _BYTE_ID + 256
_WORDS = """
    yes no system user model thought question answer Question Answer state label one with
    ▁the ▁a ▁to ▁of ▁and ▁is ▁in ▁it ▁for ▁on ▁you ▁that
"""
_LETTER_PAIRS = 9 * 26  # AA to IZ: with A-Z and a-z more than the 255 labels of the widest choice


def write_tiny_tokenizer(folder: Path, *, vocab: int, context: int) -> None:
    r"""Write `tokenizer.json` and `tokenizer_config.json` with exactly `vocab` ids.

    Control tokens have the published ids below 107 and, for images, the last three ids. Single
    tokens are: every printable ASCII character, "\n" and "\n\n", `yes`, `no`, a few words, and the
    upper-case pairs AA to IZ. Everything else falls back to bytes; ids left over are `<unusedN>`.
    """
    control = _CONTROL | {token: vocab - 3 + n for n, token in enumerate(_IMAGE)}
    pieces, merges = _pieces()
    ids = control | {"<mask>": _MASK_ID, "\n": _NEWLINE_ID, "\n\n": _NEWLINE_ID + 1}
    ids |= {"\n\n\n": _NEWLINE_ID + 2, "▁▁": _SPACES_ID}
    ids |= {f"<0x{byte:02X}>": _BYTE_ID + byte for byte in range(256)}
    ids |= {piece: _PIECES_ID + n for n, piece in enumerate(pieces)}
    free = sorted(set(range(vocab)) - set(ids.values()))
    ids |= {f"<unused{n}>": id for n, id in enumerate(free)}

    model = BPE(vocab=ids, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)  # noqa: S106
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A <bos>:1 $B:1", special_tokens=[("<bos>", control["<bos>"])]
    )
    special = sorted(control, key=control.__getitem__)
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    tokenizer.save(str(folder / "tokenizer.json"))

    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "mask_token": "<mask>",
        "boi_token": "<|image>",
        "image_token": "<|image|>",
        "eoi_token": "<image|>",
        "add_bos_token": False,
        "add_eos_token": False,
        "padding_side": "left",
        "clean_up_tokenization_spaces": False,
        "model_max_length": context,
        "added_tokens_decoder": {str(control[token]): {"content": token, **flags} for token in special},
    }
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _pieces() -> tuple[list[str], list[tuple[str, str]]]:
    """Return the ordinary pieces in id order, and the merges that make them, most urgent first."""
    pieces = dict.fromkeys(["▁", *map(chr, range(ord("!"), ord("~") + 1))])
    merges = {("\n", "\n"): None, ("\n\n", "\n"): None, ("▁", "▁"): None}
    for word in _WORDS.split():
        for end in range(2, len(word) + 1):
            merges[(word[: end - 1], word[end - 1])] = None
            pieces[word[:end]] = None
    for first, second in islice(product(ascii_uppercase, repeat=2), _LETTER_PAIRS):
        merges[(first, second)] = None
        pieces[first + second] = None
    return list(pieces), list(merges)
