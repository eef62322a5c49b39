"""Measure a real server under load: many callers at once, the prefix cache, short requests beside long ones,
given rates, bursts, and overload.

The load comes from this process; the server runs in its own. Ways of working that are compared run by turns.

    python benchmarks/serve.py
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
from collections.abc import Sequence
from typing import Any

from common import (
    ServerProcess,
    add_json_option,
    console,
    machine_line,
    machine_of_server,
    parser_of,
    say,
    table,
    verdict,
)
from load import client
from rich.console import Console
from scenarios import Finding, Scenarios, Sizes

NAMES = ("new", "known", "turns", "short", "load", "burst", "overload")
BARS = 40
BUCKETS = 10


async def measure(args: argparse.Namespace, sizes: Sizes) -> dict[str, Finding]:
    """Run the scenarios that are wanted, in their order."""
    found: dict[str, Finding] = {}
    settings = {"model": args.model, "threads": args.threads}
    async with contextlib.AsyncExitStack() as stack:
        url = args.url
        if url is None:
            url = stack.enter_context(ServerProcess(**settings, max_pending_requests=args.pending)).url
        http = await stack.enter_async_context(client(url))
        scenarios = Scenarios(http, sizes)
        for name in args.scenarios:
            match name:
                case "new" | "known":
                    found[name] = await scenarios.callers(known=name == "known")
                case "turns":
                    with ServerProcess(**settings, cache_bytes=0) as other:
                        async with client(other.url) as uncached:
                            found[name] = await scenarios.turns(uncached)
                case "short":
                    found[name] = await scenarios.short()
                case "load":
                    found[name] = await scenarios.load()
                case "burst":
                    found[name] = await scenarios.burst()
                case _:
                    found[name] = await scenarios.overload()
    return found


def show(out: Console, found: dict[str, Finding], *, plot: bool) -> None:
    """Print a table for each scenario, its targets, and how latencies spread."""
    for one in found.values():
        made = table(one.title, *one.rows[0])
        for row in one.rows:
            made.add_row(*(_cell(value) for value in row.values()), *[""] * (len(one.rows[0]) - len(row)))
        out.print(made)
        for target in one.targets:
            out.print(f"{target.wanted}: {target.measured}: {verdict(target.met)}")
        if plot:
            for name, latencies in one.latencies.items():
                out.print(name, *histogram(latencies), sep="\n", highlight=False)
        out.print()


def histogram(seconds: Sequence[float]) -> list[str]:
    """Draw how many latencies there are of each size, in steps that grow by the same factor."""
    if not seconds:
        return []
    low, high = max(min(seconds), 1e-4), max(seconds)
    factor = max((high / low) ** (1 / BUCKETS), 1.01)
    counts = [0] * BUCKETS
    for one in seconds:
        counts[min(BUCKETS - 1, max(0, int(math.log(max(one, low) / low, factor))))] += 1
    bars = ("█" * math.ceil(BARS * number / max(counts)) for number in counts)
    ends = (1000 * low * factor ** (at + 1) for at in range(BUCKETS))
    return [f"  up to {ms:9.1f} ms {bar} {n}" for ms, bar, n in zip(ends, bars, counts, strict=True)]


def report(found: dict[str, Finding]) -> dict[str, Any]:
    """Return the same as plain values."""
    return {
        name: {
            "title": one.title,
            "rows": [{key: _plain(value) for key, value in row.items()} for row in one.rows],
            "targets": [target.plain() for target in one.targets],
        }
        for name, one in found.items()
    }


def _cell(value: Any) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--scenarios", help=f"some of {', '.join(NAMES)} (default: all)")
    parser.add_argument("--url", help="a running server instead of one of its own; without `turns`")
    parser.add_argument("--model", help="checkpoint folder (default: the embedded model)")
    parser.add_argument("--threads", type=int, help="torch threads of the server")
    parser.add_argument("--pending", type=int, help="max_pending_requests of the server")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each comparison (default 5)")
    parser.add_argument("--requests", type=int, default=96, help="requests a round or rate (default 96)")
    parser.add_argument("--callers", type=int, default=32, help="callers at once (default 32)")
    parser.add_argument("--tokens", type=int, default=100, help="tokens of a state (default 100)")
    parser.add_argument("--turn-tokens", type=int, default=1000, help="of one in `turns` (default 1000)")
    parser.add_argument("--turn-states", type=int, default=8, help="states and callers there (default 8)")
    parser.add_argument("--turns", type=int, default=4, help="requests of each a round (default 4)")
    parser.add_argument("--short", type=int, default=60, help="tokens of a short state (default 60)")
    parser.add_argument("--long", type=int, default=4000, help="tokens of a long state (default 4000)")
    parser.add_argument("--shorts", type=int, default=4, help="short requests beside one (default 4)")
    parser.add_argument("--burst", type=int, default=64, help="requests at once in `burst` (default 64)")
    parser.add_argument("--overload", type=int, default=1000, help="requests of the overload (default 1000)")
    parser.add_argument("--leaving", type=float, default=0.05, help="share that goes away (default 0.05)")
    parser.add_argument("--rates", default="0.5,0.8", help="shares of the sustainable rate (default 0.5,0.8)")
    parser.add_argument("--known", type=float, default=0.3, help="share about a recent state (default 0.3)")
    parser.add_argument("--samples", type=int, help="reads a question; by default as many as it needs")
    parser.add_argument("--seed", type=int, default=0, help="decides arrivals, texts and who leaves")
    parser.add_argument("--plot", action="store_true", help="draw how the latencies of `load` spread")
    add_json_option(parser)
    args = parser.parse_args(argv)
    wanted = (
        args.scenarios.split(",") if args.scenarios else [n for n in NAMES if n != "turns" or not args.url]
    )
    for name in wanted:
        if name not in NAMES:
            parser.error(f"there is no scenario {name!r}; choose from {', '.join(NAMES)}")
    if args.url and "turns" in wanted:
        parser.error("turns needs servers of its own, so it cannot be run with --url")
    args.scenarios = wanted
    return args


def sizes_of(args: argparse.Namespace) -> Sizes:
    return Sizes(
        rounds=args.rounds,
        requests=args.requests,
        callers=args.callers,
        tokens=args.tokens,
        turn_tokens=args.turn_tokens,
        turn_states=args.turn_states,
        turns=args.turns,
        short=args.short,
        long=args.long,
        shorts=args.shorts,
        burst=args.burst,
        overload=args.overload,
        leaving=args.leaving,
        rates=tuple(float(one) for one in args.rates.split(",")),
        known=args.known,
        samples=args.samples or "auto",
        seed=args.seed,
    )


def main(argv: Sequence[str] | None = None) -> None:
    args = arguments(argv)
    facts = machine_of_server(args.threads)
    found = asyncio.run(measure(args, sizes_of(args)))
    if say({"machine": facts, "scenarios": report(found)}, args.json):
        out = console()
        out.print(machine_line(facts))
        show(out, found, plot=args.plot)


if __name__ == "__main__":
    main()
