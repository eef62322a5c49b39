"""Keep a real server busy with mixed traffic for some minutes, and see that it holds no more at the end than
at the beginning.

Callers send texts, attachments and uploads, some go away, batches run behind them, and a worker process
that reads attachments is killed now and then. Every few seconds the resident memory of the server and of its
workers, its threads and its open files are noted. The caches are kept small, so that they are full after the
warm-up.

    python benchmarks/soak.py --minutes 30
"""

from __future__ import annotations

import argparse
import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import psutil
from common import (
    ServerProcess,
    add_json_option,
    console,
    machine_line,
    machine_of_server,
    parser_of,
    progress,
    say,
    table,
    verdict,
)
from load import client, settled
from traffic import ATTACHED, LEFT, Traffic

MIB = 2**20
GROWTH_TARGET = 0.05
"""Most that memory may grow from the first minute after the warm-up to the last one."""
SPARE = 2
"""Threads and files by which two moments may differ: workers come and go."""
FINE = frozenset({"200", "529", LEFT, "completed", "cancelled"})
OF_A_KILL = frozenset({"422", "503"})
CACHES = {"cache_bytes": "64MiB", "evidence_cache_bytes": "1MiB", "max_batches": 50}


@dataclass(frozen=True)
class Sample:
    """The server at one moment.

    Attributes:
        seconds: since the start.
        server: resident bytes of its process.
        workers: resident bytes of its children.
        worker: of the largest of them.
        threads: of its process.
        files: that its process has open.
        requests: that have ended by then.
    """

    seconds: float
    server: int
    workers: int
    worker: int
    threads: int
    files: int
    requests: int


def sample(process: psutil.Process, seconds: float, requests: int) -> Sample:
    """Look at the server now."""
    children: list[int] = []
    for child in process.children(recursive=True):
        try:
            children.append(child.memory_info().rss)
        except psutil.NoSuchProcess:
            continue
    return Sample(
        seconds,
        process.memory_info().rss,
        sum(children),
        max(children, default=0),
        process.num_threads(),
        process.num_fds(),
        requests,
    )


async def soak(args: argparse.Namespace) -> tuple[list[Sample], Traffic, bool]:
    """Run the traffic; returns the samples, what was sent, and whether all of it was let go of."""
    settings = {"model": args.model, "threads": args.threads, **CACHES}
    with ServerProcess(**settings) as server:
        process = psutil.Process(server.pid)
        async with client(server.url) as http:
            traffic = Traffic(http, server.pid, args.longest, args.seed)
            running = asyncio.create_task(traffic.run(args.callers, args.kill_every))
            samples: list[Sample] = []
            began = time.monotonic()
            end = 60 * args.minutes
            while (now := time.monotonic() - began) < end and not running.done():
                samples.append(sample(process, now, traffic.outcomes.total()))
                if len(samples) % 6 == 1:
                    one = samples[-1]
                    progress(
                        f"{now / 60:.1f} of {args.minutes:g} min: {one.server / MIB:.0f} MiB and "
                        f"{one.workers / MIB:.0f} in workers, {one.threads} threads, {one.files} files, "
                        f"{one.requests} requests"
                    )
                await asyncio.wait({running}, timeout=min(args.every, max(0.0, end - now)))
            traffic.stop()
            await running
            counters = await settled(http)
    idle = not counters.values["jev_pending_requests"] and not counters.values["jev_batches"]
    return samples, traffic, idle


