"""Measure how the time of a decision grows with its questions, and what the prefix cache saves.

All variants run in turn, one call each a round; ratios are taken within a round.

    python benchmarks/read.py
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from common import Quartiles, add_json_option, console, machine, machine_line, parser_of, say, table, verdict
from rates import Rate, rates
from rich.console import Console
from texts import questions, state
from timing import Variant, run_rounds

from jev.engine import Engine
from jev.schemas import SystemOneRequest

EIGHT_TARGET = 2.5
"""Most that 8 questions may cost of 1, on a new state."""
REPEATED_TARGET = 0.5
"""Most that a question on a known state may cost of one on a new state."""


class Request(Variant):
    """A request timed from its decoded body to its answers; `counts` are the engine's, of the last call."""

    def __init__(
        self, engine: Engine, count: int, tokens: int, samples: int | str, *, known: bool = False
    ) -> None:
        what = f"{count} question{'s' * (count > 1)}, {'known' if known else 'new'} state of {tokens}"
        super().__init__(f"{what}, samples {samples}", self._decide)
        self.engine, self.count, self.tokens, self.samples, self.known = engine, count, tokens, samples, known
        self.counts: dict[str, float] = {}

    def _decide(self, number: int) -> None:
        text = state(self.tokens, "known" if self.known else f"{self.name}/{number}")
        # The single question is another of the eight each round.
        asked = {key: one.model_dump() for key, one in questions(self.count, number % 8).items()}
        body = {"state": text, "questions": asked, "samples": self.samples}
        before = self.engine.stats()
        self.engine.decide(SystemOneRequest.model_validate(body))
        self.counts = {key: value - before[key] for key, value in self.engine.stats().items()}


@dataclass(frozen=True)
class Trio:
    """What is compared on short states, for one way to sample."""

    one: Request
    eight: Request
    known: Request

    @classmethod
    def of(cls, engine: Engine, tokens: int, samples: int | str) -> Trio:
        """One and eight questions on new states, one on a known state."""
        return cls(
            Request(engine, 1, tokens, samples),
            Request(engine, 8, tokens, samples),
            Request(engine, 1, tokens, samples, known=True),
        )

    @property
    def requests(self) -> tuple[Request, ...]:
        """All three."""
        return self.one, self.eight, self.known

    @property
    def targets(self) -> list[tuple[str, Quartiles, float]]:
        """What is measured, the ratio, and the most it may be."""
        how = f"samples {self.one.samples}"
        return [
            (f"8 questions / 1 question, new states, {how}", self.eight.times(self.one), EIGHT_TARGET),
            (f"known state / new state, 1 question, {how}", self.known.times(self.one), REPEATED_TARGET),
        ]


def show(out: Console, trios: Sequence[Trio], long: Sequence[Request], speeds: Sequence[Rate]) -> None:
    """Print times, ratios against their targets, and rates; ranges are quartiles."""
    made = table(
        "Requests, in process: median (quartiles) of a call; rows of the last call",
        "request", "ms", "prefix rows prefilled", "rows read", "reads",
    )  # fmt: skip
    for group in (*(trio.requests for trio in trios), long):
        for one in group:
            rows = (f"{one.counts[key]:.0f}" for key in ("rows_prefill", "rows_read", "reads"))
            made.add_row(one.name, one.ms.shown(1), *rows)
        made.add_section()
    out.print(made)

    made = table("Ratios within a round: median (quartiles)", "ratio", "measured", "target", "")
    for trio in trios:
        for what, measured, most in trio.targets:
            made.add_row(what, measured.shown(), f"at most {most:g}", verdict(measured.median <= most))
    few, many = long
    made.add_row(f"{many.count} questions / 1 question, long new states", many.times(few).shown(), "", "")
    out.print(made)

    made = table(
        "Matmul rates, GFLOP/s in fp32: median (quartiles)",
        "forward", "rows", "ms", "GFLOP/s", "its matmuls", "plain matmul", "rate / its matmuls", "/ plain",
    )  # fmt: skip
    for one in speeds:
        made.add_row(
            one.name,
            f"{one.rows}",
            one.forward.ms.shown(1),
            one.forward.gflops.shown(1),
            f"{one.dense.gflops.median:.1f}",
            f"{one.plain.gflops.median:.1f}",
            f"{one.forward.share(one.dense).median:.0%}",
            f"{one.forward.share(one.plain).median:.0%}",
        )
    out.print(made)


def report(trios: Sequence[Trio], long: Sequence[Request], speeds: Sequence[Rate]) -> dict[str, Any]:
    """Return the same as plain values."""
    few, many = long
    return {
        "requests": [
            {"name": one.name, "ms": dataclasses.asdict(one.ms), "counts": one.counts}
            for group in (*(trio.requests for trio in trios), long)
            for one in group
        ],
        "ratios": [
            {
                "name": what,
                "ratio": dataclasses.asdict(measured),
                "target": most,
                "met": measured.median <= most,
            }
            for trio in trios
            for what, measured, most in trio.targets
        ],
        "long_ratio": dataclasses.asdict(many.times(few)),
        "rates": [
            {
                "name": one.name,
                "rows": one.rows,
                "ms": dataclasses.asdict(one.forward.ms),
                "gflops": dataclasses.asdict(one.forward.gflops),
                "matmuls_gflops": dataclasses.asdict(one.dense.gflops),
                "plain_gflops": dataclasses.asdict(one.plain.gflops),
                "share_of_matmuls": dataclasses.asdict(one.forward.share(one.dense)),
                "share_of_plain": dataclasses.asdict(one.forward.share(one.plain)),
            }
            for one in speeds
        ],
    }


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--model", help="checkpoint folder (default: the embedded model)")
    parser.add_argument("--rounds", type=int, default=15, help="calls of each variant (default 15)")
    parser.add_argument("--short", type=int, default=200, help="tokens of a short state (default 200)")
    parser.add_argument("--long", type=int, default=1000, help="tokens of a long state (default 1000)")
    parser.add_argument("--many", type=int, default=32, help="questions on a long state (default 32)")
    parser.add_argument("--threads", type=int, help="torch threads")
    add_json_option(parser)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = arguments(argv)
    facts = machine(args.threads)
    engine = Engine.load(args.model)
    facts |= {"model": engine.name, "rounds": args.rounds}
    trios = [Trio.of(engine, args.short, samples) for samples in ("auto", 1)]
    long = [Request(engine, count, args.long, 1) for count in (1, args.many)]
    speeds = rates(engine, args.short)
    variants: list[Variant] = [one for trio in trios for one in trio.requests]
    variants += [*long, *(v for one in speeds for v in (one.forward, one.dense, one.plain))]
    run_rounds(variants, args.rounds)

    if say({"machine": facts, **report(trios, long, speeds)}, args.json):
        out = console()
        out.print(f"{engine.name}, {args.rounds} rounds; {machine_line(facts)}")
        show(out, trios, long, speeds)


if __name__ == "__main__":
    main()
