"""Thoughts leave the text, no marker reaches a caller however it comes about, and bits add up to a whole."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jev.channels import Channels, Markers, Piece
from jev.model import embedded
from jev.model.template import Template
from jev.model.tokenizer import Tokenizer

MARKERS = (
    "<|channel>",
    "<channel|>",
    "<|turn>",
    "<turn|>",
    "<|think|>",
    "<|image|>",
    "<|tool_response>",
    '<|"|>',
)


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(embedded.path())


@cache
def template() -> Template:
    return Template(tokenizer())


def plain(text: str) -> list[int]:
    return tokenizer().encode(text)


def control(name: str) -> int:
    return tokenizer().control_id(name)


def ids(*parts: str) -> list[int]:
    """Ids of parts: a control token by its name, or plain text."""
    return [
        one for part in parts for one in ([control(part)] if part in tokenizer().control else plain(part))
    ]


def byte(value: int) -> int:
    return next(token for token, one in tokenizer().byte_values.items() if one == value)


def read(
    tokens: Sequence[int], cuts: Iterable[int] = (), *, stop: Sequence[str] = (), reasoning: bool = False
) -> tuple[list[Piece], Channels]:
    """The pieces of a text that comes in blocks, which end at `cuts`."""
    channels = Channels(tokenizer(), template(), stop=stop, reasoning=reasoning)
    places = [0, *sorted({min(cut, len(tokens)) for cut in cuts}), len(tokens)]
    pieces = [channels.feed(tokens[start:end]) for start, end in pairwise(places)]
    return [*pieces, channels.close()], channels


def text_of(pieces: Iterable[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def reasoning_of(pieces: Iterable[Piece]) -> str:
    return "".join(piece.reasoning for piece in pieces)


THOUGHT = ("<|channel>", "thought\n")


@pytest.mark.parametrize(
    ("parts", "text", "reasoning"),
    [
        (("Hello.",), "Hello.", ""),
        ((*THOUGHT, "<channel|>", "Hello."), "Hello.", ""),
        (("<|channel>", "thought", "<channel|>", "Hello."), "Hello.", ""),
        (("<|channel>", "<channel|>", "Hello."), "Hello.", ""),
        ((*THOUGHT, "It greets.", "<channel|>", "Hello."), "Hello.", "It greets."),
        (("So: ", *THOUGHT, "hm", "<channel|>", "yes"), "So: yes", "hm"),
        ((*THOUGHT, "one ", "<channel|>", "a", *THOUGHT, "two", "<channel|>", "b"), "ab", "one two"),
        (("Hello.", *THOUGHT, "and then"), "Hello.", "and then"),
        (("<|channel>", "tho", "<channel|>", "a"), "a", "tho"),
        (("<|channel>", "though\nt", "<channel|>", "a"), "a", "though\nt"),
        (("<|channel>", "analysis", "<channel|>", "a"), "a", "analysis"),
        (("a", "<channel|>", "b"), "ab", ""),
        ((*THOUGHT, "x", *THOUGHT, "y", "<channel|>", "a"), "a", "xy"),
        (("a", "<turn|>", "<|turn>", "b", "<pad>", "<eos>", "<bos>"), "ab", ""),
    ],
)
def test_thoughts_are_apart(parts: tuple[str, ...], text: str, reasoning: str) -> None:
    pieces, _ = read(ids(*parts), reasoning=True)
    assert (text_of(pieces), reasoning_of(pieces)) == (text, reasoning)
    pieces, _ = read(ids(*parts))
    assert (text_of(pieces), reasoning_of(pieces)) == (text, "")


@pytest.mark.parametrize("end", [("<channel|>",), (), ("<channel|>", "\n")])
def test_a_text_that_is_nothing_but_a_thought_is_the_answer(end: tuple[str, ...]) -> None:
    pieces, _ = read(ids(*THOUGHT, "Paris.", *end))
    assert text_of(pieces).strip() == "Paris."
    assert reasoning_of(pieces) == ""
    pieces, _ = read(ids(*THOUGHT, "Paris.", *end), reasoning=True)
    assert text_of(pieces).strip() == ""
    assert reasoning_of(pieces) == "Paris."


def test_such_an_answer_stops_too() -> None:
    pieces, channels = read(ids(*THOUGHT, "Paris. Or Rome.", "<channel|>"), stop=["Or"])
    assert text_of(pieces) == "Paris. "
    assert channels.stopped


@pytest.mark.parametrize("marker", MARKERS)
@pytest.mark.parametrize("around", ["{}", "a{}b", "{0}{0}", "<|chan{}nel>", "<|turn<|chan{}nel>>"])
def test_spelled_markers_are_taken_out(marker: str, around: str) -> None:
    spelled = plain(around.format(marker))
    assert not any(template().is_control(one) for one in spelled)
    for cuts in ((), range(len(spelled))):
        pieces, _ = read(spelled, cuts)
        assert not any(one in text_of(pieces) for one in MARKERS)
    kept = around.replace("{}", "").replace("{0}", "")
    assert text_of(read(spelled)[0]) == kept.replace("<|channel>", "").replace("<|turn>", "")


def test_a_marker_between_two_halves_does_not_join_them() -> None:
    pieces, _ = read(ids("a<|chan", "<turn|>", "nel>b"))
    assert text_of(pieces) == "ab"
    pieces, _ = read(ids("a<|chan", *THOUGHT, "hm", "<channel|>", "nel>b"), reasoning=True)
    assert text_of(pieces) == "ab"


@pytest.mark.parametrize(
    "text", ["a < b", "<p>x</p>", "<", "<|", "x <|channel", "1 <| 2 |> 3", "<<<<", "|>", "<t"]
)
def test_what_only_looks_like_one_stays(text: str) -> None:
    pieces, _ = read(plain(text), range(99))
    assert text_of(pieces) == text


def test_very_many_halves_are_let_go_apart() -> None:
    spelled = plain("<|chan" * 500 + "nel>" * 500)
    text = text_of(read(spelled, range(0, len(spelled), 256))[0])
    assert not any(one in text for one in MARKERS)


@pytest.mark.parametrize(
    ("stop", "left"),
    [
        (["lo w"], "Hel"),
        (["H"], ""),
        (["ld"], "Hello wor"),
        (["lo world, and"], "Hello world"),
        (["world", "lo"], "Hel"),
        (["Hello world!", "o w"], "Hell"),
        (["z", ""], "Hello world"),
        (["ö"], "Hello world"),
    ],
)
def test_stop_strings_end_a_text_wherever_blocks_end(stop: list[str], left: str) -> None:
    tokens = plain("Hello world")
    for cuts in ((), range(len(tokens)), (2,), (5,)):
        pieces, channels = read(tokens, cuts, stop=stop)
        assert text_of(pieces) == left
        assert channels.stopped == (left != "Hello world")


def test_tokens_are_counted_up_to_the_stop_string() -> None:
    tokens = plain("one two three four five")
    _, channels = read(tokens, stop=["three"])
    assert channels.tokens == len(plain("one two three"))
    assert channels.feed(plain("six")) == Piece()
    _, channels = read(ids(*THOUGHT, "hm", "<channel|>", "a"))
    assert channels.tokens == len(ids(*THOUGHT, "hm", "<channel|>", "a"))
    assert channels.reasoning_tokens == channels.tokens - 1


def test_stop_strings_in_thoughts_stop_nothing() -> None:
    pieces, channels = read(ids(*THOUGHT, "END", "<channel|>", "a END b"), stop=["END"], reasoning=True)
    assert (text_of(pieces), reasoning_of(pieces)) == ("a ", "END")
    assert channels.stopped


def test_characters_come_whole_across_blocks() -> None:
    emoji = [byte(one) for one in "😀".encode()]
    pieces, _ = read([*plain("a"), *emoji, *plain("b")], range(9))
    assert [piece.text for piece in pieces if piece.text] == ["a", "😀", "b"]
    assert text_of(read(emoji[:3])[0]) == "�"
    assert text_of(read([*emoji[:2], *plain("a"), byte(0xFF), *plain("b")])[0]) == "�a�b"
    # Bytes of two channels are no character together.
    tokens = [*ids(*THOUGHT), *emoji[:2], control("<channel|>"), *emoji[2:]]
    pieces, _ = read(tokens, reasoning=True)
    assert (text_of(pieces), reasoning_of(pieces)) == ("��", "�")


def test_bytes_can_spell_a_marker_as_well() -> None:
    assert text_of(read([byte(one) for one in b"a<|channel>b"], range(20))[0]) == "ab"


@given(
    parts=st.lists(
        st.sampled_from(
            [*MARKERS, *("thought\n", "a", " b", "<|chan", "nel>", "<", "|>", "<turn", "END", "EN", "D")]
        )
        | st.integers(0, 255),
        max_size=24,
    ),
    spelled=st.integers(0, 2**24 - 1),
    cuts=st.lists(st.integers(0, 60), max_size=6),
    stop=st.sampled_from([(), ("END",), ("a b", "END"), ("<",), ("D", "ENDE")]),
    reasoning=st.booleans(),
)
@example(parts=["<|chan", "<turn|>", "nel>"], spelled=0, cuts=[1], stop=(), reasoning=False)
@example(parts=["<", "<turn|>", "|channel>"], spelled=2**24 - 1, cuts=[1], stop=(), reasoning=False)
def test_bits_add_up_and_hold_no_marker(
    parts: list[str | int], spelled: int, cuts: list[int], stop: tuple[str, ...], reasoning: bool
) -> None:
    tokens: list[int] = []
    for index, part in enumerate(parts):
        if isinstance(part, int):
            tokens.append(byte(part))
        else:
            tokens += plain(part) if spelled >> index & 1 else ids(part)
    pieces, channels = read(tokens, cuts, stop=stop, reasoning=reasoning)
    at_once, other = read(tokens, stop=stop, reasoning=reasoning)
    text, thoughts = text_of(pieces), reasoning_of(pieces)
    assert (text, thoughts) == (text_of(at_once), reasoning_of(at_once))
    assert (channels.tokens, channels.stopped) == (other.tokens, other.stopped)
    for marker in MARKERS:
        assert marker not in text
        assert marker not in thoughts
    assert not any(one in text for one in stop)
    text.encode()


@given(st.lists(st.sampled_from([*MARKERS, *"<|>channelturn", "ab"]), max_size=40).map("".join))
def test_a_draft_has_no_marker_and_its_spans_are_where_they_were(text: str) -> None:
    channels = Channels(tokenizer(), template())
    tokens = [*plain(text), control("<channel|>"), control("<pad>")]
    whole, none = channels.draft(tokens, [False] * len(tokens))
    assert none == []
    assert not any(marker in whole for marker in MARKERS)
    kept = [index % 3 == 0 for index in range(len(tokens))]
    shown, spans = channels.draft(tokens, kept)
    assert shown == whole
    assert all(0 <= start < end <= len(shown) for start, end in spans)
    assert all(one[1] < two[0] for one, two in pairwise(spans))
    _, all_of_it = channels.draft(tokens, [True] * len(tokens))
    assert all_of_it == ([(0, len(whole))] if whole else [])


def test_markers_settle_only_what_cannot_become_one() -> None:
    markers = Markers(MARKERS)
    assert markers.settled("abc") == 3
    assert markers.settled("ab<|chan") == 2
    assert markers.settled("ab<|chan<|tu") == 2
    assert markers.settled("ab<|chanx<|tu") == 9
    assert markers.settled("<<") == 0
    assert Markers(()).settled("<<") == 2
