"""A look at a model in a minute: `python quick.py SEED_DIR SUITE_DIR [--state OUT/state.pt] [--mix 0.5 1]`.

For each task of the suite the accuracy and the log loss; over all of them, how many choices are answered
otherwise when their options are listed in reverse, the calibration error, and the temperature that would make
the log loss least. `jev quality run` is what counts; this one is for steering.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import jev._before_torch  # noqa: F401 - before torch

import torch  # isort: skip
from data import TWIN, cut, example
from export import blend
from fast import Fast
from packs import pack
from torch import Tensor

from jev.engine import Engine
from jev.schemas import Choice
from jev.tune.augment import NONE
from jev.tune.examples import Example, Labelled, Prepared, prepare

LONGEST = 1000
"""Tokens that a read may see: `packs` does not know of the sliding window."""
BINS = 15


@dataclass
class Task:
    """What was read of a task: logits and right label of each question, and whether turning changed it."""

    logits: list[Tensor] = field(default_factory=list[Tensor])
    right: list[int] = field(default_factory=list[int])
    changed: list[bool] = field(default_factory=list[bool])

    @property
    def hits(self) -> list[bool]:
        """Which answers are right."""
        return [int(row.argmax()) == right for row, right in zip(self.logits, self.right, strict=True)]

    @property
    def accuracy(self) -> float:
        """Share of right answers."""
        return sum(self.hits) / len(self.hits)

    def loss(self, temperature: float = 1.0) -> float:
        """Mean log loss, nats."""
        pairs = zip(self.logits, self.right, strict=True)
        return -sum(float(torch.log_softmax(row / temperature, -1)[right]) for row, right in pairs) / len(
            self.right
        )

    def error(self, temperature: float = 1.0) -> float:
        """Expected calibration error of the most likely label, over equal bins."""
        sure = torch.tensor([float((row / temperature).softmax(-1).max()) for row in self.logits])
        gap = sure - torch.tensor(self.hits).float()
        bins = (sure * BINS).long().clamp(max=BINS - 1)
        sums = torch.zeros(BINS).index_add_(0, bins, gap)
        return float(sums.abs().sum() / len(gap))


def turned(one: Example) -> Example:
    """The example with each of its choices in reverse too."""
    questions: dict[str, Labelled] = dict(one.questions)
    for name, labelled in one.questions.items():
        if isinstance(labelled.question, Choice):
            criteria = dict(reversed(labelled.question.criteria.items()))
            other = labelled.question.model_copy(update={"criteria": criteria})
            questions[name + TWIN] = Labelled(other, labelled.target[::-1])
    return Example(one.state, questions)


def seen(one: Prepared) -> int:
    """Most rows that a read sees."""
    branches = one.prompt.branches
    return len(one.prompt.prefix) + max(
        len(branch) + max(len(canvas.ids) for canvas in canvases) for branch, canvases in branches
    )


def suite(engine: Engine, path: Path, most: int, skip: int = 0) -> list[list[Prepared]]:
    """Batches of at most that many rows of each task, without the first `skip`."""
    random = Random(0)
    taken: dict[str, int] = defaultdict(int)
    pool = []
    for line in path.read_text(encoding="utf-8").rstrip("\n").split("\n"):
        one = example(line)
        task = next(iter(one.questions)).split(".")[0]
        taken[task] += 1
        if not skip < taken[task] <= skip + most:
            continue
        prepared = prepare(turned(one), engine.context, random, how=NONE)
        if prepared is not None and seen(prepared) <= LONGEST:
            pool.append(prepared)
    return cut(pool, random, 1600)


@torch.no_grad()
def look(engine: Engine, batches: list[list[Prepared]], fast: Fast) -> dict[str, Task]:
    """Read everything."""
    newline, tail = engine.context.tokenizer.encode("\n")[0], len(engine.context.template.answer_turn)
    found: dict[str, Task] = defaultdict(Task)
    for batch in batches:
        logits = iter(fast(pack(batch, newline, tail)).logits)
        for one in batch:
            rows = {read.question: next(logits)[: len(read.target)] for read in one.reads}
            for read in one.reads:
                if TWIN in read.question:
                    continue
                task, row = found[read.question.split(".")[0]], rows[read.question]
                task.logits.append(row)
                task.right.append(read.target.index(1.0))
                if (other := rows.get(read.question + TWIN)) is not None:
                    task.changed.append(int(other.flip(0).argmax()) != int(row.argmax()))
    return found


def told(found: dict[str, Task]) -> dict[str, float]:
    """Means over tasks and over all."""
    whole = Task()
    for one in found.values():
        whole.logits += one.logits
        whole.right += one.right
        whole.changed += one.changed
    best = min((0.05 * step for step in range(8, 61)), key=whole.loss)
    figures = {
        "reads": len(whole.right),
        "accuracy": whole.accuracy,
        "accuracy of tasks": sum(one.accuracy for one in found.values()) / len(found),
        "loss": whole.loss(),
        "changed": sum(whole.changed) / len(whole.changed),
        "ece": whole.error(),
        "temperature": best,
        "ece there": whole.error(best),
        "loss there": whole.loss(best),
    }
    return {name: round(value, 4) for name, value in figures.items()}


def main() -> None:
    """Print tasks and means."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("suite", type=Path)
    parser.add_argument(
        "--state", type=Path, nargs="*", default=[], help="what train.py wrote; several: their mean"
    )
    parser.add_argument("--part", default="mean", choices=("mean", "text"))
    parser.add_argument("--mix", type=float, nargs="*", default=[1.0], help="shares of the state")
    parser.add_argument("--parts", nargs="*", default=["unseen", "seen"], help="files of the suite")
    parser.add_argument("--most", type=int, default=40, help="rows of a task")
    parser.add_argument("--skip", type=int, default=0, help="first rows of a task that are left out")
    parser.add_argument("--compiled", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    engine = Engine.load(given.model)
    parts = {
        name: suite(engine, given.suite / f"{name}.jsonl", given.most, given.skip) for name in given.parts
    }
    at = 0.0
    for mix in given.mix if given.state else [0.0]:
        if given.state:
            # Each share is reached from the one before, so they must grow.
            blend(engine, given.state, given.part, (mix - at) / (1 - at))
            at = mix
        engine.model.text.skip_silent_experts()
        fast = Fast(engine.model, compiled=given.compiled)
        for name, batches in parts.items():
            found = look(engine, batches, fast)
            for task, one in sorted(found.items()):
                print(f"  {task:22} {len(one.right):4} {one.accuracy:.3f} {one.loss():.3f}")
            print(f"{name} at {mix}:", json.dumps(told(found)), flush=True)


if __name__ == "__main__":
    main()
