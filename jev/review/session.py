"""A review as a state machine: which item is up, what was decided, and the way back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from jev.review.queue import Item


class Keeper(Protocol):
    """Keeps decisions; `Store` is one. What raises is not kept."""

    def decided(self, item: Item) -> bool:
        """Whether an earlier run has decided it."""
        ...

    def answer(self, item: Item, index: int) -> None:
        """Keep an answer."""
        ...

    def unsure(self, item: Item) -> None:
        """Keep that no answer fits."""
        ...

    def undo(self) -> None:
        """Take back the last answer or mark."""
        ...


class Mark(Enum):
    """What became of an item that got no answer."""

    later = "later"
    unsure = "unsure"


@dataclass(frozen=True)
class Summary:
    """How a review stands.

    Attributes:
        before: questions that earlier runs had decided.
        reviewed: questions answered in this run.
        corrected: of these, the ones whose answer is not the proposed one.
        skipped: questions passed over in this run, left for later or unsure.
        unsure: of these, the ones that no answer fits.
        left: questions that are still open.
    """

    before: int
    reviewed: int
    corrected: int
    skipped: int
    unsure: int
    left: int


class Session:
    """Goes through the open items in order.

    Args:
        items: all items; those that the keeper has decided are passed over.
        keeper: where decisions go, each before the next item is up.
        limit: most items of this run.
    """

    def __init__(self, items: Sequence[Item], keeper: Keeper, *, limit: int | None = None) -> None:
        still_open = [item for item in items if not keeper.decided(item)]
        self._items = still_open[:limit]
        self._open = len(still_open)
        self._before = len(items) - len(still_open)
        self._keeper = keeper
        self._decisions: list[int | Mark] = []

    @property
    def position(self) -> int:
        """How many items are behind; the index of the one that is up."""
        return len(self._decisions)

    @property
    def total(self) -> int:
        """How many items this run has."""
        return len(self._items)

    @property
    def current(self) -> Item | None:
        """The item that is up; None at the end."""
        return self._items[self.position] if self.position < self.total else None

    def answer(self, index: int) -> None:
        """Answer the item that is up and go on.

        Args:
            index: of an alternative of its question.

        Raises:
            IndexError: there is no such alternative, or no item is up.
            OSError: it could not be kept; the item stays up.
        """
        self._keeper.answer(self._up(), index)
        self._decisions.append(index)

    def later(self) -> None:
        """Leave the item that is up to a later run; see `answer`."""
        self._up()
        self._decisions.append(Mark.later)

    def unsure(self) -> None:
        """Mark the item that is up as one that no answer fits; see `answer`."""
        self._keeper.unsure(self._up())
        self._decisions.append(Mark.unsure)

    def undo(self) -> bool:
        """Go back to the item before and take back what was decided; False at the first one."""
        if not self._decisions:
            return False
        if self._decisions[-1] is not Mark.later:
            self._keeper.undo()
        self._decisions.pop()
        return True

    @property
    def summary(self) -> Summary:
        """How it stands now."""
        made = list(zip(self._decisions, self._items, strict=False))
        answered = [(index, item) for index, item in made if not isinstance(index, Mark)]
        unsure = sum(decision is Mark.unsure for decision, _ in made)
        return Summary(
            before=self._before,
            reviewed=len(answered),
            corrected=sum(item.proposed is not None and index != item.proposed for index, item in answered),
            skipped=len(made) - len(answered),
            unsure=unsure,
            left=self._open - len(answered) - unsure,
        )

    def _up(self) -> Item:
        item = self.current
        if item is None:
            raise IndexError("no item is up")
        return item
