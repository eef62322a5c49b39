"""Asks a backend every row, then the stability probes; all else is arithmetic on what it said."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from jev.backends import Backend
from jev.quality.cache import ReplyCache
from jev.quality.collect import Collector, Maker
from jev.quality.data import DataError, LabelledRow
from jev.quality.replies import Failure, Reply
from jev.quality.stability import PROBES, probe, sample_of

Progress: TypeAlias = Callable[[str, int, int | None], None]
"""Told the stage, how many requests are done, and how many there are (None = not known)."""


class QualityError(DataError):
    """A run that has no result."""


@dataclass(frozen=True)
class BackendRun:
    """What one backend said.

    Attributes:
        name: of the backend in the report; no two are equal.
        model: the model that answered.
        replies: an outcome for each row.
        seconds: that asking all rows took.
        rounded: whether it rounds to two decimals.
        stability: figures by probe, if asked for.
    """

    name: str
    model: str
    replies: Sequence[Reply | Failure]
    seconds: float
    rounded: bool
    stability: Mapping[str, dict[str, Any]] | None = field(default=None)


async def run_backend(
    backend: Backend,
    rows: Sequence[LabelledRow],
    *,
    name: str | None = None,
    options: Mapping[str, Any] | None = None,
    cache: ReplyCache | None = None,
    concurrency: int | None = None,
    stability: int = 0,
    progress: Progress | None = None,
) -> BackendRun:
    """Ask a backend every row, and `stability` rows in other ways.

    Args:
        backend: whom to ask; it stays open.
        rows: what to ask.
        name: what the report calls it; None = the backend's own name.
        options: request fields of every request, such as `seed` and `samples`.
        cache: where replies are kept.
        concurrency: most requests in flight; None = as the backend says.
        stability: rows for the stability probes; 0 = none.
        progress: told after each request.

    Raises:
        QualityError: not one row was answered; the message has the first reason.
        DataError, ConnectionError, APIError: as `Collector.ask`.
    """
    name, options = name or backend.name, options or {}
    collector = Collector(backend, cache, concurrency)
    started = time.perf_counter()
    told = _counter(progress, f"{name}: rows", len(rows))
    replies = await collector.ask([_maker(row, options) for row in rows], told)
    seconds = time.perf_counter() - started
    if all(isinstance(reply, Failure) for reply in replies):
        first = next(reply for reply in replies if isinstance(reply, Failure))
        raise QualityError(f"{name} answered none of {len(rows)} rows; the first: {first.reason}")
    answered = [reply for reply in replies if isinstance(reply, Reply)]
    found: dict[str, dict[str, Any]] | None = None
    if stability:
        sample, found = sample_of(rows, stability), {}
        for kind in PROBES:
            told = _counter(progress, f"{name}: {kind}", None)
            found[kind] = await probe(kind, collector, rows, replies, sample, options, told)
    rounded = _rounds(backend, answered)
    return BackendRun(name, backend.model, replies, seconds, rounded, found)


def _maker(row: LabelledRow, options: Mapping[str, Any]) -> Maker:
    return lambda: row.request(options=options)


def _rounds(backend: Backend, answered: Sequence[Reply]) -> bool:
    """Whether probabilities have two decimals: as the backend says, or by what it sent."""
    decimals = getattr(backend, "decimals", None)
    return (decimals is not None and decimals <= 2) or all(reply.rounded for reply in answered)


def _counter(progress: Progress | None, stage: str, total: int | None) -> Callable[[], None] | None:
    if progress is None:
        return None
    count = 0

    def tick() -> None:
        nonlocal count
        count += 1
        progress(stage, count, total)

    progress(stage, 0, total)
    return tick
