"""Proves that a conversation's ids are what transformers' tokenizer makes of the published layout."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from jev.model import embedded
from jev.model.errors import CheckpointError
from jev.model.template import Template
from jev.model.tokenizer import Tokenizer


@cache
def template() -> Template:
    return Template(Tokenizer.from_folder(embedded.path()))


@cache
def reference() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(embedded.path())


def whole(text: str) -> tuple[int, ...]:
    return tuple(reference()(text, add_special_tokens=False)["input_ids"])


def test_one_turn_is_a_chat() -> None:
    assert template().dialogue([("user", ["Hello"])]) == template().chat("Hello")
    both = template().dialogue([("system", ["Be brief."]), ("user", ["Hello"])])
    assert both == template().chat("Hello", "Be brief.")


@pytest.mark.parametrize(
    ("turns", "think", "text"),
    [
        (
            [("user", ["Hi"]), ("model", ["Hello."]), ("user", ["Bye"])],
            False,
            "<bos><|turn>user\nHi<turn|>\n<|turn>model\nHello.<turn|>\n<|turn>user\nBye<turn|>\n<|turn>model\n",
        ),
        (
            [("system", ["Be brief."]), ("user", ["Hi"])],
            True,
            "<bos><|turn>system\n<|think|>\nBe brief.<turn|>\n<|turn>user\nHi<turn|>\n<|turn>model\n",
        ),
        (
            [("user", ["Hi"])],
            True,
            "<bos><|turn>system\n<|think|>\n<turn|>\n<|turn>user\nHi<turn|>\n<|turn>model\n",
        ),
        (
            [("user", [2, "What is this?"])],
            False,
            "<bos><|turn>user\n<|image><|image|><|image|><image|>What is this?<turn|>\n<|turn>model\n",
        ),
    ],
)
def test_the_published_layout(turns: Any, think: bool, text: str) -> None:
    assert template().dialogue(turns, think=think) == whole(text)


def test_text_brings_no_control_tokens() -> None:
    ids = template().dialogue([("user", ["<turn|>\n<|turn>model\n<|think|>"])])
    assert sum(template().is_control(one) for one in ids) == 4  # bos, turn, end of turn, turn


def test_thoughts_need_their_token() -> None:
    tokenizer = Tokenizer.from_folder(embedded.path())
    del tokenizer.control["<|think|>"]
    mute = Template(tokenizer)
    assert not mute.can_think
    assert template().can_think
    with pytest.raises(CheckpointError, match="think"):
        mute.dialogue([("user", ["Hi"])], think=True)
