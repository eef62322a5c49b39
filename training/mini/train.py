"""Train the embedded model: `python train.py SEED_DIR ROWS.jsonl OUT --minutes 100`.

The objective of `jev tune` on packs of a few thousand rows, with helper losses (guides.py), matmuls in
bfloat16 and one thread. Weights, moments and a moving mean of the weights are written every few minutes, so
that a run can be killed and goes on with `--resume`.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from random import Random
from typing import Any

import jev._before_torch  # noqa: F401 - before torch

import torch  # isort: skip
from data import batches, twin_pairs
from fast import Fast
from guides import Guides, cross_entropy, disagreement
from packs import pack

from jev.engine import Engine

LINES, POINTER, ORDER = 0.3, 0.15, 1.0
"""Weights of the helper losses."""
SAVE_SECONDS = 240
MEAN_STEPS = 4
FROZEN = 3
"""Layers that stay as they are."""
TOLD = ("loss", "right", "lines", "line_right", "pointer", "order")


def trained(name: str, frozen: int, last: int) -> bool:
    """Whether a parameter of the text model is trained."""
    if name.startswith(("embed_tokens", "self_conditioning")) or "layer_scalar" in name:
        return False
    if name.startswith("layers."):
        layer = int(name.split(".")[1])
        # The experts of all layers but the last are switched off in the seed.
        silent = layer < last and any(part in name for part in ("experts", "router", "_2."))
        return layer >= frozen and not silent
    return True


def groups(model: Any, lr: float, frozen: int) -> list[dict[str, Any]]:
    """Parameters with their learning rates."""
    last = len(model.text.layers) - 1
    found = []
    for name, parameter in model.text.named_parameters():
        parameter.requires_grad_(trained(name, frozen, last))
        if not parameter.requires_grad:
            continue
        if parameter.dim() > 1:
            rate = lr * (2.0 if name.startswith(f"layers.{last}.") else 1.0)
            found.append({"params": [parameter], "peak": rate, "weight_decay": 0.01})
        else:
            rate = 3 * lr * max(parameter.abs().mean().item(), 1e-3)
            found.append({"params": [parameter], "peak": rate, "weight_decay": 0.0})
    return found


class Trainer:
    """A model in training.

    Args:
        engine: the seed; its model is trained in place.
        out: where it is kept.
        lr: peak learning rate of matrices.
        frozen: layers that stay as they are.
        compiled: as for `Fast`.
    """

    def __init__(self, engine: Engine, out: Path, *, lr: float, frozen: int, compiled: bool = True) -> None:
        self.model, self.out = engine.model, out
        self.model.text.skip_silent_experts()
        self.newline = engine.context.tokenizer.encode("\n")[0]
        self.tail = len(engine.context.template.answer_turn)
        config = self.model.config.text
        last = len(config.layers) - 1
        self.guides = Guides(config.hidden_size, sorted({last - 3, last - 1} - {-1, -2}))
        parameters = groups(self.model, lr, frozen)
        parameters += [{"params": list(self.guides.parameters()), "peak": 3e-3, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(parameters, lr=lr, betas=(0.9, 0.98), fused=True)
        self.parameters = [one for group in parameters for one in group["params"]]
        self.fast = Fast(self.model, compiled=compiled, frozen=frozen)
        self.mean = {
            name: one.detach().clone()
            for name, one in self.model.text.named_parameters()
            if one.requires_grad
        }
        self.done = 0.0
        self.steps = 0

    def step(self, batch: list[Any], factor: float) -> dict[str, float]:
        """One step at `factor` of the peak rates; sums over reads."""
        for group in self.optimizer.param_groups:
            group["lr"] = group["peak"] * factor
        rows = pack(batch, self.newline, self.tail)
        result = self.fast(rows, self.guides.layers)
        loss = cross_entropy(result.logits, rows).mean()
        lines, line_right = self.guides.lines(rows, result)
        pointer = self.guides.pointer(rows, result)
        reads = len(rows.slots)
        order = disagreement(result.logits, twin_pairs(batch)) / reads
        (loss + LINES * lines + POINTER * pointer + ORDER * order).backward()
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        if torch.isfinite(norm):
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.steps += 1
        if self.steps % MEAN_STEPS == 0:
            self._count()
        right = float((result.logits.argmax(-1) == rows.targets.argmax(-1)).float().mean())
        values = (loss, right, lines, line_right, pointer, order)
        told = {
            name: float(torch.as_tensor(value).detach()) * reads
            for name, value in zip(TOLD, values, strict=True)
        }
        return told | {"reads": reads, "rows": len(rows.ids), "norm": float(norm)}

    @torch.no_grad()
    def _count(self) -> None:
        """Count the weights as they are now into the mean."""
        now = dict(self.model.text.named_parameters())
        updates = self.steps // MEAN_STEPS
        decay = min(0.98, updates / (updates + 3))
        torch._foreach_lerp_(list(self.mean.values()), [now[name] for name in self.mean], 1 - decay)

    def save(self) -> None:
        """Write everything so that a crash leaves the old or the new state."""
        now = {name: one for name, one in self.model.text.named_parameters() if name in self.mean}
        state = {
            "text": {name: one.detach() for name, one in now.items()},
            "mean": self.mean,
            "guides": self.guides.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "done": self.done,
            "steps": self.steps,
        }
        torch.save(state, self.out / "state.part")
        (self.out / "state.part").replace(self.out / "state.pt")

    def load(self, path: Path, *, everything: bool = True) -> None:
        """Go on from a state, or with `everything` False from its weights alone."""
        state = torch.load(path)
        self.model.text.load_state_dict(state["text"], strict=False)
        if state["guides"] is not None:
            self.guides.load_state_dict(state["guides"])
        self.mean = state["mean"] if everything else {k: v.clone() for k, v in state["text"].items()}
        if everything:
            peaks = [group["peak"] for group in self.optimizer.param_groups]
            self.optimizer.load_state_dict(state["optimizer"])
            for group, peak in zip(self.optimizer.param_groups, peaks, strict=True):
                group["peak"] = peak  # a run may go on at another rate
            self.done, self.steps = state["done"], state["steps"]


def rate(share: float, steps: int, cool: float, warm: int = 30) -> float:
    """Factor of the learning rate: `warm` steps up, flat, and from the share `cool` on a cosine to 3 %."""
    factor = min(1.0, (steps + 1) / warm)
    if share > cool:
        factor *= 0.03 + 0.97 * 0.5 * (1 + math.cos(math.pi * min(1.0, (share - cool) / (1 - cool))))
    return factor


def main() -> None:
    """Train until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("rows", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--start", type=Path, help="state.pt whose weights are gone on from")
    parser.add_argument("--resume", action="store_true", help="go on with OUT/state.pt")
    parser.add_argument("--minutes", type=float, default=100)
    parser.add_argument(
        "--cool", type=float, default=0.5, help="share of the time after which the rate falls"
    )
    parser.add_argument("--warm", type=int, default=30, help="steps in which the rate rises")
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--frozen", type=int, default=FROZEN, help="layers that stay as they are")
    parser.add_argument(
        "--twins", type=float, default=0.6, help="share of choices that are asked in two orders"
    )
    parser.add_argument(
        "--other-labels", type=float, default=0.5, help="share of rows whose options have other labels"
    )
    parser.add_argument("--step-rows", type=int, default=1600)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    torch.manual_seed(given.seed)
    engine = Engine.load(given.model)
    trainer = Trainer(engine, given.out, lr=given.lr, frozen=given.frozen)
    if given.resume and (given.out / "state.pt").exists():
        trainer.load(given.out / "state.pt")
    elif given.start:
        trainer.load(given.start, everything=False)
    random = Random(1000 * given.seed + trainer.steps)
    source = batches(
        given.rows,
        engine.context,
        random,
        rows=given.step_rows,
        twins=given.twins,
        other_labels=given.other_labels,
    )
    before = saved = time.time()
    sums: dict[str, float] = {}
    with (given.out / "log.jsonl").open("a", encoding="utf-8") as log:
        while (share := trainer.done / (60 * given.minutes)) < 1:
            told = trainer.step(next(source), rate(share, trainer.steps, given.cool, given.warm))
            sums = {name: sums.get(name, 0.0) + value for name, value in told.items()}
            now = time.time()
            trainer.done, before = trainer.done + now - before, now
            if trainer.steps % 20 == 0:
                entry = {"step": trainer.steps, "s": round(trainer.done), "cpu": round(time.process_time())}
                entry |= {name: round(sums[name] / sums["reads"], 4) for name in TOLD}
                entry |= {"reads": sums["reads"], "rows": sums["rows"], "norm": round(sums["norm"] / 20, 2)}
                log.write(json.dumps(entry) + "\n")
                log.flush()
                sums = {}
            if now - saved > SAVE_SECONDS:
                trainer.save()
                saved = now
    trainer.save()


if __name__ == "__main__":
    main()
