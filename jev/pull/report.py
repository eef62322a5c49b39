"""How a pull tells how far it is."""

from __future__ import annotations

from typing import Protocol


class Report(Protocol):
    """Gets to know what happens to one file after another; `Quiet` does nothing with it."""

    def begin(self, name: str, what: str, done: int, total: int | None) -> None:
        """Work on a file begins: `what` is fetching or checking, `done` of `total` bytes are there."""
        ...

    def advance(self, count: int) -> None:
        """More bytes are done; fewer, for a negative count."""
        ...

    def retry(self, name: str, why: str, seconds: float) -> None:
        """The connection broke and is tried again after a while."""
        ...


class Quiet:
    """A report that nobody reads."""

    def begin(self, name: str, what: str, done: int, total: int | None) -> None:
        """Do nothing."""

    def advance(self, count: int) -> None:
        """Do nothing."""

    def retry(self, name: str, why: str, seconds: float) -> None:
        """Do nothing."""
