"""What a batch is worth: rows a second of `jev batch run` in process and of the server asked row by row.

Both answer the same rows with the same model, in rounds by turns, so that a machine that changes its speed
changes it for both. The server is asked by one client that waits for each answer.

    python benchmarks/batch.py
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from common import (
    Quartiles,
    ServerProcess,
    console,
    machine,
    machine_line,
    parser_of,
    progress,
    table,
    verdict,
)
from texts import questions, state

from jev import Jev
from jev.batch import Job, OpenJob, in_process
from jev.batch.deciders import EngineDecider
from jev.engine import Engine
from jev.settings import Settings

TARGET = 1.3
"""Least that a batch in process must be faster by."""
TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Round:
    """Rows a second, once each way."""

    batch: float
    server: float

    @property
    def ratio(self) -> float:
        """How many times faster the batch was."""
        return self.batch / self.server


def write_rows(folder: Path, rows: int, words: int, number: int) -> list[str]:
    """Write the input of a round; every round has states of its own, so that nothing is cached."""
    states = [state(words, f"batch/{number}/{row}") for row in range(rows)]
    lines = (json.dumps({"state": text}) + "\n" for text in states)
    (folder / "rows.jsonl").write_text("".join(lines), encoding="utf-8")
    return states


def run_batch(folder: Path, engine: Engine, asked: int, number: int, samples: int | None) -> float:
    """Seconds of a whole job, from opening its input to its output in place."""
    wire = {name: one.model_dump(exclude_none=True) for name, one in questions(asked).items()}
    started = time.perf_counter()
    job = Job.load(
        input=str(folder / "rows.jsonl"),
        output=folder / f"out-{number}.jsonl",
        questions=wire,
        options={"samples": samples},
    )
    opened = OpenJob(job, model="benchmark")
    try:
        summary = asyncio.run(opened.run(in_process(lambda: EngineDecider(engine, Settings()))))
    finally:
        opened.close()
    seconds = time.perf_counter() - started
    if summary.progress.totals.failed:
        raise RuntimeError(f"{summary.progress.totals.failed} rows failed")
    return seconds


def run_server(client: Jev, states: Sequence[str], asked: int, samples: int | None) -> float:
    """Seconds of asking row by row."""
    started = time.perf_counter()
    for text in states:
        client.decide(text, questions(asked), samples=samples)
    return time.perf_counter() - started


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--rows", type=int, default=128, help="rows a round (default 128)")
    parser.add_argument("--words", type=int, default=40, help="tokens of a state (default 40)")
    parser.add_argument("--questions", type=int, default=1, help="questions a row (default 1)")
    parser.add_argument("--samples", type=int, help="reads a question; by default as many as it needs")
    parser.add_argument("--rounds", type=int, default=5, help="rounds (default 5)")
    parser.add_argument("--threads", type=int, help="torch threads, here and of the server")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = arguments(argv)
    facts = machine(args.threads)
    engine = Engine.load()
    rounds: list[Round] = []
    server = ServerProcess(threads=args.threads, request_timeout_s=TIMEOUT_S)
    with tempfile.TemporaryDirectory() as name, server, Jev(server.url, timeout=TIMEOUT_S) as client:
        folder = Path(name)
        for number in range(-1, args.rounds):  # the first one warms up
            rows = args.rows if number >= 0 else min(8, args.rows)
            states = write_rows(folder, rows, args.words, number)
            ways = [
                lambda n=number: run_batch(folder, engine, args.questions, n, args.samples),
                lambda s=states: run_server(client, s, args.questions, args.samples),
            ]
            # By turns first and second.
            order = (0, 1) if number % 2 else (1, 0)
            seconds = {way: ways[way]() for way in order}
            if number >= 0:
                rounds.append(Round(rows / seconds[0], rows / seconds[1]))
                progress(f"round {number + 1} of {args.rounds}: {rounds[-1].ratio:.2f} times")
    ratio = Quartiles.of([one.ratio for one in rounds])
    met = ratio.median >= TARGET
    if args.json:
        print(
            json.dumps(
                {
                    "machine": facts,
                    "rounds": [asdict(one) for one in rounds],
                    "ratio": asdict(ratio),
                    "target": TARGET,
                    "met": met,
                }
            )
        )
        return
    out = console()
    out.print(machine_line(facts))
    made = table(
        f"{args.rows} states of {args.words} tokens, {args.questions} question(s) each: "
        "median (quartiles) of the rounds",
        "way", "rows/s",
    )  # fmt: skip
    made.add_row("jev batch run, in process", Quartiles.of([one.batch for one in rounds]).shown())
    made.add_row("jev serve, row by row", Quartiles.of([one.server for one in rounds]).shown())
    out.print(made)
    out.print(f"{ratio.shown()} times as fast; at least {TARGET:g}: {verdict(met)}")


if __name__ == "__main__":
    main()
