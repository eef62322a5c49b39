"""Whose turn the model's next step is, when two kinds of work want it."""

from __future__ import annotations


class Share:
    """One kind goes first; the other gets at least a part of the time in which both are wanted.

    What goes first waits for the forward in progress, and for one more only when the other's part of the
    time has added up to one.

    Args:
        part: of the time for the second kind, 0 to under 1; 0 = none while the first is wanted.
    """

    def __init__(self, part: float) -> None:
        self._ratio = part / (1 - part)
        self._owed_s = 0.0
        self._last_s = 0.0

    def is_second(self, *, first: bool, second: bool) -> bool:
        """Whether the next step is one of the second kind, given which are wanted."""
        if not (first and second):
            self._owed_s = 0.0  # nobody had to wait
            return second
        return 0 < self._owed_s >= self._last_s

    def note(self, seconds: float, *, second: bool, contended: bool) -> None:
        """Learn how long a step took, and whether both were wanted."""
        if second:
            self._last_s = seconds
            self._owed_s = 0.0
        elif contended:
            self._owed_s += seconds * self._ratio
