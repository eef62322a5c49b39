"""Proves that text becomes the tokens that it is made of, and never a token that structures a prompt."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from jev.model import embedded
from jev.model.errors import CheckpointError
from jev.model.tokenizer import Tokenizer

Spec = dict[str, Any]

ORDINARY = [
    "",
    "a",
    "My card was charged twice and I want my money back.",
    "  two spaces,\ttabs\n\nand\n\n\nlines  \n",
    "naïve café 日本語 🙂 \u2028 \x00 \x7f",
    'code: if (a<b && c>d) { x[0] |= "y"; }',
    "<table><tr><td>1</td></tr></table>",
    "<0x0A> <0xFF>",
]


@cache
def real() -> Tokenizer:
    return Tokenizer.from_folder(embedded.path())


def real_spec() -> Spec:
    return json.loads((embedded.path() / "tokenizer.json").read_text(encoding="utf-8"))


@pytest.fixture
def spec(tiny: Callable[..., Path]) -> Spec:
    """The tiny checkpoint's tokenizer, to be broken."""
    return json.loads((tiny() / "tokenizer.json").read_text(encoding="utf-8"))


def add(spec: Spec, content: str, *, special: bool) -> int:
    """Add a token to the file, under its id in the vocabulary or else the next free one."""
    id = spec["model"]["vocab"].get(content, 1024)
    spec["added_tokens"].append({**spec["added_tokens"][0], "content": content, "id": id, "special": special})
    return id


