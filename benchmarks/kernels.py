"""Measure the kernels for quantised weights: a layer of the 26B model against llama.cpp's, and each block
type alone, beside the other ways that torch has.

    python benchmarks/kernels.py --peer OTHER/bin/python

OTHER is an environment with `llama-cpp-python`, built from source with native flags. Both sides run the same
GGUF file of six full-width layers (five sliding, one full) with random weights, in turn, on as many threads.
Without `--peer` only this project's side is measured.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
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

LAYERS = 6
TARGET = 1.0
"""Most that a layer may take, in times of llama.cpp's layer."""
PARAMETERS_A_ROW = {"attention": 34.6e6, "dense": 17.84e6, "experts": 47.58e6}
"""Weights of a sliding layer that a row is multiplied with."""


class Peer:
    """llama.cpp in a process of its own."""

    def __init__(self, python: Path, file: Path, threads: int) -> None:
        command = [str(python), str(Path(__file__).with_name("peer.py")), str(file), str(threads)]
        # Its threads wait as ours do (see jev._before_torch); spinning they would hold each other up.
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=dict(os.environ)
        )
        self._line()

    def seconds(self, rows: int) -> float:
        """Time of one forward of `rows` rows."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{rows}\n")
        self._process.stdin.flush()
        return float(self._line())

    def stop(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"llama.cpp ended with status {self._process.wait()}")
        return line


def layers(args: argparse.Namespace, threads: int, file: Path) -> list[dict[str, Any]]:
    """A layer's milliseconds on both sides, by number of rows."""
    import cut

    text = cut.load(file, LAYERS)
    peer = None if args.peer is None else Peer(args.peer, file, threads)
    found = []
    for rows in args.rows:
        ids = [(7 * n + 3) % cut.VOCAB for n in range(rows)]
        ours: list[float] = []
        theirs: list[float] = []
        for number in range(-2, args.rounds):  # two rounds warm up
            a = seconds(lambda ids=ids: cut.run(text, ids))
            b = peer.seconds(rows) if peer is not None else None
            if number >= 0:
                ours.append(1000 * a / LAYERS)
                theirs += [] if b is None else [1000 * b / LAYERS]
        progress(f"{rows} rows")
        one = {"rows": rows, "ms": Quartiles.of(ours), "peer": None, "ratio": None}
        if theirs:
            ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
            one |= {
                "peer": Quartiles.of(theirs),
                "ratio": Quartiles.of(ratios),
                "best": min(ours) / min(theirs),
            }
        one["gflops"] = 2 * rows * sum(PARAMETERS_A_ROW.values()) / one["ms"].median / 1e6
        one["gbytes"] = cut.touched(text, ids) / LAYERS / one["ms"].median / 1e6
        found.append(one)
    if peer is not None:
        peer.stop()
    return found


def types(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Each block type alone: bytes and operations a second of one product, and its distance from fp32."""
    import torch
    from cut import random_blocks

    from jev.model import native
    from jev.model.quant.blocks import decode

    found = []
    for kind, width in (
        ("Q4_K", 2816),
        ("Q5_K", 2816),
        ("Q6_K", 2816),
        ("Q5_0", 2112),
        ("Q5_1", 2112),
        ("Q8_0", 2112),
    ):
        raw = torch.from_numpy(random_blocks(kind, (2**14, width)))
        weights = native.prepare(kind, raw, width)
        x = torch.randn(16, width)
        exact = x @ decode(raw[:512], kind).T
        error = (weights.linear(x)[:, :512] - exact).norm() / exact.norm()
        for rows in args.rows:
            x = torch.randn(rows, width)
            best = min(seconds(lambda x=x, w=weights: w.linear(x)) for _ in range(args.rounds))
            found.append(
                {
                    "type": kind,
                    "rows": rows,
                    "ms": 1000 * best,
                    "gbytes": weights.nbytes / best / 1e9,
                    "gflops": 2 * rows * width * weights.height / best / 1e9,
                    "error": float(error),
                }
            )
    return found


def roofs(rounds: int) -> dict[str, float]:
    """What the machine can do: bytes read a second, and operations a second of an fp32 matmul."""
    import torch

    data = torch.ones(2**27, dtype=torch.int64)
    left, right = torch.randn(256, 2816), torch.randn(4096, 2816)
    return {
        "gbytes": data.nbytes / min(seconds(data.sum) for _ in range(rounds)) / 1e9,
        "gflops": 2
        * left.numel()
        * len(right)
        / min(seconds(lambda: left @ right.T) for _ in range(rounds))
        / 1e9,
    }


def seconds(call: Callable[[], object]) -> float:
    """Time of one call."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def show(result: dict[str, Any]) -> None:
    """Print the tables."""
    out = console()
    out.print(machine_line(result["machine"]), f"kernels {result['kernels']}")
    roof = result["roofs"]
    out.print(f"reads {roof['gbytes']:.1f} GB/s; fp32 matmul of 256 rows {roof['gflops']:.0f} GFLOP/s")
    columns = ("rows", "ms", "GB/s", "GFLOP/s", "llama.cpp ms", "ratio", "of best", "")
    shown = table("A layer (median and quartiles)", *columns)
    for one in result["layers"]:
        cells = [str(one["rows"]), one["ms"].shown(1), f"{one['gbytes']:.1f}", f"{one['gflops']:.0f}"]
        if one["peer"] is not None:
            met = verdict(one["ratio"].median <= TARGET)
            cells += [one["peer"].shown(1), one["ratio"].shown(2), f"{one['best']:.2f}", met]
        shown.add_row(*cells)
    out.print(shown)
    shown = table("A product alone (best)", "type", "rows", "ms", "GB/s", "GFLOP/s", "error")
    for one in result["types"]:
        shown.add_row(
            *(
                one["type"],
                str(one["rows"]),
                f"{one['ms']:.2f}",
                f"{one['gbytes']:.1f}",
                f"{one['gflops']:.0f}",
            ),
            f"{one['error']:.4f}",
        )
    out.print(shown)
    names = list(result["ways"][0]) if result["ways"] else ["rows"]
    shown = table("Ways to multiply by a 4-bit matrix, one thread (best GFLOP/s)", *names)
    for one in result["ways"]:
        shown.add_row(*(f"{one[name]:.0f}" for name in names))
    out.print(shown)


def main() -> None:
    """Measure and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--peer", type=Path, metavar="PYTHON", help="interpreter that has llama-cpp-python")
    parser.add_argument(
        "--file", type=Path, help="where the GGUF file is or shall be (3.3 GB; default: temporary)"
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 6, 16, 70, 256])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--no-layers", action="store_true", help="only the products alone")
    parser.add_argument("--no-types", action="store_true", help="only the layers")
    add_json_option(parser)
    args = parser.parse_args()
    facts = machine(args.threads)

    import cut
    from ways import ways

    from jev.model import native

    result: dict[str, Any] = {"machine": facts, "kernels": native.kernels(), "roofs": roofs(args.rounds)}
    with tempfile.TemporaryDirectory() as folder:
        file = args.file or Path(folder) / "cut.gguf"
        if not args.no_layers and not file.exists():
            progress("writing the layers")
            cut.write(file, LAYERS)
        result["layers"] = [] if args.no_layers else layers(args, facts["threads"], file)
        result["types"] = [] if args.no_types else types(args)
        result["ways"] = [] if args.no_types else ways(args.rows, args.rounds)
    plain = [
        {key: asdict(value) if isinstance(value, Quartiles) else value for key, value in one.items()}
        for one in result["layers"]
    ]
    if say(result | {"layers": plain}, args.json):
        show(result)


if __name__ == "__main__":
    main()
