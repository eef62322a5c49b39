"""Measure what a denoising step costs beside a plain forward of the same rows.

Two checkpoints: the embedded model, and a random one with a canvas of 256 tokens and a larger vocabulary. For
each, in turn, one call of each a round:

- first forward: canvas ids to logits, as in a canvas's first step;
- forward: the same with self-conditioning, which takes the last step's logits, as transformers' forward does;
- step: all of a denoising step: forward, softmax, entropies, draws, self-conditioning of the next.

    python benchmarks/generate.py
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import add_json_option, console, machine, machine_line, parser_of, say, table, verdict
from timing import Variant, run_rounds

import torch  # isort: skip - behind `common`, which sets it up

from jev.model import embedded
from jev.model.checkpoint import load_checkpoint
from jev.model.denoise import Generation
from jev.model.diffusion_gemma import DiffusionGemma
from jev.model.tiny import write_tiny_checkpoint
from jev.model.writing import MAX_STEPS, Options

TARGET = 1.15
"""Most that a step may cost of a forward."""


class Steps:
    """Denoising steps that never end: a canvas that has had all its steps is begun again."""

    def __init__(self, model: DiffusionGemma, prompt: list[int]) -> None:
        self.model = model
        self.prefix = model.prefill(prompt)
        # No canvas is ever so sure.
        self.options = Options.of(
            model.config, blocks=1, max_denoising_steps=MAX_STEPS, confidence=1e-12, stability=1
        )
        self.generation: Generation | None = None

    def __call__(self, _: int) -> None:
        """One step, never the first of its canvas, which has no self-conditioning."""
        if self.generation is None or self.generation.steps >= MAX_STEPS - 1:
            self.generation = Generation(self.model, [], self.options, prefix=self.prefix)
            self.generation.step()
        self.generation.step()


@dataclass(frozen=True)
class Measured:
    """What is compared on one model."""

    name: str
    model: DiffusionGemma
    first: Variant
    forward: Variant
    step: Variant

    @classmethod
    def of(cls, name: str, model: DiffusionGemma, prompt: int) -> Measured:
        """The variants behind a prompt of random ids."""
        config, generator = model.config, torch.Generator().manual_seed(0)
        ids = torch.randint(0, config.text.vocab_size, (prompt,), generator=generator).tolist()
        canvas = torch.randint(0, config.text.vocab_size, (config.canvas_length,), generator=generator)
        steps = Steps(model, ids)
        previous = model.decode(canvas, steps.prefix) / 0.8
        return cls(
            name,
            model,
            Variant(f"{name}: first forward", lambda _: model.decode(canvas, steps.prefix)),
            Variant(f"{name}: forward", lambda _: model.decode(canvas, steps.prefix, previous=previous)),
            Variant(f"{name}: step", steps),
        )

    @property
    def variants(self) -> tuple[Variant, ...]:
        """All three."""
        return self.first, self.forward, self.step


def larger(folder: Path, args: argparse.Namespace) -> DiffusionGemma:
    """A random model that is wider than the tiny one is by default."""
    write_tiny_checkpoint(
        folder,
        layers=args.layers,
        hidden=args.hidden,
        window=1024,
        vocab=args.vocab,
        canvas=args.canvas,
        vision=False,
        tokenizer=False,
    )
    return load_checkpoint(folder)


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="calls of each variant (default 15)")
    parser.add_argument("--prompt", type=int, default=200, help="tokens of the prompt (default 200)")
    parser.add_argument("--vocab", type=int, default=32768, help="of the random model (default 32768)")
    parser.add_argument("--canvas", type=int, default=256, help="of the random model (default 256)")
    parser.add_argument("--hidden", type=int, default=1024, help="of the random model (default 1024)")
    parser.add_argument("--layers", type=int, default=6, help="of the random model (default 6)")
    parser.add_argument("--threads", type=int, help="torch threads")
    add_json_option(parser)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = arguments(argv)
    facts = machine(args.threads) | {"rounds": args.rounds, "prompt": args.prompt}
    with tempfile.TemporaryDirectory() as folder:
        random = larger(Path(folder) / "checkpoint", args)
        measured = [
            Measured.of(embedded.NAME, load_checkpoint(embedded.path()), args.prompt),
            Measured.of("random", random, args.prompt),
        ]
        run_rounds([variant for one in measured for variant in one.variants], args.rounds)
    if say({"machine": facts, "models": [_report(one) for one in measured]}, args.json):
        out = console()
        out.print(f"{args.rounds} rounds, a prompt of {args.prompt} tokens; {machine_line(facts)}")
        made = table(
            "A denoising step: median ms; ratios within a round: median (quartiles)",
            "model", "canvas", "vocabulary", "first", "forward", "step", "step / first", "step / forward",
            "at most", "",
        )  # fmt: skip
        for one in measured:
            ratio = one.step.times(one.forward)
            made.add_row(
                one.name,
                f"{one.model.config.canvas_length}",
                f"{one.model.config.text.vocab_size}",
                *(f"{variant.ms.median:.0f}" for variant in one.variants),
                one.step.times(one.first).shown(),
                ratio.shown(),
                f"{TARGET:g}",
                verdict(ratio.median <= TARGET),
            )
        out.print(made)


def _report(one: Measured) -> dict[str, Any]:
    ratio = one.step.times(one.forward)
    return {
        "name": one.name,
        "canvas": one.model.config.canvas_length,
        "vocab": one.model.config.text.vocab_size,
        **{key: dataclasses.asdict(getattr(one, key).ms) for key in ("first", "forward", "step")},
        "step_to_first": dataclasses.asdict(one.step.times(one.first)),
        "step_to_forward": dataclasses.asdict(ratio),
        "target": TARGET,
        "met": ratio.median <= TARGET,
    }


if __name__ == "__main__":
    main()
