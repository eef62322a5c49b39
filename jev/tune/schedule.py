"""Which examples a step sees, how they are packed into forwards, and the learning rate."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from random import Random

from jev.tune.examples import Prepared


class Order:
    """An endless sequence of places, each an example: epochs of all examples, each in an order of its own.

    Args:
        count: examples.
        seed: decides the orders.
    """

    def __init__(self, count: int, seed: int) -> None:
        self._count = count
        self._seed = seed
        self._epoch = -1
        self._order: list[int] = []

    def example(self, place: int) -> int:
        """Index of the example at a place; cheap where places come in order."""
        epoch, index = divmod(place, self._count)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, list(range(self._count))
            Random(f"{self._seed}/order/{epoch}").shuffle(self._order)  # noqa: S311 - no secret
        return self._order[index]


def places(step: int, batch: int, rank: int, world: int) -> range:
    """The places of a step that one of several processes reads: every `world`-th of `batch * world`."""
    size = batch * world
    return range(step * size + rank, (step + 1) * size, world)


def packed(examples: Sequence[Prepared], rows: int) -> Iterator[list[Prepared]]:
    """Examples in order, as many together as `rows` rows hold; a longer one stands alone."""
    batch: list[Prepared] = []
    used = 0
    for one in examples:
        if batch and used + one.prompt.rows > rows:
            yield batch
            batch, used = [], 0
        batch.append(one)
        used += one.prompt.rows
    if batch:
        yield batch


def schedule(progress: float, warmup: float) -> float:
    """Share of the learning rate: a line up, then half a cosine down to 0."""
    if progress < warmup:
        return max(0.01, progress / warmup)
    return 0.5 * (1 + math.cos(math.pi * (progress - warmup) / max(1e-9, 1 - warmup)))
