"""Sends requests to a running server, at a rate of its own or as callers that wait, and says what became
of every one of them.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families
from texts import questions, state

PATH = "/v1/systemone"
ANSWERED = "answered"
REFUSED = "overloaded_error"
LEFT = "left"
"""This client went away before there was an answer, as it was meant to."""
LOST = "lost"
"""Neither an answer to what was asked nor an error of the API."""
TIMEOUT_S = 300.0
SETTLE_S = 60.0


@dataclass(frozen=True, slots=True)
class Ask:
    """One request: question `number`, which no other request asks, about a state."""

    number: int
    state: str
    samples: int | str = "auto"

    @classmethod
    def new(cls, number: int, tokens: int, samples: int | str = "auto", seed: int | str = 0) -> Ask:
        """Ask about a state that no other `number` asks about."""
        return cls(number, state(tokens, f"{seed}/{number}"), samples)

    def body(self) -> dict[str, Any]:
        """The body to send."""
        asked = {name: one.model_dump(exclude_none=True) for name, one in questions(1, self.number).items()}
        return {"state": self.state, "questions": asked, "samples": self.samples}


@dataclass(frozen=True, slots=True)
class Sent:
    """What became of a request.

    Attributes:
        number: its own.
        outcome: ANSWERED, LEFT, LOST or the `error_type` of an error.
        seconds: from when it was due to its outcome.
        ended: when that was, on the clock of `time.perf_counter`.
        note: what was wrong with a lost one.
    """

    number: int
    outcome: str
    seconds: float
    ended: float
    note: str = ""


@dataclass(frozen=True)
class Load:
    """Requests that were sent together.

    Attributes:
        sent: what became of each.
        seconds: from the first one due to the last outcome.
    """

    sent: Sequence[Sent]
    seconds: float

    @property
    def outcomes(self) -> Counter[str]:
        """How many had each outcome."""
        return Counter(one.outcome for one in self.sent)

    @property
    def latencies(self) -> list[float]:
        """Seconds of the answered ones, in order of size."""
        return sorted(one.seconds for one in self.sent if one.outcome == ANSWERED)

    @property
    def answers_per_s(self) -> float:
        """Answers a second."""
        return self.outcomes[ANSWERED] / self.seconds

    def percentile(self, share: float) -> float:
        """Seconds within which this share of the answered ones was answered (nearest rank)."""
        found = self.latencies
        return found[max(0, math.ceil(share * len(found)) - 1)] if found else math.nan

    def check(self) -> Load:
        """Raise RuntimeError unless all were answered; returns itself."""
        for one in self.sent:
            if one.outcome != ANSWERED:
                raise RuntimeError(f"request {one.number}: {one.outcome} {one.note}")
        return self


def client(url: str) -> httpx.AsyncClient:
    """A client that opens as many connections as there are requests under way."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)
    return httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S, limits=limits)


async def send(http: httpx.AsyncClient, ask: Ask, *, due: float | None = None) -> Sent:
    """Send one request and wait for its outcome; `due` is when it should have been sent."""
    began = time.perf_counter() if due is None else due
    body = ask.body()
    try:
        outcome, note = _outcome(await http.post(PATH, json=body), body)
    except httpx.HTTPError as error:
        outcome, note = LOST, repr(error)
    ended = time.perf_counter()
    return Sent(ask.number, outcome, ended - began, ended, note)


