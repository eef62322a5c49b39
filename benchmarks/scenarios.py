"""What `serve.py` measures: one function a scenario, each of which compares its ways of working by turns."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import count
from typing import Any

import httpx
from common import Quartiles, progress
from load import (
    ANSWERED,
    LEFT,
    LOST,
    REFUSED,
    Ask,
    Counters,
    Load,
    Sent,
    closed_loop,
    open_loop,
    send,
    settled,
)
from texts import state

NEW_TARGET = 1.1
"""Least that many callers at once are faster than one after another, on new states."""
KNOWN_TARGET = 1.4
"""The same on cached states."""
TURNS_TARGET = 6.0
"""Least that the prefix cache makes turns over long states faster."""
SHORT_TARGET = 3.0
"""Most that a short request may take beside a long prefill, of its time on an idle server."""
OVERLOAD = 2.0
"""Requests come so many times as fast as they can be answered."""
P99_TARGET = 10.0
SINGLES = 8
"""Requests one at a time before a burst."""
RECENT = 20
"""Known states are drawn from so many."""


@dataclass(frozen=True)
class Sizes:
    """How much is sent; all states are in tokens.

    Attributes:
        rounds: times that each way of working is measured.
        requests: requests of a round, or at each rate of an open loop.
        callers: callers at once.
        tokens: a state.
        turn_tokens: a state that callers take turns over.
        turn_states: such states, and callers that do.
        turns: requests of each of them in a round.
        short: the state of a short request.
        long: the state that is prefilled meanwhile.
        shorts: short requests beside one prefill.
        burst: requests that come at once to an idle server.
        overload: requests that overload the server.
        leaving: share of them whose client goes away.
        rates: rates of open loops, as shares of the rate that can be answered.
        known: share of requests in open loops that are about a recent state.
        samples: reads a question.
        seed: decides all of it.
    """

    rounds: int
    requests: int
    callers: int
    tokens: int
    turn_tokens: int
    turn_states: int
    turns: int
    short: int
    long: int
    shorts: int
    burst: int
    overload: int
    leaving: float
    rates: tuple[float, ...]
    known: float
    samples: int | str
    seed: int


@dataclass(frozen=True)
class Target:
    """Something wanted, what was measured, and whether it is met."""

    wanted: str
    measured: str
    met: bool
    ratio: Quartiles | None = None

    def plain(self) -> dict[str, Any]:
        """It as plain values."""
        return asdict(self)


@dataclass
class Finding:
    """What a scenario found: rows of a table, and targets."""

    title: str
    rows: list[dict[str, Any]] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    latencies: dict[str, list[float]] = field(default_factory=dict)


class Scenarios:
    """Measures one server.

    Args:
        http: a client of it.
        sizes: how much is sent.
    """

    def __init__(self, http: httpx.AsyncClient, sizes: Sizes) -> None:
        self._http = http
        self._sizes = sizes
        self._numbers = count()
        self._sustainable: float | None = None

    async def callers(self, *, known: bool) -> Finding:
        """Many callers at once, and the same load one request at a time."""
        sizes = self._sizes
        what = "cached" if known else "new"
        states = [state(sizes.tokens, f"{sizes.seed}/known/{number}") for number in range(sizes.callers)]
        if known:
            (await closed_loop(self._http, [iter([self._about(text)]) for text in states])).check()

        def asks() -> list[Ask]:
            if known:
                return [self._about(states[number % len(states)]) for number in range(sizes.requests)]
            return [self._new(sizes.tokens) for _ in range(sizes.requests)]

        def together() -> Awaitable[Load]:
            shared = iter(asks())
            return closed_loop(self._http, [shared] * sizes.callers)

        def one_by_one() -> Awaitable[Load]:
            return closed_loop(self._http, [iter(asks())])

        names = f"{sizes.callers} callers at once", "one request at a time"
        at_once, single = await self._by_turns(f"{what} states", (together, one_by_one))
        target = KNOWN_TARGET if known else NEW_TARGET
        return Finding(
            f"{what.capitalize()} states of {sizes.tokens} tokens, {sizes.requests} requests a round",
            [_row(name, loads) for name, loads in zip(names, (at_once, single), strict=True)],
            [
                _faster(
                    f"{names[0]} at least {target:g} times as fast, {what} states", at_once, single, target
                )
            ],
        )

    async def turns(self, uncached: httpx.AsyncClient) -> Finding:
        """Callers that take turns over states that have been read, with the cache and without it.

        Args:
            uncached: a client of a server without a cache.
        """
        sizes = self._sizes
        states = [
            state(sizes.turn_tokens, f"{sizes.seed}/turns/{number}") for number in range(sizes.turn_states)
        ]

        def run(http: httpx.AsyncClient, turns: int) -> Awaitable[Load]:
            # At every turn each caller is at another state.
            order = [
                [(caller + turn) % len(states) for turn in range(turns)] for caller in range(len(states))
            ]
            return closed_loop(http, [iter([self._about(states[at]) for at in mine]) for mine in order])

        for http in (self._http, uncached):
            (await run(http, 1)).check()
        before = await Counters.read(self._http)
        ways = (lambda: run(self._http, sizes.turns)), (lambda: run(uncached, sizes.turns))
        cached, without = await self._by_turns("turns", ways)
        after = await Counters.read(self._http)
        rows = [_row("with the prefix cache", cached), _row("cache_bytes = 0", without)]
        rows[0]["hit ratio"] = after.hit_ratio(before)
        return Finding(
            f"{len(states)} callers take turns over {len(states)} read states of {sizes.turn_tokens} tokens",
            rows,
            [
                _faster(
                    f"the cache makes it at least {TURNS_TARGET:g} times as fast",
                    cached,
                    without,
                    TURNS_TARGET,
                )
            ],
        )

    async def short(self) -> Finding:
        """Short requests on an idle server, and while a long state is prefilled."""
        sizes = self._sizes
        chance = random.Random(f"short/{sizes.seed}")
        await self._one(sizes.short)  # warms up
        alone = (await self._one(sizes.long)).seconds
        idle: list[float] = []
        busy: list[float] = []
        ratios: list[float] = []
        for number in range(sizes.rounds):
            quiet = [(await self._one(sizes.short)).seconds for _ in range(sizes.shorts)]
            long = asyncio.create_task(self._one(sizes.long))
            beside: list[float] = []
            for _ in range(sizes.shorts):
                await asyncio.sleep(alone * chance.uniform(0.5, 1.5) / (sizes.shorts + 1))
                one = await self._one(sizes.short)
                if not long.done():
                    beside.append(one.seconds)
            await long
            if not beside:
                continue  # the long one was done before any of them
            idle += quiet
            busy += beside
            ratios.append(Quartiles.of(beside).median / Quartiles.of(quiet).median)
            progress(f"short: round {number + 1} of {sizes.rounds}: {ratios[-1]:.2f} times")
        if not ratios:
            raise RuntimeError("the long state is read too fast to ask anything meanwhile; make it longer")
        ratio = Quartiles.of(ratios)
        wanted = f"beside a prefill of {sizes.long} tokens at most {SHORT_TARGET:g} times as long"
        return Finding(
            f"Requests about {sizes.short} tokens",
            [
                {
                    "way": name,
                    "requests": len(seconds),
                    "ms": Quartiles.of([1000 * one for one in seconds]).shown(0),
                }
                for name, seconds in (("idle server", idle), (f"beside {sizes.long} tokens", busy))
            ],
            [Target(wanted, f"{ratio.shown()} times", ratio.median <= SHORT_TARGET, ratio)],
        )

    async def load(self) -> Finding:
        """Latencies when requests come at given rates."""
        sizes = self._sizes
        most = await self._most()
        found = Finding(
            f"Open loop: Poisson arrivals, states of {sizes.tokens} tokens, {sizes.known:.0%} of them known; "
            f"{most:.1f} requests/s can be answered"
        )
        for share in sizes.rates:
            before = await settled(self._http)
            load = await open_loop(self._http, list(self._mixed()), share * most, seed=sizes.seed)
            after = await settled(self._http)
            name = f"{share * most:.1f}/s ({share:g} of that)"
            row = _row(name, [load])
            row |= {
                "p50 ms": 1000 * load.percentile(0.5),
                "p90 ms": 1000 * load.percentile(0.9),
                "p99 ms": 1000 * load.percentile(0.99),
                "refused": load.outcomes[REFUSED],
                "lost": load.outcomes[LOST],
                "hit ratio": after.hit_ratio(before),
                "resident MiB": after.resident / 2**20,
            }
            found.rows.append(row)
            found.latencies[name] = load.latencies
            progress(f"load: {name}: p99 {load.percentile(0.99):.2f} s")
        return found

    async def burst(self) -> Finding:
        """Requests that come at once, after some that came one at a time."""
        sizes = self._sizes
        await closed_loop(self._http, [iter([self._new(sizes.tokens) for _ in range(SINGLES)])])
        await settled(self._http)
        load = await closed_loop(self._http, [iter([self._new(sizes.tokens)]) for _ in range(sizes.burst)])
        row = _row("at once", [load])
        row |= {"p50 ms": 1000 * load.percentile(0.5), "last ms": 1000 * load.percentile(1.0)}
        row |= dict(sorted(load.outcomes.items()))
        answered = load.outcomes[ANSWERED]
        return Finding(
            f"{sizes.burst} requests at once, new states of {sizes.tokens} tokens, on an idle server",
            [row],
            [Target("all are answered", f"{answered} of {sizes.burst}", answered == sizes.burst)],
        )

    async def overload(self) -> Finding:
        """Requests that come faster than they can be answered, from clients some of which go away."""
        sizes = self._sizes
        most = await self._most()
        rate = OVERLOAD * most
        before = await settled(self._http)
        asks = [self._new(sizes.tokens) for _ in range(sizes.overload)]
        # Who leaves does so while it waits: that long is the queue at least.
        patience = sizes.callers / most
        progress(f"overload: {rate:.1f} requests/s for {len(asks) / rate / 60:.1f} min")
        load = await open_loop(
            self._http, asks, rate, seed=sizes.seed, leaving=sizes.leaving, patience_s=patience
        )
        after = await settled(self._http)
        outcomes = load.outcomes
        counted = after.finished(before)
        total = sum(counted.values())
        p99 = load.percentile(0.99)
        lost = [f"{one.number}: {one.note}" for one in load.sent if one.outcome == LOST]
        row = _row(f"{rate:.1f}/s", [load])
        row |= {"p50 ms": 1000 * load.percentile(0.5), "p99 ms": 1000 * p99, **dict(sorted(outcomes.items()))}
        row |= {"hit ratio": after.hit_ratio(before), "resident MiB": after.resident / 2**20}
        once = len({one.number for one in load.sent}) == len(load.sent) == len(asks)
        return Finding(
            f"Overload: {sizes.overload} requests at {OVERLOAD:g} times the rate that can be answered, "
            f"{sizes.leaving:.0%} of the clients go away",
            [row],
            [
                Target(f"p99 of the answered below {P99_TARGET:g} s", f"{p99:.2f} s", p99 < P99_TARGET),
                Target(
                    "every request has one answer or one typed error",
                    f"{outcomes[ANSWERED]} answers, {outcomes[REFUSED]} times 529, {outcomes[LEFT]} left, "
                    f"{len(lost)} lost {'; '.join(lost[:3])}".rstrip(),
                    once and not lost,
                ),
                # Who leaves at once may do so before the server has heard of it.
                Target(
                    "the server counts every request once, and has none left",
                    f"{total} of {len(asks)}: {counted}",
                    len(asks) - outcomes[LEFT] <= total <= len(asks)
                    and counted.get("200", 0) >= outcomes[ANSWERED]
                    and not after.values["jev_pending_requests"],
                ),
            ],
        )

    async def _by_turns(
        self, name: str, ways: tuple[Callable[[], Awaitable[Load]], Callable[[], Awaitable[Load]]]
    ) -> tuple[list[Load], list[Load]]:
        """Measure two ways once a round, by turns first and second; one more round before that warms up."""
        loads: tuple[list[Load], list[Load]] = ([], [])
        for number in range(-1, self._sizes.rounds):
            for way in (0, 1) if number % 2 else (1, 0):
                done = (await ways[way]()).check()
                if number >= 0:
                    loads[way].append(done)
            if number >= 0:
                ratio = loads[1][-1].seconds / loads[0][-1].seconds
                progress(f"{name}: round {number + 1} of {self._sizes.rounds}: {ratio:.2f} times")
        return loads

    async def _most(self) -> float:
        """Requests a second that are answered when callers always wait."""
        if self._sustainable is None:
            rates: list[float] = []
            for number in range(2):  # the first one warms up
                asks = iter([self._new(self._sizes.tokens) for _ in range(self._sizes.requests)])
                load = await closed_loop(self._http, [asks] * self._sizes.callers)
                rates.append(load.answers_per_s)
                progress(f"sustainable: {rates[number]:.1f} requests/s")
            self._sustainable = rates[-1]
        return self._sustainable

    async def _one(self, tokens: int) -> Sent:
        one = await send(self._http, self._new(tokens))
        Load([one], one.seconds).check()
        return one

    def _mixed(self) -> Iterator[Ask]:
        """Requests of an open loop, some about a state of a recent one."""
        chance = random.Random(f"mix/{self._sizes.seed}")
        recent: list[str] = []
        for _ in range(self._sizes.requests):
            if recent and chance.random() < self._sizes.known:
                yield self._about(chance.choice(recent))
                continue
            ask = self._new(self._sizes.tokens)
            recent = [*recent[1 - RECENT :], ask.state]
            yield ask

    def _new(self, tokens: int) -> Ask:
        return Ask.new(next(self._numbers), tokens, self._sizes.samples, self._sizes.seed)

    def _about(self, text: str) -> Ask:
        return Ask(next(self._numbers), text, self._sizes.samples)


def _row(name: str, loads: list[Load]) -> dict[str, Any]:
    rates = Quartiles.of([one.answers_per_s for one in loads])
    return {"way": name, "requests": sum(len(one.sent) for one in loads), "answers/s": rates.shown(1)}


def _faster(wanted: str, fast: list[Load], slow: list[Load], target: float) -> Target:
    ratio = Quartiles.of([b.seconds / a.seconds for a, b in zip(fast, slow, strict=True)])
    return Target(wanted, f"{ratio.shown()} times", ratio.median >= target, ratio)
