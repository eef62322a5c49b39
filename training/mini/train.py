"""Train the embedded model: `python train.py SEED_DIR ROWS.jsonl OUT --minutes 100`.

Two processes with one thread each work on the same weights in shared memory, each with its own optimizer
and its own part of the rows (asynchronous updates; a run cannot be repeated bit by bit). `jev tune
--full` is the orderly way; this one adds helper losses (guides.py) and does not wait where the machine is
busy with other work.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import jev._openmp  # noqa: F401 - before torch

import torch  # isort: skip
import torch.multiprocessing as mp
import torch.nn.functional as F
from guides import Guides
from torch import Tensor

from jev.engine import Engine
from jev.model.tuning import label_logits
from jev.schemas import Choice, Row, alternatives, index_of
from jev.tune.augment import NONE, Augmentation, augmented
from jev.tune.examples import Example, Labelled, Prepared, prepare
from jev.tune.objective import weighed

HOW = Augmentation(subset=0.15, undescribed=0.1)
LINES, POINTER, ORDER = 0.3, 0.15, 0.5
"""Weights of the helper losses."""
TWIN = "~"
"""Marks the question that is another one with its options in reverse."""


def example(line: str) -> Example:
    """A row of the file."""
    row = Row.model_validate(json.loads(line))
    labelled = {}
    for name, question in (row.questions or {}).items():
        right = index_of(question, (row.answers or {})[name])
        labelled[name] = Labelled(
            question, tuple(float(one == right) for one in range(len(alternatives(question))))
        )
    return Example(row.state, labelled)


def twinned(one: Example, random: Random, share: float) -> Example:
    """The example, shuffled, with a twin in reverse order for some of its choices."""
    questions: dict[str, Labelled] = {}
    for name, labelled in one.questions.items():
        question, target = augmented(labelled.question, labelled.target, HOW, random)
        questions[name] = Labelled(question, target)
        if isinstance(question, Choice) and 2 < len(target) < 13 and random.random() < share:
            turned = question.model_copy(update={"criteria": dict(reversed(question.criteria.items()))})
            questions[name + TWIN] = Labelled(turned, target[::-1])
    return Example(one.state, questions)


def disagreement(batch: Sequence[Prepared], logits: Sequence[Tensor]) -> Tensor:
    """How far twins are apart: the sum of both Kullback-Leibler divergences, halved, over all of them."""
    total = logits[0].new_zeros(())
    rows = iter(logits)
    for one in batch:
        of: dict[str, Tensor] = {read.question: F.log_softmax(next(rows), -1) for read in one.reads}
        for name, row in of.items():
            if (twin := of.get(name + TWIN)) is not None:
                other = twin.flip(0)
                total = total + ((row.exp() - other.exp()) * (row - other)).sum() / 2
    return total


def trained(name: str, frozen: int) -> bool:
    """Whether a parameter of the text model is trained."""
    if name.startswith(("embed_tokens", "self_conditioning")) or "layer_scalar" in name:
        return False
    if name.startswith("layers."):
        layer = int(name.split(".")[1])
        # The experts of all layers but the last are switched off in the seed.
        return layer >= frozen and not (
            layer < 8 and any(part in name for part in ("experts", "router", "_2."))
        )
    return True


def groups(model: Any, given: argparse.Namespace) -> list[dict[str, Any]]:
    """Parameters with their learning rates."""
    last = len(model.text.layers) - 1
    found = []
    for name, parameter in model.text.named_parameters():
        parameter.requires_grad_(trained(name, given.frozen))
        if not parameter.requires_grad:
            continue
        if parameter.dim() > 1:
            rate = given.lr * (2.0 if name.startswith(f"layers.{last}.") else 1.0)
            found.append({"params": [parameter], "peak": rate, "weight_decay": 0.01})
        else:
            rate = 3 * given.lr * max(parameter.abs().mean().item(), 1e-3)
            found.append({"params": [parameter], "peak": rate, "weight_decay": 0.0})
    return found


class Mean:
    """A moving mean of what is trained; steadier than the last weights while the rate is high."""

    def __init__(self, model: Any, out: Path, decay: float = 0.997) -> None:
        self.now = {name: one for name, one in model.text.named_parameters() if one.requires_grad}
        self.decay = decay
        kept = out / "mean.pt"
        before = torch.load(kept)["text"] if kept.exists() else {}
        self.values = {name: before.get(name, one.detach()).clone() for name, one in self.now.items()}

    @torch.no_grad()
    def update(self) -> None:
        """Count the weights as they are now."""
        torch._foreach_lerp_(list(self.values.values()), list(self.now.values()), 1 - self.decay)


def work(number: int, engine: Engine, guides: Guides, given: argparse.Namespace, started: float) -> None:
    """One process's share of the training."""
    torch.set_num_threads(1)
    if number:
        os.nice(15)
    torch.manual_seed(number)
    random = Random(1000 * given.seed + number)
    with given.rows.open(encoding="utf-8") as file:
        lines = [line for index, line in enumerate(file) if index % given.processes == number]
    model = engine.model
    parameters = groups(model, given)
    parameters += [{"params": list(guides.parameters()), "peak": 3e-3, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, betas=(0.9, 0.98))
    moments = given.out / f"moments{number}.pt"
    if given.start and moments.exists():
        optimizer.load_state_dict(torch.load(moments))
    everything = [parameter for group in parameters for parameter in group["params"]]
    mean = Mean(model, given.out) if number == 0 else None
    log = (given.out / f"log{number}.jsonl").open("a", encoding="utf-8")
    saved = time.time()
    step = 0
    position = len(lines)
    sums = {
        "loss": 0.0,
        "right": 0.0,
        "lines": 0.0,
        "pointer": 0.0,
        "order": 0.0,
        "line_right": 0.0,
        "reads": 0,
        "rows": 0,
    }
    while (share := (time.time() - started) / (60 * given.minutes)) < 1:
        batch: list[Prepared] = []
        rows = 0
        while rows < given.step_rows:
            if position >= len(lines):
                random.shuffle(lines)
                position = 0
            drawn = twinned(example(lines[position]), random, given.twins)
            one = prepare(drawn, engine.context, random, how=NONE)
            position += 1
            if one is not None and one.prompt.rows < 900:
                batch.append(one)
                rows += one.prompt.rows
        factor = min(1.0, (step + 1) / 20)
        if share > given.cool:
            factor *= 0.03 + 0.97 * 0.5 * (1 + math.cos(math.pi * (share - given.cool) / (1 - given.cool)))
        for group in optimizer.param_groups:
            group["lr"] = group["peak"] * factor
        logits = label_logits(model, [one.prompt for one in batch])
        loss, stats = weighed(batch, logits)
        line_loss, pointer, line_right = guides(batch)
        order = disagreement(batch, logits)
        fade = 1.0 if share < given.cool else 0.5
        total = (loss + fade * (LINES * line_loss + POINTER * pointer) + ORDER * order) / stats.weight
        total.backward()
        norm = torch.nn.utils.clip_grad_norm_(everything, 1.0)
        if torch.isfinite(norm):
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if mean is not None:
            mean.update()
        step += 1
        sums["loss"] += stats.loss
        sums["right"] += stats.correct
        sums["lines"] += float(line_loss.detach())
        sums["pointer"] += float(pointer.detach())
        sums["order"] += float(order.detach())
        sums["line_right"] += line_right * stats.reads
        sums["reads"] += stats.reads
        sums["rows"] += stats.rows
        if step % 20 == 0:
            reads = sums["reads"]
            told = {
                name: round(value / reads, 4) for name, value in sums.items() if name not in ("reads", "rows")
            }
            log.write(
                json.dumps(
                    {
                        "step": step,
                        "s": round(time.time() - started),
                        **told,
                        "reads": reads,
                        "rows": sums["rows"],
                        "norm": round(float(norm), 3),
                        "lr": factor,
                    }
                )
                + "\n"
            )
            log.flush()
            sums = dict.fromkeys(sums, 0)
        if time.time() - saved > 300:
            save(engine, guides, optimizer, mean, given.out, number)
            saved = time.time()
    save(engine, guides, optimizer, mean, given.out, number)


def save(
    engine: Engine,
    guides: Guides,
    optimizer: torch.optim.Optimizer,
    mean: Mean | None,
    out: Path,
    number: int,
) -> None:
    """Write weights (the first process) and moments so that a crash leaves the old or the new ones."""
    things = {f"moments{number}": optimizer.state_dict()}
    if mean is not None:
        things["mean"] = {"text": {**engine.model.text.state_dict(), **mean.values}}
        things["weights"] = {"text": engine.model.text.state_dict(), "guides": guides.state_dict()}
    for name, thing in things.items():
        torch.save(thing, out / f"{name}.part")
        (out / f"{name}.part").replace(out / f"{name}.pt")


def main() -> None:
    """Start the processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("rows", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--start", type=Path, help="weights.pt to go on from")
    parser.add_argument("--minutes", type=float, default=100)
    parser.add_argument(
        "--cool", type=float, default=0.5, help="share of the time after which the rate falls"
    )
    parser.add_argument("--lr", type=float, default=2e-4)
    parser.add_argument("--frozen", type=int, default=3, help="layers that stay as they are")
    parser.add_argument(
        "--twins", type=float, default=0.6, help="share of choices that are also asked in reverse"
    )
    parser.add_argument("--step-rows", type=int, default=1100)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    engine = Engine.load(given.model)
    guides = Guides(engine.model, engine.context)
    if given.start:
        saved = torch.load(given.start)
        engine.model.text.load_state_dict(saved["text"])
        guides.load_state_dict(saved["guides"])
    for parameter in (*engine.model.parameters(), *guides.parameters()):
        parameter.data = parameter.data.clone().share_memory_()
    started = time.time()
    context = mp.get_context("fork")
    others = [
        context.Process(target=work, args=(number, engine, guides, given, started), daemon=True)
        for number in range(1, given.processes)
    ]
    for one in others:
        one.start()
    work(0, engine, guides, given, started)
    for one in others:
        one.join(120)


if __name__ == "__main__":
    main()
