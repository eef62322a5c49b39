"""Measure what a chat costs the decisions beside it: one scheduler, decisions one after another, by turns
with the model idle and with one text being written all the time, 48 steps a canvas.

Each decision has a new state, so that it is prefilled and read. The bound: 95 of 100 decisions beside
the text take no longer than 95 of 100 on the idle model and 1.2 denoising forwards.

    python benchmarks/beside.py
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from typing import Any

from common import add_json_option, console, machine, machine_line, parser_of, progress, say, table, verdict

from jev.engine import Engine
from jev.scheduler import Scheduler
from jev.schemas import Noul, SystemOneRequest
from jev.writing import Committed

TARGET = 1.2
"""Denoising forwards that a decision may take longer."""


class Beside:
    """Decisions on one scheduler, and a text that never ends."""

    def __init__(self, engine: Engine, words: int) -> None:
        self.engine = engine
        self.scheduler = Scheduler(engine, 64, 10**6)
        self.words = words
        self.number = 0
        self.forwards: list[float] = []

    async def decide(self) -> float:
        """Seconds of one decision on a new state."""
        self.number += 1
        state = f"Case {self.number}. " + "The parcel came late and the box was wet. " * (self.words // 9)
        request = SystemOneRequest(state=state, questions={"late": Noul("Was it late?")})
        started = time.perf_counter()
        await self.scheduler.submit(self.engine.prepare(request))
        return time.perf_counter() - started

    async def write(self, **given: int) -> None:
        """Write one text after another until cancelled; with `max_tokens` one of so many."""
        prompt = self.engine.context.template.chat("Write a long story.")
        for seed in range(1 if given else 10**6):
            plan = self.engine.prepare_text(
                prompt, capped=True, seed=seed, confidence=1e-12, max_denoising_steps=48, **given
            )
            async with await self.scheduler.write(plan) as stream:
                async for event in stream:
                    if isinstance(event, Committed) and given:
                        self.forwards.append(event.seconds / event.steps)

    async def round(self, count: int, pause_s: float, *, beside: bool) -> list[float]:
        """Seconds of decisions, one after another with pauses between."""
        task = asyncio.create_task(self.write()) if beside else None
        await asyncio.sleep(0.5 if beside else 0.0)
        found = []
        for _ in range(count):
            found.append(await self.decide())
            await asyncio.sleep(pause_s)
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
        return found


def p95(values: list[float]) -> float:
    """Seconds within which 95 of 100 are done."""
    return statistics.quantiles(values, n=20, method="inclusive")[-1]


async def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Idle and beside by turns."""
    facts = machine(args.threads)
    beside = Beside(Engine.load(args.model), args.words)
    await beside.round(3, 0.0, beside=False)
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for number in range(args.rounds):
        progress(f"round {number + 1} of {args.rounds}")
        await beside.write(max_tokens=1)
        for busy in (False, True):
            seconds[busy] += await beside.round(args.count, args.pause, beside=busy)
    beside.scheduler.close(timeout=30)
    forward = statistics.median(beside.forwards)
    idle, busy = p95(seconds[False]), p95(seconds[True])
    return {
        "machine": facts,
        "decisions": len(seconds[True]),
        "forward_s": forward,
        "idle_median_s": statistics.median(seconds[False]),
        "idle_p95_s": idle,
        "beside_median_s": statistics.median(seconds[True]),
        "beside_p95_s": busy,
        "forwards_longer": (busy - idle) / forward,
    }


def main() -> None:
    """Measure and show."""
    parser = parser_of(__doc__)
    parser.add_argument("--model", help="checkpoint; none = the embedded model")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=40, help="decisions of each kind a round")
    parser.add_argument("--words", type=int, default=60, help="words of a state")
    parser.add_argument("--pause", type=float, default=0.1, help="seconds between decisions")
    parser.add_argument("--threads", type=int)
    add_json_option(parser)
    args = parser.parse_args()
    found = asyncio.run(measure(args))
    if not say(found, args.json):
        return
    screen = console()
    screen.print(machine_line(found["machine"]))
    shown = table(f"{found['decisions']} decisions each", "", "median, ms", "p95, ms")
    for name, key in (("idle", "idle"), ("beside a text", "beside")):
        shown.add_row(name, *(f"{1000 * found[f'{key}_{what}_s']:.0f}" for what in ("median", "p95")))
    screen.print(shown)
    longer = found["forwards_longer"]
    screen.print(
        f"one denoising forward: {1000 * found['forward_s']:.0f} ms; p95 beside a text is over the idle "
        f"one by {longer:.2f} of them: {verdict(longer <= TARGET)} (at most {TARGET})"
    )


if __name__ == "__main__":
    main()
