"""A dry run: what a job would take, from a sample of its rows and a short probe. Nothing is written."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from itertools import islice

from jev.batch.deciders import Decided, Decider, EngineDecider
from jev.batch.inputs import Input
from jev.batch.requests import Ask, Bad, Requests
from jev.schemas import SystemOneResponse

SAMPLE = 256
"""Rows that are looked at, spread over the input."""

PROBE_SECONDS = 5.0
"""Time after which a probe of a model here begins no further group."""

REMOTE_PROBE = 8
"""Rows that a server is asked: they may cost money there."""


@dataclass(frozen=True)
class Estimate:
    """What a job would take.

    Attributes:
        rows: of the input.
        sampled: rows that were looked at.
        bad: those of them that cannot be asked.
        equal: those of them that ask what another one asks.
        probed: rows that were decided to measure.
        input_tokens: prompt tokens of all rows.
        output_tokens: canvas tokens of all rows.
        seconds: the job would take; None if nothing could be probed.
        cost: at the given price for a million tokens; None without one.
    """

    rows: int
    sampled: int
    bad: int
    equal: int
    probed: int
    input_tokens: int
    output_tokens: int
    seconds: float | None
    cost: float | None


async def estimate(
    source: Input, requests: Requests, decider: Decider, *, dedup: bool = True, price: float | None = None
) -> Estimate:
    """Look at a sample of the rows and decide some of them.

    Args:
        source: the rows.
        requests: what is asked of them.
        decider: who would decide them.
        dedup: whether equal rows are asked once; they are looked for in the sample only.
        price: of a million tokens.
    """
    total = source.count()
    step = max(1, total // SAMPLE)  # spread over the input
    records = islice(source.records(), 0, SAMPLE * step, step)
    sample = [requests.prepare(number, source.row(record)) for number, record in records]
    asks = [one for one in sample if isinstance(one, Ask)]
    distinct = list({one.key: one for one in asks}.values()) if dedup else asks
    probed, seconds, answers = await _probe(distinct, decider)
    share = len(distinct) / len(sample) if sample else 0.0
    wanted = total * share
    mean = [0.0, 0.0]
    if answers:
        mean = [
            sum(one.usage.input_tokens for one in answers) / probed,
            sum(one.usage.output_tokens for one in answers) / probed,
        ]
    tokens = [round(one * wanted) for one in mean]
    return Estimate(
        rows=total,
        sampled=len(sample),
        bad=sum(isinstance(one, Bad) for one in sample),
        equal=len(asks) - len(distinct),
        probed=probed,
        input_tokens=tokens[0],
        output_tokens=tokens[1],
        seconds=seconds / probed * wanted if probed else None,
        cost=None if price is None else sum(tokens) / 1e6 * price,
    )


async def _probe(asks: list[Ask], decider: Decider) -> tuple[int, float, list[SystemOneResponse]]:
    """Decide rows; returns how many were tried, the seconds they took and the answers."""
    requests = [ask.request for ask in asks]
    found: list[Decided] = []
    if not isinstance(decider, EngineDecider):
        started = time.perf_counter()
        for one in await asyncio.gather(*(decider.decide([one]) for one in requests[:REMOTE_PROBE])):
            found += one
    else:
        await decider.decide(requests[:1])  # the first one warms up
        started = time.perf_counter()
        while len(found) < len(requests) and time.perf_counter() - started < PROBE_SECONDS:
            found += await decider.decide(requests[len(found) : len(found) + decider.rows])
    seconds = time.perf_counter() - started
    for one in found:
        if not isinstance(one, SystemOneResponse) and decider.stops(one):
            raise one
    return len(found), seconds, [one for one in found if isinstance(one, SystemOneResponse)]
