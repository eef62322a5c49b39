"""Watch the memory of a real server process under a long run of varied requests.

States, question counts and repeats vary; blocks of requests go one after another and four at once in
turn, and the resident set of the server is read after each block.

    python benchmarks/memory.py
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass

import psutil
from common import (
    ServerProcess,
    add_json_option,
    console,
    machine,
    machine_line,
    parser_of,
    progress,
    say,
    table,
    verdict,
)
from texts import questions, state

from jev import Jev

GIB = 2**30
RESIDENT_TARGET = 1.2 * GIB
GROWTH_TARGET = 0.05
"""Most that the resident set may grow from the baseline to the end."""
SHORTEST = 20
MOST_QUESTIONS = 8
REPEATED = 0.2
"""Share of requests about a state that was sent shortly before."""
CONCURRENT = 4
TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Sample:
    """The server after a block of requests.

    Attributes:
        requests: sent so far.
        block: sent in this block.
        at_once: requests at once in the block.
        seconds: the block took.
        input_tokens: prompt tokens of the block, as billed.
        resident: bytes of the server's process and its children.

    """

    requests: int
    block: int
    at_once: int
    seconds: float
    input_tokens: int
    resident: int


def resident(pid: int) -> int:
    """Resident bytes of a process with its children."""
    process = psutil.Process(pid)
    return sum(one.memory_info().rss for one in (process, *process.children(recursive=True)))


def send(client: Jev, number: int, longest: int) -> int:
    """Send request `number`, which decides all of it; returns its prompt tokens."""
    chance = random.Random(f"memory/{number}")
    about = number - chance.randint(1, 20) if chance.random() < REPEATED else number
    text = state(random.Random(f"length/{about}").randint(SHORTEST, longest), about)
    asked = questions(chance.randint(1, MOST_QUESTIONS), chance.randrange(MOST_QUESTIONS))
    return client.decide(text, asked).usage.input_tokens


def watch(client: Jev, pid: int, requests: int, every: int, longest: int) -> list[Sample]:
    """Send `requests` requests in blocks of `every`; the first sample is from before them."""
    samples = [Sample(0, 0, 0, 0.0, 0, resident(pid))]
    for start in range(0, requests, every):
        numbers = range(start, min(start + every, requests))
        at_once = CONCURRENT if start // every % 2 else 1
        started = time.perf_counter()
        with ThreadPoolExecutor(at_once) as pool:
            tokens = sum(pool.map(lambda number: send(client, number, longest), numbers))
        seconds = time.perf_counter() - started
        samples.append(Sample(numbers.stop, len(numbers), at_once, seconds, tokens, resident(pid)))
        progress(f"{numbers.stop} of {requests} requests, {samples[-1].resident / GIB:.3f} GiB")
    return samples


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--requests", type=int, default=1000, help="how many in all (default 1000)")
    parser.add_argument("--every", type=int, default=50, help="requests a block (default 50)")
    parser.add_argument("--baseline", type=int, default=200, help="growth counts from here (default 200)")
    parser.add_argument(
        "--longest", type=int, default=1500, help="tokens of the longest state (default 1500)"
    )
    parser.add_argument("--threads", type=int, help="torch threads of the server")
    add_json_option(parser)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = arguments(argv)
    facts = machine(args.threads)
    server = ServerProcess(threads=args.threads, request_timeout_s=TIMEOUT_S)
    with server, Jev(server.url, timeout=TIMEOUT_S) as client:
        samples = watch(client, server.pid, args.requests, args.every, args.longest)
    base = next((one for one in samples if one.requests >= args.baseline), samples[-1])
    last, most = samples[-1], max(one.resident for one in samples)
    growth = last.resident / base.resident - 1
    targets = {
        f"resident set of at most {RESIDENT_TARGET / GIB:g} GiB": (
            f"{most / GIB:.3f} GiB at most",
            most <= RESIDENT_TARGET,
        ),
        f"growth from {base.requests} to {last.requests} requests of at most {GROWTH_TARGET:.0%}": (
            f"{base.resident / GIB:.3f} to {last.resident / GIB:.3f} GiB, {growth:+.1%}",
            growth <= GROWTH_TARGET,
        ),
    }
    report = {
        "machine": facts,
        "samples": [asdict(one) for one in samples],
        "growth": growth,
        "targets": {name: {"value": value, "met": met} for name, (value, met) in targets.items()},
    }
    if not say(report, args.json):
        return
    out = console()
    out.print(machine_line(facts))
    made = table(
        f"`jev serve`: states of {SHORTEST} to {args.longest} tokens, 1 to {MOST_QUESTIONS} questions",
        "requests", "at once", "requests/s", "prompt tokens/s", "resident GiB", "growth",
    )  # fmt: skip
    for one in samples:
        made.add_row(
            f"{one.requests}",
            f"{one.at_once}" if one.block else "",
            f"{one.block / one.seconds:.2f}" if one.block else "",
            f"{one.input_tokens / one.seconds:.0f}" if one.block else "",
            f"{one.resident / GIB:.3f}",
            f"{one.resident / base.resident - 1:+.1%}" if one.requests >= base.requests else "",
        )
    out.print(made)
    for name, (value, met) in targets.items():
        out.print(f"{name}: {value}, {verdict(met)}")


if __name__ == "__main__":
    main()
