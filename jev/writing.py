"""Texts that are to be written: what is asked of the model, how much room it takes, and what comes of it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from jev.errors import InvalidRequestError
from jev.model.config import ModelConfig
from jev.model.pixels import Patches
from jev.model.template import Template
from jev.model.writing import Options
from jev.plan import Adapted, PlacedImage


@dataclass(frozen=True)
class TextPlan:
    """A text to be written, checked against the model and its limits.

    Attributes:
        prompt: ids; the model's turn is open.
        options: how to write.
        images: pictures among the prompt's ids.
        marks: lengths of the prompt's beginnings that another text may share, increasing.
        adapter: what is added to the model; None = nothing.
        drafts: whether canvases are shown while they are refined.
        tile: what the rows of the prompt are rounded up to on this hardware.
    """

    prompt: tuple[int, ...]
    options: Options
    images: tuple[PlacedImage, ...] = ()
    marks: tuple[int, ...] = ()
    adapter: Adapted | None = None
    drafts: bool = False
    tile: int = 1

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.prompt)

    @property
    def tokens(self) -> int:
        """Rows that it takes at most: the prompt in whole tiles, and whole canvases."""
        return whole(len(self.prompt), self.tile) + self.options.canvases * self.options.max_canvas


@dataclass(frozen=True)
class Draft:
    """A canvas while it is refined.

    Attributes:
        block: number of the canvas, from 0.
        step: denoising steps so far.
        steps: most steps.
        ids: its likeliest ids now.
        kept: which of them the next step sees as they were drawn.
        entropy: mean over the canvas, nats.
        final: whether it is finished; its tokens come as `Committed`.
    """

    block: int
    step: int
    steps: int
    ids: tuple[int, ...]
    kept: tuple[bool, ...]
    entropy: float
    final: bool


@dataclass(frozen=True)
class Committed:
    """A finished canvas.

    Attributes:
        block: number of the canvas, from 0.
        ids: its part of the text: what stands before the end of the text, within `max_tokens`.
        steps: denoising steps that it took.
        seconds: from its first row to its last, without the turns of other work.
    """

    block: int
    ids: tuple[int, ...]
    steps: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Ended:
    """The end of a text.

    Attributes:
        finish: `stop` = the model ended it, `length` = `max_tokens` did, `aborted` = whoever runs the
            server did.
        tokens: of the text.
        canvases: that were finished.
        steps: denoising steps of all canvases.
    """

    finish: Literal["stop", "length", "aborted"]
    tokens: int
    canvases: int
    steps: int


Event: TypeAlias = Draft | Committed | Ended


@dataclass(frozen=True)
class Room:
    """How much a text may take.

    Attributes:
        rows: most rows of prompt and canvases.
        tile: what rows are rounded up to: 1, or what the hardware computes at once.
        max_tokens: most tokens of a text whatever room there is; None = no such limit.
    """

    rows: int
    tile: int = 1
    max_tokens: int | None = None

    def canvases(self, prompt: int, width: int) -> int:
        """Most canvases of `width` behind a prompt.

        ceil(prompt / tile) * tile + canvases * width <= floor(rows / tile) * tile.
        """
        left = self.rows // self.tile * self.tile - whole(prompt, self.tile)
        return max(0, left // width)


def whole(rows: int, tile: int) -> int:
    """Rows in whole tiles."""
    return math.ceil(rows / tile) * tile


def plan_text(
    prompt: Sequence[int],
    config: ModelConfig,
    template: Template,
    room: Room,
    *,
    pictures: Sequence[Patches] = (),
    max_tokens: int | None = None,
    capped: bool = False,
    field: str = "prompt",
    adapter: Adapted | None = None,
    drafts: bool = False,
    **options: Any,
) -> TextPlan:
    """Check what is asked and count its rows.

    Args:
        prompt: ids; those of pictures stand where `Template.rows` puts them.
        config: the model.
        template: the chat layout.
        room: how much it may take.
        pictures: in the order of their rows.
        max_tokens: most tokens of the text.
        capped: whether `max_tokens` is lowered to what has room, and is all of it if it is None. Else
            None is the checkpoint's own default, and too much is refused.
        field: what the prompt is called in errors.
        adapter: what is added to the model.
        drafts: whether canvases are shown while they are refined.
        options: of `Options`, with the checkpoint's defaults for what is not given or None.

    Raises:
        InvalidRequestError: naming the field and its limit.
    """
    if not prompt:
        raise InvalidRequestError.at(field, msg="Input should have at least one token")
    if max_tokens is not None and max_tokens < 1:
        raise InvalidRequestError.at("max_tokens", msg="Input should be greater than or equal to 1")
    # What is only counted here is checked for good below, with the number of tokens that has room.
    first = _options(config, max_tokens=1, **options)
    canvases = room.canvases(len(prompt), first.max_canvas)
    if not canvases:
        raise InvalidRequestError.at(
            field,
            msg=f"The prompt has {len(prompt)} tokens; with a canvas of {first.max_canvas} the limit is "
            f"{max(0, (room.rows // room.tile * room.tile - first.max_canvas) // room.tile * room.tile)}",
        )
    most = canvases * first.max_canvas
    if room.max_tokens is not None:
        most = min(most, room.max_tokens)
    if capped:
        max_tokens = most if max_tokens is None else min(max_tokens, most)
    chosen = _options(config, max_tokens=max_tokens, **options)
    if chosen.max_tokens > most:
        raise InvalidRequestError.at(
            "max_tokens",
            msg=f"{chosen.max_tokens} tokens are wanted; behind this prompt there is room for {most}",
        )
    return TextPlan(
        tuple(prompt),
        chosen,
        tuple(_placed(prompt, pictures, template)),
        tuple(_marks(prompt, template)),
        adapter,
        drafts,
        room.tile,
    )


def _options(config: ModelConfig, **given: Any) -> Options:
    try:
        return Options.of(config, **given)
    except ValueError as error:
        name, _, rest = str(error).partition(" ")
        raise InvalidRequestError.at(name, msg=f"Input {rest}") from None


def _placed(prompt: Sequence[int], pictures: Sequence[Patches], template: Template) -> Iterator[PlacedImage]:
    """Each picture with the index of its first row."""
    starts = (
        [index + 1 for index, one in enumerate(prompt) if one == template.image_start] if pictures else []
    )
    for start, patches in zip(starts, pictures, strict=True):
        digest = hashlib.sha256(patches.values.numpy().tobytes())
        digest.update(patches.positions.numpy().tobytes())
        yield PlacedImage(start, digest.hexdigest(), patches)


def _marks(prompt: Sequence[int], template: Template) -> Iterator[int]:
    """Where a turn of the model begins: what stands before it comes again with the next message."""
    opening = template.model_turn
    for index in range(len(prompt) - len(opening) + 1):
        if tuple(prompt[index : index + len(opening)]) == opening:
            yield index + len(opening)
