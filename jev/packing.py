"""Which rows go into the next forward: short requests first, and a share for the oldest long one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from jev.plan import Unit
from jev.run import Encoding, Run

LONG_SHARE = 4
"""The oldest long request gets at least one row in so many, however many short ones there are."""


@dataclass
class Step:
    """The work of one forward.

    Attributes:
        encode: encodings, with how many tokens of each.
        read: runs, with the unit and the number of each read.
        rows: rows in all.
        shares: rows by run: its own reads, and encodings that it is the first to want.
    """

    encode: list[tuple[Encoding, int]] = field(default_factory=list)
    read: list[tuple[Run, Unit, int]] = field(default_factory=list)
    rows: int = 0
    shares: dict[Run, int] = field(default_factory=dict)
    _seen: set[int] = field(default_factory=set)

    def add(self, run: Run, limit: int) -> None:
        """Take as much of the run's work as fits into `limit` rows in all; one piece always fits an
        empty step.
        """
        for one in run.waiting():
            if id(one) in self._seen:
                continue  # another run that wants it was here first
            if self.rows >= limit:
                return
            chunk = one.chunk(limit - self.rows)
            if self.rows and self.rows + chunk > limit:
                continue  # an image that is longer than what is left
            self._seen.add(id(one))
            self.encode.append((one, chunk))
            self._count(run, chunk)
        if not run.encoded:
            return
        taken = sum(1 for other, _, _ in self.read if other is run)
        for unit, number in list(run.to_read)[taken:]:
            need = run.need(unit, self._seen)
            if self.rows and self.rows + need > limit:
                return
            self._seen.add(id(unit))
            self.read.append((run, unit, number))
            self._count(run, need)

    def _count(self, run: Run, rows: int) -> None:
        self.rows += rows
        self.shares[run] = self.shares.get(run, 0) + rows


def pack(runs: Sequence[Run], budget: int) -> Step:
    """Choose the work of the next forward.

    Requests that can be finished within `budget` rows are short. They go first, in order of arrival;
    long ones take what is left, but the oldest of them always gets its share, so that neither kind
    can starve the other.

    Args:
        runs: unfinished runs in order of arrival.
        budget: most rows of the forward; a piece that cannot be split may go over it alone.
    """
    long = {run for run in runs if run.left > budget}
    short = [run for run in runs if run not in long]
    step = Step()
    for some, limit in (
        (short, budget - budget // LONG_SHARE if long else budget),
        ([run for run in runs if run in long], budget),
        (short, budget),
    ):
        for run in some:
            if step.rows >= limit:
                break
            step.add(run, limit)
    return step