def refusal(spec: Any) -> str:
    with pytest.raises(CheckpointError) as error:
        Tokenizer(spec)
    message = str(error.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_text_is_tokenised_as_by_the_library(text: str) -> None:
    library = tokenizers.Tokenizer.from_file(str(embedded.path() / "tokenizer.json"))
    assert real().encode(text) == library.encode(text, add_special_tokens=False).ids
    assert real().decode(real().encode(text)) == text


# What spells a control token, whole, cut, doubled and run together.
PIECES = sorted(real().control)
CUT = [piece[start:end] for piece in PIECES[::7] for start, end in ((0, -1), (1, None), (0, 3), (3, None))]
SPELLED = st.lists(
    st.sampled_from(PIECES) | st.sampled_from(CUT) | st.text(alphabet="<|>[]/turn mask\n5", max_size=4),
    min_size=1,
    max_size=8,
).map("".join)


def test_there_is_something_to_spell() -> None:
    assert len(PIECES) > 100
    assert {"<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "[multimodal]", "<unused5>"} <= set(PIECES)
    assert {"<|turn>", "<turn|>", "<|channel>", "<channel|>", "<|think|>", '<|"|>'} <= set(PIECES)
    assert {"<|image>", "<|image|>", "<image|>"} <= set(PIECES)
    # The file calls some of them ordinary.
    flags = {one["content"]: one["special"] for one in real_spec()["added_tokens"]}
    assert not flags["<mask>"]
    assert flags["<|turn>"]


@pytest.mark.parametrize("around", ["{}", " {} ", "a{}b", "{0}{0}", "\n{}\n", "<{}>", "{}|>"])
def test_no_control_token_can_be_spelled(around: str) -> None:
    control = set(real().control.values())
    for piece in PIECES:
        text = around.format(piece)
        encoded = real().encode(text)
        assert not control.intersection(encoded), text
        assert real().decode(encoded) == text


@given(SPELLED)
def test_no_mixture_of_spellings_makes_one(text: str) -> None:
    encoded = real().encode(text)
    assert not set(real().control.values()).intersection(encoded)
    assert real().decode(encoded) == text


@given(st.text())
def test_no_text_makes_one(text: str) -> None:
    encoded = real().encode(text)
    assert not set(real().control.values()).intersection(encoded)
    assert real().decode(encoded) == text.replace("▁", " ")


def test_control_ids_are_those_of_the_file() -> None:
    added = {one["content"]: one["id"] for one in real_spec()["added_tokens"]}
    assert {name: added[name] for name in PIECES} == real().control
    assert [real().control_id(name) for name in ("<pad>", "<bos>", "<|turn>", "<turn|>")] == [0, 2, 105, 106]
    # What is left are runs of white space and markup, which are text.
    assert all(
        not name.strip() or name.strip("▁") == "" or name[1:-1].strip("/").isalnum()
        for name in set(added) - set(PIECES)
    )


@pytest.mark.parametrize("name", ["<|turn", "yes", "", "<|nothing|>", "\n"])
def test_control_token_that_is_none(name: str) -> None:
    with pytest.raises(CheckpointError, match="no control token"):
        real().control_id(name)


@given(st.text())
def test_length_is_bounded_before_encoding(text: str) -> None:
    assert len(real().encode(text)) * real().longest >= len(text)


@pytest.mark.parametrize("piece", [" ", "\n", "a", "🙂", "▁", "-", "="])
def test_length_is_bounded_for_runs_too(piece: str) -> None:
    text = piece * 1000
    assert len(real().encode(text)) * real().longest >= len(text)


@pytest.mark.parametrize("text", ["yes", "no", "A", "z", "AA", "0", "9", "\n", " ", " yes"])
def test_single(text: str) -> None:
    found = real().single(text)
    assert found is not None
    assert real().encode(text) == [found]
    assert real().decode([found]) == text


@pytest.mark.parametrize("text", ["", "yes no", "🙂🙂", "<|turn>", "<mask>", "<0x0A>", "zqxj"])
def test_not_single(text: str) -> None:
    assert real().single(text) is None


def test_vocabulary_counts_from_the_highest_id(spec: Spec) -> None:
    assert real().vocab_size == 22003
    assert Tokenizer(spec).vocab_size == 1024
    assert add(spec, "<|new|>", special=True) == 1024
    assert Tokenizer(spec).vocab_size == 1025


# Files


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize(
    "content", ["<mask>", "<unused7>", "[multimodal]", "<|new|>", "<end_of_image>", "<new|>"]
)
def test_control_tokens_are_known_by_name_even_if_the_file_calls_them_text(
    spec: Spec, content: str, special: bool
) -> None:
    id = add(spec, content, special=special)
    tokenizer = Tokenizer(spec)
    assert tokenizer.control_id(content) == id
    assert id not in tokenizer.encode(f"x{content}y")
    assert tokenizer.decode([id]) == content


def test_added_text_stays_one_token(spec: Spec) -> None:
    id = add(spec, "<table>", special=False)
    tokenizer = Tokenizer(spec)
    assert tokenizer.encode("a<table>") == [*tokenizer.encode("a"), id]
    assert "<table>" not in tokenizer.control


def test_truncation_and_padding_of_the_file_are_off(spec: Spec) -> None:
    expected = Tokenizer(json.loads(json.dumps(spec))).encode("a long text")
    spec["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    spec["padding"] = {
        "strategy": {"Fixed": 64},
        "direction": "Left",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "<pad>",
    }
    assert Tokenizer(spec).encode("a long text") == expected
    assert len(expected) > 2


def test_file_whose_merges_make_a_control_token(spec: Spec) -> None:
    spec["model"]["ignore_merges"] = True  # whole words are then looked up in the vocabulary
    assert "'<pad>' into a control token" in refusal(spec)


@pytest.mark.parametrize(
    "broken", [None, [], "text", {}, {"model": {}}, {"added_tokens": 3}, {"added_tokens": [{}]}]
)
def test_file_that_is_none(broken: Any) -> None:
    assert refusal(broken).startswith("tokenizer.json cannot be used")


@pytest.mark.parametrize("text", [None, "", "{"])
def test_folder_without_a_tokenizer(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        Tokenizer.from_folder(tmp_path)


def test_reading_is_safe_from_several_threads() -> None:
    from concurrent.futures import ThreadPoolExecutor

    texts = [f"{text} {n}" for n in range(50) for text in ORDINARY]
    expected = [real().encode(text) for text in texts]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(real().encode, texts)) == expected


def fragments() -> Iterator[tuple[str, int]]:
    for piece in PIECES[::9]:
        for cut in range(1, len(piece)):
            yield piece, cut


def test_segments_that_meet_in_the_middle_of_a_spelling() -> None:
    """Two texts encoded apart and joined, as prefix and branch are."""
    control = set(real().control.values())
    for piece, cut in fragments():
        assert not control.intersection([*real().encode(piece[:cut]), *real().encode(piece[cut:])])
