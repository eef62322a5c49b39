"""A text while it is written, in no API's shape: bits of it, drafts, and its end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

from jev.channels import Channels, Piece
from jev.errors import ModelUnavailableError
from jev.schemas.chat import Denoising
from jev.writing import Committed, Draft, Ended

if TYPE_CHECKING:
    from jev.server.metrics import Metrics
    from jev.text_stream import TextStream

T = TypeVar("T")

DRAFT_SECONDS = 0.1
"""Least time between two drafts of one canvas."""


@dataclass(frozen=True)
class Done:
    """The end of a text.

    Attributes:
        finish: `stop` = the model ended it or a stop string was found, `length` = it has `max_tokens`.
        tokens: of the text, up to its end.
        reasoning_tokens: those of them that are thoughts.
    """

    finish: Literal["stop", "length"]
    tokens: int
    reasoning_tokens: int


Part: TypeAlias = Piece | Denoising | Done


async def written(stream: TextStream, channels: Channels, metrics: Metrics) -> AsyncGenerator[Part]:
    """What a caller may see of a stream's events, `Done` last; the stream is closed at the end.

    Raises:
        OverloadedError: the deadline passed.
        ModelUnavailableError: the server stops, or has ended the text.
        ServerError: the model failed.
    """
    drawn = 0.0
    try:
        async for event in stream:
            match event:
                case Draft():
                    now = time.monotonic()
                    if event.final or now - drawn >= DRAFT_SECONDS:
                        drawn = now
                        yield _denoising(event, channels)
                case Committed():
                    metrics.canvas(event.seconds)
                    if piece := channels.feed(event.ids):
                        yield piece
                    if channels.stopped:
                        yield Done("stop", channels.tokens, channels.reasoning_tokens)
                        return
                case Ended():
                    if event.finish == "aborted":
                        raise ModelUnavailableError("The server has ended the text", retry_after=1)
                    if piece := channels.close():
                        yield piece
                    finish = "stop" if channels.stopped else event.finish
                    yield Done(finish, channels.tokens, channels.reasoning_tokens)
    finally:
        await stream.aclose()


async def whole(parts: AsyncIterator[Part]) -> tuple[Piece, Done]:
    """All of a text at once."""
    text, reasoning = [], []
    async for part in parts:
        if isinstance(part, Done):
            return Piece("".join(text), "".join(reasoning)), part
        if isinstance(part, Piece):
            text.append(part.text)
            reasoning.append(part.reasoning)
    raise AssertionError("a text has an end")


async def with_pauses(parts: AsyncIterator[T], seconds: float) -> AsyncGenerator[T | None]:
    """The parts, and None after every so many seconds in which none came."""
    following: asyncio.Future[T] | None = None
    try:
        while True:
            if following is None:
                following = asyncio.ensure_future(anext(parts))  # type: ignore[arg-type]
            done, _ = await asyncio.wait({following}, timeout=seconds)
            if not done:
                yield None
                continue
            try:
                part = following.result()
            except StopAsyncIteration:
                return
            finally:
                following = None
            yield part
    finally:
        if following is not None:
            following.cancel()
            await asyncio.wait({following})


def _denoising(draft: Draft, channels: Channels) -> Denoising:
    text, kept = channels.draft(draft.ids, draft.kept)
    return Denoising(
        block=draft.block,
        step=draft.step,
        steps=draft.steps,
        text=text,
        kept=kept,
        entropy=draft.entropy,
        final=draft.final,
    )
