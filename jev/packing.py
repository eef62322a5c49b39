"""Which rows go into the next forward: short requests first, and a share for the oldest long one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from jev.plan import Unit
from jev.run import Encoding, Run

LONG_SHARE = 4
"""Long requests get at least one row to so many of short ones; the oldest is passed over so often at most."""


@dataclass
class Step:
    """The work of one step, which is one forward for each adapter in it.

    Attributes:
        encode: encodings, with how many tokens of each.
        read: runs, with the unit and the number of each read.
        rows: rows in all.
        shares: rows by run: its own reads, and encodings that it is the first to want.
        adapter: digest of the adapter of all of it, once it is `apart`; None = none.
    """

    encode: list[tuple[Encoding, int]] = field(default_factory=list)
    read: list[tuple[Run, Unit, int]] = field(default_factory=list)
    rows: int = 0
    shares: dict[Run, int] = field(default_factory=dict)
    adapter: str | None = None
    _seen: set[int] = field(default_factory=set)

    def add(self, run: Run, limit: int, chunk: int) -> None:
        """Take as much of the run's work as fits into `limit` rows in all, no encoding with more than
        `chunk` of them; one piece always fits an empty step. Once for each run.
        """
        for one in run.waiting():
            if id(one) in self._seen:
                continue  # another run that wants it was here first
            if self.rows >= limit:
                return
            rows = one.chunk(min(chunk, limit - self.rows))
            if self.rows and self.rows + rows > limit:
                continue  # an image that is longer than what is left
            self._seen.add(id(one))
            self.encode.append((one, rows))
            self._count(run, rows)
        if not run.encoded:
            return
        for unit, number in run.to_read:
            need = run.need(unit, self._seen)
            if self.rows and self.rows + need > limit:
                return
            self._seen.add(id(unit))
            self.read.append((run, unit, number))
            self._count(run, need)

    def apart(self) -> list[Step]:
        """The work by adapter, in the order they were first met: what can be one forward each."""
        parts: dict[str | None, Step] = {}

        def part(adapter: str | None) -> Step:
            return parts.setdefault(adapter, Step(adapter=adapter))

        for one, rows in self.encode:
            part(one.adapter).encode.append((one, rows))
        for run, unit, number in self.read:
            part(run.adapter).read.append((run, unit, number))
        for run, rows in self.shares.items():
            part(run.adapter).shares[run] = rows
            part(run.adapter).rows += rows
        return list(parts.values())

    def _count(self, run: Run, rows: int) -> None:
        self.rows += rows
        self.shares[run] = self.shares.get(run, 0) + rows


def pack(runs: Sequence[Run], budget: int, chunk: int) -> Step:
    """Choose the work of the next step.

    Requests that can be finished within `budget` rows are short. They go first, in order of arrival.
    The prompts of long ones are encoded in small chunks, so that a step with them ends soon and a
    short request that arrives waits little; and beside short ones they still get a part of every
    step, and the oldest of them a step's first place when nothing of it has fitted for a while, so that
    neither kind can starve the other.

    Args:
        runs: unfinished runs in order of arrival.
        budget: most rows of it; a piece that cannot be split may go over it alone.
        chunk: most rows of a long prompt in a step; half of it beside short requests.
    """
    for run in runs:
        if run.long is None:
            run.long = run.left > budget
    long = [run for run in runs if run.long]
    step = Step()
    if long and long[0].passed >= LONG_SHARE:
        step.add(long[0], budget, chunk)  # a read or picture that fits no share
    for run in runs:
        limit = budget - budget // LONG_SHARE if long else budget
        if not run.long and step.rows < limit:
            step.add(run, limit, budget)
    share = budget
    if step.rows:
        share = min(budget, step.rows + max(1, chunk // 2, step.rows // LONG_SHARE))
    for run in long:
        if step.rows < share and run not in step.shares:
            step.add(run, share, chunk)
    if long:
        long[0].passed = 0 if long[0] in step.shares else long[0].passed + 1
    return step
