"""What a text may take is counted in whole canvases and tiles; too much is capped or refused, by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jev.engine import Engine
from jev.errors import InvalidRequestError
from jev.writing import Room


@pytest.fixture(scope="module")
def writing(tiny: Path) -> Engine:
    return Engine.load(tiny)


def test_room_counts_whole_canvases_and_tiles() -> None:
    assert Room(100).canvases(20, 16) == 5
    assert Room(100).canvases(21, 16) == 4
    assert Room(100, tile=32).canvases(20, 16) == 4  # 96 rows, 32 for the prompt
    assert Room(100, tile=32).canvases(33, 16) == 2
    assert Room(100).canvases(101, 16) == 0
    assert Room(31, tile=32).canvases(1, 16) == 0


def test_max_tokens_is_capped_or_refused(writing: Engine) -> None:
    prompt = writing.context.template.chat("Hello.")
    most = (writing.max_context - len(prompt)) // 16 * 16
    assert writing.prepare_text(prompt, capped=True).options.max_tokens == most
    assert writing.prepare_text(prompt, capped=True, max_tokens=10**9).options.max_tokens == most
    assert writing.prepare_text(prompt, capped=True, max_tokens=7).options.max_tokens == 7
    assert writing.prepare_text(prompt, max_tokens=most).tokens <= writing.max_context
    with pytest.raises(InvalidRequestError, match=rf"max_tokens: .* room for {most}"):
        writing.prepare_text(prompt, max_tokens=most + 1)
    with pytest.raises(InvalidRequestError, match="max_tokens: Input should be greater"):
        writing.prepare_text(prompt, max_tokens=0)


def test_a_prompt_without_room_for_a_canvas_is_refused(writing: Engine) -> None:
    limit = writing.max_context - 16
    ids = [*writing.context.template.chat("Hello.")] * limit
    assert writing.prepare_text(ids[:limit], capped=True).options.max_tokens == 16
    with pytest.raises(
        InvalidRequestError, match=rf"messages: The prompt has {limit + 1} .* limit is {limit}"
    ):
        writing.prepare_text(ids[: limit + 1], capped=True, field="messages")
    with pytest.raises(InvalidRequestError, match="prompt: Input should have at least one token"):
        writing.prepare_text([])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_denoising_steps": 0}, "max_denoising_steps: Input must be a whole number"),
        ({"threshold": 1.5}, "threshold: Input must be"),
        ({"seed": -1}, "seed: Input must be"),
        ({"max_canvas": 17}, "max_canvas: Input must be"),
    ],
)
def test_options_out_of_range_are_named(writing: Engine, given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        writing.prepare_text(writing.context.template.chat("Hello."), **given)
