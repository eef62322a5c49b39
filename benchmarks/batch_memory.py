"""Watch the memory of `jev batch run` over many rows: it must not grow with them.

The job runs in a process of its own with a tiny random checkpoint; its resident set is read as rows are
done. Most rows are copies of earlier ones, which cost no read, so that there can be very many.

    python benchmarks/batch_memory.py
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from common import console, machine, machine_line, parser_of, progress, table, verdict

from jev.batch.ledger import read_totals
from jev.batch.readers import JobError
from jev.batch.run import ledger_of
from jev.model.tiny import write_tiny_checkpoint

MIB = 2**20
GROWTH_TARGET = 0.05
"""Most that the resident set may grow from the baseline to the end."""
EVERY_S = 0.25


@dataclass(frozen=True)
class Sample:
    """The process at one moment: rows that are done, and its resident bytes."""

    rows: int
    resident: int


def write_input(folder: Path, rows: int, distinct: int) -> None:
    """Rows whose ids all differ and whose states repeat."""
    with (folder / "rows.jsonl").open("w", encoding="utf-8") as file:
        for number in range(rows):
            about = number * 7919 % distinct
            file.write(json.dumps({"id": f"row {number}", "state": f"state {about}"}) + "\n")
    question = {"q": {"type": "noul", "instructions": "Is it?"}}
    (folder / "questions.json").write_text(json.dumps(question), encoding="utf-8")


def watch(folder: Path, model: Path, threads: int | None) -> list[Sample]:
    """Run the job and sample it; the last sample is the most that it ever took."""
    output = folder / "out.jsonl"
    command = [sys.executable, "-m", "jev", "batch", "run", "--input", str(folder / "rows.jsonl")]
    command += ["--output", str(output), "--questions", str(folder / "questions.json")]
    command += ["--model-path", str(model), "--samples", "1"]
    command += ["--threads", str(threads)] if threads is not None else []
    samples: list[Sample] = []
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        seen = psutil.Process(process.pid)
        while process.poll() is None:
            time.sleep(EVERY_S)
            try:
                rows, resident = read_totals(ledger_of(output))[0].done, seen.memory_info().rss
                if resident:  # not of a process that has just ended
                    samples.append(Sample(rows, resident))
            except (JobError, psutil.Error):
                continue
            if samples and len(samples) % 40 == 0:
                progress(f"{samples[-1].rows} rows, {samples[-1].resident / MIB:.0f} MiB")
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
    return samples


def thinned(samples: Sequence[Sample], count: int = 12) -> list[Sample]:
    """A few samples, spread over the rows, the last one among them."""
    step = max(1, len(samples) // count)
    return [*samples[:-1:step], samples[-1]]


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--rows", type=int, default=200_000, help="rows (default 200000)")
    parser.add_argument(
        "--distinct", type=int, default=50_000, help="different states among them (default 50000)"
    )
    parser.add_argument(
        "--baseline", type=float, default=0.1, help="growth counts from this share of the rows (default 0.1)"
    )
    parser.add_argument("--threads", type=int, help="torch threads of the job")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = arguments(argv)
    facts = machine(args.threads)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = write_tiny_checkpoint(folder / "tiny", layers=1, hidden=16, experts=2, top_k=1, vision=False)
        write_input(folder, args.rows, args.distinct)
        samples = watch(folder, model, args.threads)
    working = [one for one in samples if one.rows > 0]
    base = next((one for one in working if one.rows >= args.baseline * args.rows), working[-1])
    most = max(one.resident for one in working if one.rows >= base.rows)
    growth = most / base.resident - 1
    met = growth <= GROWTH_TARGET
    if args.json:
        report = {
            "machine": facts,
            "samples": [asdict(one) for one in samples],
            "growth": growth,
            "target": GROWTH_TARGET,
            "met": met,
        }
        print(json.dumps(report))
        return
    out = console()
    out.print(machine_line(facts))
    made = table(f"`jev batch run` over {args.rows:,} rows", "rows done", "resident MiB")
    for one in thinned(working):
        made.add_row(f"{one.rows:,}", f"{one.resident / MIB:.1f}")
    out.print(made)
    out.print(
        f"growth from {base.rows:,} rows to the most ever of at most {GROWTH_TARGET:.0%}: "
        f"{base.resident / MIB:.1f} to {most / MIB:.1f} MiB, {growth:+.1%}, {verdict(met)}"
    )


if __name__ == "__main__":
    main()