async def open_loop(
    http: httpx.AsyncClient,
    asks: Sequence[Ask],
    rate: float,
    *,
    seed: int,
    leaving: float = 0.0,
    patience_s: float = 0.0,
) -> Load:
    """Send requests as a Poisson process, whether or not earlier ones have been answered.

    A request's time counts from when it was due, so that a generator that is late does not hide it.

    Args:
        http: the client.
        asks: what to send.
        rate: requests a second.
        seed: decides the arrivals and who leaves.
        leaving: share of the requests whose client goes away before it has waited long.
        patience_s: longest that those wait.
    """
    chance = random.Random(f"arrivals/{seed}")
    start = due = time.perf_counter()
    tasks: list[asyncio.Task[Sent]] = []
    for ask in asks:
        due += chance.expovariate(rate)
        patience = chance.uniform(0, patience_s) if chance.random() < leaving else None
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        tasks.append(asyncio.create_task(_sent_or_left(http, ask, due, patience)))
    sent = await asyncio.gather(*tasks)
    return Load(sent, max(one.ended for one in sent) - start)


async def closed_loop(http: httpx.AsyncClient, callers: Iterable[Iterator[Ask]]) -> Load:
    """Send requests as callers that wait for an answer before they ask again.

    Args:
        http: the client.
        callers: what each asks; callers that share an iterator share its requests.
    """

    async def call(asks: Iterator[Ask]) -> list[Sent]:
        return [await send(http, ask) for ask in asks]

    start = time.perf_counter()
    sent = [one for some in await asyncio.gather(*map(call, callers)) for one in some]
    return Load(sent, time.perf_counter() - start)


@dataclass(frozen=True)
class Counters:
    """What `/metrics` says.

    Attributes:
        values: samples without labels by name.
        requests: finished decisions by status.
    """

    values: dict[str, float]
    requests: dict[str, float]

    @classmethod
    async def read(cls, http: httpx.AsyncClient) -> Counters:
        """Scrape them."""
        text = (await http.get("/metrics")).raise_for_status().text
        samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
        return cls(
            {one.name: one.value for one in samples if not one.labels},
            {
                one.labels["status"]: one.value
                for one in samples
                if one.name == "jev_requests_total" and one.labels["path"] == PATH
            },
        )

    @property
    def resident(self) -> float:
        """Bytes of the server's process in memory."""
        return self.values.get("process_resident_memory_bytes", math.nan)

    def hit_ratio(self, before: Counters) -> float:
        """Share of prompt prefixes since `before` that were in the cache."""
        hits, misses = (
            self.values[name] - before.values[name]
            for name in ("jev_prefix_cache_hits_total", "jev_prefix_cache_misses_total")
        )
        return hits / (hits + misses) if hits + misses else math.nan

    def finished(self, before: Counters) -> dict[str, int]:
        """Decisions that finished since `before`, by status."""
        counts = {
            status: int(count - before.requests.get(status, 0)) for status, count in self.requests.items()
        }
        return {status: count for status, count in sorted(counts.items()) if count}


async def settled(http: httpx.AsyncClient) -> Counters:
    """Wait until the server has nothing left to do, and return what it has counted by then."""
    give_up = time.monotonic() + SETTLE_S
    while True:
        found = await Counters.read(http)
        if not found.values["jev_pending_requests"] or time.monotonic() > give_up:
            return found
        await asyncio.sleep(0.1)


async def _sent_or_left(http: httpx.AsyncClient, ask: Ask, due: float, patience: float | None) -> Sent:
    try:
        async with asyncio.timeout(patience):
            return await send(http, ask, due=due)
    except TimeoutError:
        ended = time.perf_counter()
        return Sent(ask.number, LEFT, ended - due, ended)


def _outcome(response: httpx.Response, body: dict[str, Any]) -> tuple[str, str]:
    """What a response is, and what is wrong with it if it is nothing that the API answers."""
    try:
        data = response.json()
        if response.status_code == 200:
            fits = data["answers"].keys() == body["questions"].keys()
            return (ANSWERED, "") if fits else (LOST, "the answer is to another question")
        detail = data["detail"]
        if response.status_code == 422:
            return "invalid_request_error", str(detail)
        if response.status_code == 529 and "retry-after" not in response.headers:
            return LOST, "529 without Retry-After"
        return str(detail["error_type"]), str(detail["message"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return LOST, f"status {response.status_code}: {response.text[:200]}"