def judge(samples: Sequence[Sample], traffic: Traffic, idle: bool, warm_up_s: float) -> list[dict[str, Any]]:
    """Compare the first minute after the warm-up with the last one, and look at what was answered."""
    first, last = windows(samples, warm_up_s)
    halves = windows(samples, warm_up_s, span_s=math.inf)

    def growth(
        name: str, of: Callable[[Sequence[Sample]], float], parts: tuple[Sequence[Sample], ...]
    ) -> dict[str, Any]:
        before, after = map(of, parts)
        return {
            "wanted": f"{name} grows by at most {GROWTH_TARGET:.0%}",
            "measured": f"{before / MIB:.0f} to {after / MIB:.0f} MiB, {after / max(before, 1) - 1:+.1%}",
            "met": after <= (1 + GROWTH_TARGET) * before,
        }

    def held(name: str, of: Callable[[Sample], int]) -> dict[str, Any]:
        before, after = (min(map(of, some)) for some in (first, last))
        return {
            "wanted": f"no more {name} at the end",
            "measured": f"{before} to {after}",
            "met": after <= before + SPARE,
        }

    bad = {
        (kind, outcome): number
        for (kind, outcome), number in traffic.outcomes.items()
        if outcome not in FINE and not (kind in (ATTACHED, "upload") and outcome in OF_A_KILL)
    }
    killed = sum(
        number
        for (kind, outcome), number in traffic.outcomes.items()
        if kind in (ATTACHED, "upload") and outcome in OF_A_KILL
    )
    return [
        growth("the server's memory", lambda some: median(one.server for one in some), (first, last)),
        # Workers come, grow with what they read, and go: what counts is how large one became in each half.
        growth("the largest worker", lambda some: max(one.worker for one in some), halves),
        held("threads", lambda one: one.threads),
        held("open files", lambda one: one.files),
        {
            "wanted": "a worker that is killed fails at most the request that it was reading",
            "measured": f"{traffic.kills} killed, {killed} requests with attachments had 422 or 503",
            "met": killed <= traffic.kills,
        },
        {
            "wanted": "everything else is answered",
            "measured": ", ".join(f"{kind}: {what} {number} times" for (kind, what), number in bad.items())
            or "nothing else failed",
            "met": not bad,
        },
        {"wanted": "nothing is left to do", "measured": "idle" if idle else "busy", "met": idle},
    ]


def windows(
    samples: Sequence[Sample], warm_up_s: float, *, span_s: float = 60.0
) -> tuple[Sequence[Sample], Sequence[Sample]]:
    """The samples of the first `span_s` after the warm-up and of the last ones, half of the time at most."""
    rest = [one for one in samples if one.seconds >= warm_up_s] or samples[-1:]
    span = min(span_s, (rest[-1].seconds - rest[0].seconds) / 2)
    first = [one for one in rest if one.seconds <= rest[0].seconds + span]
    last = [one for one in rest if one.seconds >= rest[-1].seconds - span]
    return first, last


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--minutes", type=float, default=30, help="how long (default 30)")
    parser.add_argument("--warm-up", type=float, default=2, help="minutes before it counts (default 2)")
    parser.add_argument("--every", type=float, default=10, help="seconds between samples (default 10)")
    parser.add_argument("--kill-every", type=float, default=45, help="seconds between kills; 0 = none")
    parser.add_argument("--callers", type=int, default=4, help="callers at once (default 4)")
    parser.add_argument("--longest", type=int, default=400, help="tokens of the longest state (default 400)")
    parser.add_argument("--model", help="checkpoint folder (default: the embedded model)")
    parser.add_argument("--threads", type=int, help="torch threads of the server")
    parser.add_argument("--seed", type=int, default=0, help="decides what is sent")
    add_json_option(parser)
    args = parser.parse_args(argv)
    if not 0 <= args.warm_up < args.minutes:
        parser.error("--warm-up: it has to be less than --minutes")
    return args


def main(argv: Sequence[str] | None = None) -> None:
    args = arguments(argv)
    facts = machine_of_server(args.threads)
    samples, traffic, idle = asyncio.run(soak(args))
    targets = judge(samples, traffic, idle, 60 * args.warm_up)
    outcomes = [
        {"kind": kind, "outcome": outcome, "requests": number}
        for (kind, outcome), number in sorted(traffic.outcomes.items())
    ]
    report = {"machine": facts, "samples": [asdict(one) for one in samples]}
    if not say({**report, "outcomes": outcomes, "kills": traffic.kills, "targets": targets}, args.json):
        return
    out = console()
    out.print(machine_line(facts))
    made = table(f"{args.callers} callers for {args.minutes:g} minutes", "kind", "outcome", "requests")
    for one in outcomes:
        made.add_row(one["kind"], one["outcome"], str(one["requests"]))
    out.print(made)
    for one in targets:
        out.print(f"{one['wanted']}: {one['measured']}: {verdict(one['met'])}")


if __name__ == "__main__":
    main()
