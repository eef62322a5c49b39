"""Measure what one large checkpoint takes in this process: memory, loading, first and repeated reads.

    python benchmarks/synthesize.py OUT.gguf
    python benchmarks/big.py OUT.gguf

A read is one question about a state. A first read sees the state for the first time, another read asks
another question about a state that is cached, and a repeated read is the same request again: where kernels
compute everything, its question is cached too. The joint layout puts all questions on one canvas.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from common import (
    Quartiles,
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

from jev.engine import Engine
from jev.machine import resident_bytes
from jev.model import native
from jev.schemas import Noul, SystemOneRequest

GIB = 2**30
RESIDENT_TARGET = 20 * GIB
REPEATED_TARGET = 0.35
"""Most that a repeated read may cost of a first one."""
CANVASES = (16, 64)


class Reads:
    """Reads on one engine, timed, each on a state of its own."""

    def __init__(self, engine: Engine, tokens: int) -> None:
        self.engine, self.tokens, self.number = engine, tokens, 0
        self.rows: dict[str, float] = {}

    def ask(self, text: str, asked: dict[str, Any], **options: Any) -> float:
        """Milliseconds of a call; `rows` are then the engine's counts of it."""
        body = {"state": text, "questions": asked, "samples": 1, **options}
        request = SystemOneRequest.model_validate(body)
        before, started = self.engine.stats(), time.perf_counter()
        self.engine.decide(request)
        elapsed = time.perf_counter() - started
        self.rows = {key: value - before[key] for key, value in self.engine.stats().items()}
        return 1000 * elapsed

    def state(self) -> str:
        """A text that was not there before."""
        self.number += 1
        return state(self.tokens, f"big/{self.number}")


def first_and_later(reads: Reads) -> list[float]:
    """A question about a new state, another one about it, and the first again; `rows` are of the last."""
    text = reads.state()
    return [reads.ask(text, questions(1, first)) for first in (0, 6, 0)]


def schema(count: int, number: int) -> dict[str, Any]:
    """Yes/no questions with ids of one length, whose texts differ by `number`."""
    return {f"q{n:02}": Noul(f"Is statement {n} of list {number} true?") for n in range(count)}


def joint(reads: Reads, canvas: int, count: int) -> tuple[float, float]:
    """Questions that fill a canvas of this width: a new schema, then the same about another state.

    The questions are the cached prefix here, so the second call is what a service with one schema sees.
    """
    reads.number += 1
    asked = schema(count, reads.number)
    first = reads.ask(reads.state(), asked, layout="joint", chunk_rows=canvas)
    return first, reads.ask(reads.state(), asked, layout="joint", chunk_rows=canvas)


def joint_count(reads: Reads, canvas: int) -> int:
    """Most questions whose answers fit one canvas of this width."""
    count = 1
    while True:
        body = {"state": "a", "questions": schema(count + 1, 0), "layout": "joint", "chunk_rows": canvas}
        plan = reads.engine.prepare(SystemOneRequest.model_validate(body))
        widths = [len(unit.canvas) for group in plan.groups for unit in group.units]
        if len(widths) > 1 or widths[0] > canvas:
            return count
        count += 1


def repeat(rounds: int, call: Callable[[], Sequence[float]]) -> list[Quartiles]:
    return [Quartiles.of(times) for times in zip(*(call() for _ in range(rounds)), strict=True)]


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("model", type=Path, help="checkpoint folder or GGUF file")
    parser.add_argument("--dtype", default="float32", help="as the setting (default float32)")
    parser.add_argument("--tokens", type=int, default=54, help="of a state (default 54)")
    parser.add_argument("--rounds", type=int, default=5, help="repeats (default 5)")
    parser.add_argument("--threads", type=int, help="torch threads")
    add_json_option(parser)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = arguments(argv)
    facts = machine(args.threads)
    before, started, shown = resident_bytes(), time.perf_counter(), [0]

    def tell(done: int, total: int) -> None:
        if 10 * done // total > shown[0]:
            shown[0] = 10 * done // total
            progress(f"{shown[0]}0 % loaded, {resident_bytes() / GIB:.2f} GiB")

    engine = Engine.load(args.model, dtype=args.dtype, progress=tell)
    loaded_s, loaded = time.perf_counter() - started, resident_bytes()
    reads = Reads(engine, args.tokens)
    cold = first_and_later(reads)[0]
    first, another, repeated = repeat(args.rounds, lambda: first_and_later(reads))
    rows = reads.rows
    counts = {width: joint_count(reads, width) for width in CANVASES}
    canvases = {
        width: repeat(args.rounds, lambda w=width, n=count: joint(reads, w, n))
        for width, count in counts.items()
    }
    after = resident_bytes()
    peak = peak_bytes()
    ratio = repeated.median / first.median
    targets = {
        f"resident set of at most {RESIDENT_TARGET / GIB:g} GiB": (
            f"{peak / GIB:.2f} GiB at most",
            peak <= RESIDENT_TARGET,
        ),
        f"repeated read / first read of at most {REPEATED_TARGET}": (
            f"{ratio:.2f}",
            ratio <= REPEATED_TARGET,
        ),
    }
    report = {
        "machine": facts,
        "kernels": native.kernels(),
        "file_bytes": size_of(args.model),
        "before": before,
        "loaded": loaded,
        "after": after,
        "peak": peak,
        "loaded_s": loaded_s,
        "cold_ms": cold,
        "first_ms": first.median,
        "another_ms": another.median,
        "repeated_ms": repeated.median,
        "row_invariant": engine.model.row_invariant,
        "joint_ms": {width: [one.median for one in pair] for width, pair in canvases.items()},
        "repeated_counts": rows,
        "targets": {name: {"value": value, "met": met} for name, (value, met) in targets.items()},
    }
    if not say(report, args.json):
        return
    out = console()
    out.print(machine_line(facts))
    made = table(
        f"{args.model.name}, {report['file_bytes'] / 1e9:.2f} GB, kernels {native.kernels()}", "", ""
    )
    made.add_row("loaded in", f"{loaded_s:.1f} s")
    made.add_row(
        "resident before, after loading, after reads",
        " / ".join(f"{n / GIB:.2f}" for n in (before, loaded, after)) + " GiB",
    )
    made.add_row("highest resident set", f"{peak / GIB:.2f} GiB")
    out.print(made)
    made = table(
        f"Reads of a state of {args.tokens} tokens, ms: median (quartiles) of {args.rounds}",
        "request", "new state", "another question", "the same again",
    )  # fmt: skip
    made.add_row("1 question, the very first", f"{cold:.0f}", "", "")
    made.add_row("1 question", first.shown(0), another.shown(0), repeated.shown(0))
    out.print(made)
    made = table(
        "Joint layout, ms: a first schema, then another state of the same",
        "canvas",
        "questions",
        "first",
        "same schema",
    )
    for width, (one, two) in canvases.items():
        made.add_row(f"{width}", f"{counts[width]}", one.shown(0), two.shown(0))
    out.print(made)
    for name, (value, met) in targets.items():
        out.print(f"{name}: {value}, {verdict(met)}")


def size_of(path: Path) -> int:
    """Bytes of the weight files."""
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for kind in ("*.safetensors", "*.gguf") for file in path.glob(kind))


def peak_bytes() -> int:
    """The highest resident set of this process so far."""
    import resource
    import sys

    highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return highest if sys.platform == "darwin" else highest * 1024


if __name__ == "__main__":
    main()
