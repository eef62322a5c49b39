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

MOST_BYTES = 256 * 2**20
"""Rows that are kept to be decided hold about so much."""

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
    step = max(1, -(-total // SAMPLE))  # spread over the input
    sampled = bad = held = 0
    keys: set[bytes] = set()
    kept: list[Ask] = []
    for number, record in islice(source.records(), 0, None, step):
        one = requests.prepare(number, source.row(record))
        sampled += 1
        if isinstance(one, Bad):
            bad += 1
            continue
        known = dedup and one.key in keys
        keys.add(one.key if dedup else str(number).encode())
        if not known and held < MOST_BYTES:  # attachments are in a request
            held += one.weight
            kept.append(one)
    probed, seconds, answers = await _probe(kept, decider)
    share = len(keys) / sampled if sampled else 0.0
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
        sampled=sampled,
        bad=bad,
        equal=sampled - bad - len(keys),
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
