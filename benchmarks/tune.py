"""Measure the tuning step against the forward that it is made of: the same prompts, the same run.

A step that trains all weights is three forwards of work: the forward, the gradient of the rows and the
gradient of the weights. One that trains an adapter is two, since most weights have no gradient. Steps are
the trainer's own: laying out, forward, backward, clipping and AdamW.

    python benchmarks/tune.py
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from common import Quartiles, add_json_option, console, machine, machine_line, parser_of, say, table, verdict
from flops import attention_flops, dense_flops, expert_flops
from texts import questions, state
from timing import Variant, run_rounds

from jev.engine import Engine
from jev.schemas import alternatives
from jev.tune.augment import NONE
from jev.tune.examples import Example, Labelled, Prepared
from jev.tune.objective import loss_of
from jev.tune.recipe import Recipe
from jev.tune.schedule import packed
from jev.tune.trained import trainable
from jev.tune.trainer import Trainer

TARGET = 0.7
"""Least rate of a step that trains all weights, as a share of the forward's."""


def example(number: int, tokens: int, asked: int) -> Example:
    """A state with questions, each labelled with its first alternative."""
    labelled = {}
    for name, question in questions(asked).items():
        count = len(alternatives(question))
        labelled[name] = Labelled(question, (1.0, *[0.0] * (count - 1)))
    return Example(state(tokens, number), labelled)


def forward_flops(engine: Engine, batch: Sequence[Prepared]) -> int:
    """Operations of a batch: what all prefixes begin with, the rest of them, all branches and canvases."""
    config, total = engine.model.config.text, 0
    prefixes = [list(one.prompt.prefix) for one in batch]
    shared = len(os.path.commonprefix(prefixes)) if len(prefixes) > 1 else 0  # noqa: RUF071 - ids, no paths
    rest = [row + 1 for one in prefixes for row in range(shared, len(one))]
    for seen in (list(range(1, shared + 1)), rest):
        total += dense_flops(engine.model, len(seen), 0) + expert_flops(engine.model, len(seen), 0)
        total += attention_flops(config, seen, 0)
    behind: list[int] = []
    slots = 0
    for one in batch:
        prefix = len(one.prompt.prefix)
        for branch, canvases in one.prompt.branches:
            behind += [prefix + row + 1 for row in range(len(branch))]
            for canvas in canvases:
                behind += [prefix + len(branch) + len(canvas.ids)] * len(canvas.ids)
                slots += len(canvas.slots)
    total += dense_flops(engine.model, len(behind), slots) + expert_flops(engine.model, len(behind), slots)
    return total + attention_flops(config, behind, slots)


class Bench:
    """A model and a trainer of all weights or of an adapter, whose every step has the same states.

    Args:
        args: the command line.
        folder: for the trainer.
        full: train all weights.
    """

    def __init__(self, args: argparse.Namespace, folder: Path, *, full: bool) -> None:
        self.engine = Engine.load(args.model)
        states = [example(number, args.tokens, args.questions) for number in range(args.batch)]
        recipe = Recipe.of(
            full=full,
            batch=args.batch,
            rows=args.rows,
            steps=1000,
            shuffle=False,
            subset=0.0,
            undescribed=0.0,
            lr=1e-6,
        )
        parameters = trainable(self.engine.model, recipe)
        self.trainer = Trainer(self.engine.model, self.engine.context, parameters, states, [], recipe, folder)
        self.batches = list(packed(self.trainer.laid_out(states, NONE), args.rows))
        self.flops = sum(forward_flops(self.engine, batch) for batch in self.batches)
        self.rows = sum(one.prompt.rows for batch in self.batches for one in batch)

    def forward(self, number: int) -> None:
        """The forward alone."""
        with torch.inference_mode():
            for batch in self.batches:
                loss_of(self.engine.model, batch)

    def step(self, number: int) -> None:
        """A whole step."""
        self.trainer.take_step(0.5)


@dataclasses.dataclass(frozen=True)
class Result:
    """A kind of step: its times, and its rate as a share of the forward's; `work` in forwards."""

    name: str
    work: int
    forward: Variant
    step: Variant

    @property
    def share(self) -> Quartiles:
        """Operations a second of the step over those of the forward, round by round."""
        return self.step.share(self.forward)

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "name": self.name,
            "work_in_forwards": self.work,
            "forward_ms": dataclasses.asdict(self.forward.ms),
            "step_ms": dataclasses.asdict(self.step.ms),
            "step_gflops": dataclasses.asdict(self.step.gflops),
            "forward_gflops": dataclasses.asdict(self.forward.gflops),
            "share": dataclasses.asdict(self.share),
        }


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--model", help="checkpoint folder (default: the embedded model)")
    parser.add_argument("--rounds", type=int, default=7, help="steps of each kind (default 7)")
    parser.add_argument("--batch", type=int, default=8, help="states a step (default 8)")
    parser.add_argument("--tokens", type=int, default=100, help="tokens of a state (default 100)")
    parser.add_argument("--questions", type=int, default=2, help="questions about each (default 2)")
    parser.add_argument("--rows", type=int, default=2048, help="most rows of a forward (default 2048)")
    parser.add_argument("--threads", type=int, help="torch threads")
    add_json_option(parser)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = arguments(argv)
    facts = machine(args.threads)
    results: list[Result] = []
    with tempfile.TemporaryDirectory() as folder:
        benches = {"all weights": (Bench(args, Path(folder), full=True), 3)}
        benches["an adapter of rank 16"] = (Bench(args, Path(folder), full=False), 2)
        for name, (bench, work) in benches.items():
            forward = Variant(f"{name}: forward", bench.forward, bench.flops)
            results.append(Result(name, work, forward, Variant(name, bench.step, work * bench.flops)))
        run_rounds([one for result in results for one in (result.forward, result.step)], args.rounds)
    rows = benches["all weights"][0].rows
    facts |= {"model": benches["all weights"][0].engine.name, "rounds": args.rounds, "rows": rows}

    if say({"machine": facts, "steps": [one.plain() for one in results], "target": TARGET}, args.json):
        out = console()
        out.print(f"{facts['model']}, {rows} rows a step, {args.rounds} rounds; {machine_line(facts)}")
        made = table(
            "Tuning steps: median (quartiles)",
            "trained", "forward ms", "step ms", "forward GFLOP/s", "step GFLOP/s", "of forward", "target", "",
        )  # fmt: skip
        for one in results:
            met = ("", "")
            if one.work == 3:
                met = (f"at least {TARGET:.0%}", verdict(one.share.median >= TARGET))
            made.add_row(
                one.name,
                one.forward.ms.shown(0),
                one.step.ms.shown(0),
                f"{one.forward.gflops.median:.1f}",
                f"{one.step.gflops.median:.1f}",
                one.share.shown(),
                *met,
            )
        out.print(made)


if __name__ == "__main__":
    main()
