"""A teacher: any backend, asked once for every row, whose probabilities become soft labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jev.backends import Backend, BackendSpec
from jev.quality.cache import ReplyCache
from jev.quality.collect import Collector, Maker
from jev.quality.data import LabelledRow
from jev.quality.replies import Failure
from jev.tune.recipe import TuneError


@dataclass(frozen=True)
class Lesson:
    """What a teacher says of one row.

    Attributes:
        soft: by question id, probabilities in the order of the alternatives.
        failure: why it said nothing; None if it did.
    """

    soft: Mapping[str, tuple[float, ...]]
    failure: str | None = None


def spec_of(text: str) -> str:
    """A teacher as typed -> a backend's spec: a bare address is a jev server's."""
    return f"systemone={text}" if text.startswith(("http://", "https://")) else text


def parsed(spec: str) -> BackendSpec:
    """A backend's spec.

    Raises:
        TuneError: it is none.
    """
    try:
        return BackendSpec.parse(spec)
    except ValueError as error:
        raise TuneError(f"--teacher: {error}") from None


async def lessons(
    rows: Sequence[LabelledRow],
    backend: Backend,
    *,
    options: Mapping[str, Any] | None = None,
    cache: ReplyCache | None = None,
    done: Callable[[], None] | None = None,
    known: bool = False,
) -> list[Lesson]:
    """Ask the teacher all questions of all rows that have no soft labels of their own.

    Args:
        rows: what to ask about; questions with soft labels are not asked.
        backend: the teacher; it stays open.
        options: request fields, such as `instructions`.
        cache: where its replies are kept, so that a second run asks nothing.
        done: called after each row that is asked.
        known: ask nothing, take what the cache has: a run that goes on learns from what it began with.

    Returns:
        One for each row, in order.

    Raises:
        DataError: a request cannot be made.
        ConnectionError: the backend cannot be reached; replies so far are in the cache.
        APIError: it refuses the key or the model.
    """
    found = [Lesson({})] * len(rows)
    asked: list[int] = []
    makers: list[Maker] = []
    for index, row in enumerate(rows):
        questions = {name: one for name, one in row.questions.items() if name not in (row.row.soft or {})}
        if questions:
            asked.append(index)
            makers.append(lambda row=row, questions=questions: row.request(questions, options))
    for index, outcome in zip(
        asked, await Collector(backend, cache, known=known).ask(makers, done), strict=True
    ):
        if isinstance(outcome, Failure):
            found[index] = Lesson({}, outcome.reason)
        else:
            found[index] = Lesson({name: one.probabilities for name, one in outcome.answers.items()})
    return found
