"""Things timed side by side: each runs once a round, so that a machine that changes its speed changes it
for all of them, and ratios are taken within a round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from common import Quartiles, progress


@dataclass
class Variant:
    """One thing that is timed.

    Attributes:
        name: what it is.
        call: does it, given the number of the round.
        flops: floating-point operations of a call.
        seconds: of each round so far.

    """

    name: str
    call: Callable[[int], object]
    flops: int = 0
    seconds: list[float] = field(default_factory=list)

    @property
    def ms(self) -> Quartiles:
        """Milliseconds a call."""
        return Quartiles.of([1000 * one for one in self.seconds])

    @property
    def gflops(self) -> Quartiles:
        """Billions of operations a second."""
        return Quartiles.of([self.flops / one / 1e9 for one in self.seconds])

    def times(self, other: Variant) -> Quartiles:
        """How many times as long as `other` it takes, round by round."""
        return Quartiles.of([a / b for a, b in zip(self.seconds, other.seconds, strict=True)])

    def share(self, other: Variant) -> Quartiles:
        """Its operations a second as a share of those of `other`, round by round."""
        work = self.flops / other.flops
        return Quartiles.of([work * b / a for a, b in zip(self.seconds, other.seconds, strict=True)])


def run_rounds(variants: Sequence[Variant], rounds: int, *, warm_up: int = 1) -> None:
    """Run every variant once a round; warm-up rounds are not counted."""
    for number in range(-warm_up, rounds):
        for variant in variants:
            started = time.perf_counter()
            variant.call(number)
            elapsed = time.perf_counter() - started
            if number >= 0:
                variant.seconds.append(elapsed)
        if number >= 0 and (number + 1) % 5 == 0:
            progress(f"{number + 1} of {rounds} rounds")
