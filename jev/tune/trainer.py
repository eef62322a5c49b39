"""The loop: steps of AdamW on labelled reads, with looks at the held-out part, resumable after every step.

Nothing depends on a random state that runs along: what a step sees is decided by the seed and the step's
number, so that a run that was killed goes on with the very numbers of one that was not.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import nn

from jev.errors import InvalidRequestError
from jev.model.diffusion_gemma import DiffusionGemma
from jev.prompt import PromptContext
from jev.tune import keep
from jev.tune.augment import NONE, Augmentation
from jev.tune.exact import exact
from jev.tune.examples import Example, Prepared, Spans, prepare
from jev.tune.group import Group, is_sharded, local, whole
from jev.tune.objective import Stats, loss_of
from jev.tune.recipe import Recipe, TuneError
from jev.tune.record import End, Event, Forecast, Look, Record, Step
from jev.tune.schedule import Order, packed, places, schedule

LOOKS = 10
"""Looks at the held-out part in a run whose recipe does not say."""

LOOK_SHARE = 0.2
"""Share of a timed run after which such looks wait: they must not eat up the time that is for learning."""

SAVE_SECONDS = 60.0
"""Time after which the run is saved; a kill costs at most so much work."""

BETAS = (0.9, 0.99)


class Stopped(TuneError):
    """The run was asked to stop; what it did is saved."""


class Trainer:
    """Trains some parameters of a model on examples.

    Args:
        model: the model; only `parameters` have gradients.
        context: what prompts are built with.
        parameters: what is trained, by name.
        examples: what is learned.
        held_out: what is looked at; may be empty.
        recipe: how.
        folder: where the run is kept; one that is there is gone on with.
        group: the processes that share the steps.
        spans: runs the vision tower on pictures.
        tell: told every step and look (in the first process only).
        stop: whether to end after the step in hand; asked in the first process only.
        save_seconds: see `SAVE_SECONDS`.
    """

    def __init__(
        self,
        model: DiffusionGemma,
        context: PromptContext,
        parameters: Mapping[str, nn.Parameter],
        examples: Sequence[Example],
        held_out: Sequence[Example],
        recipe: Recipe,
        folder: Path,
        *,
        group: Group | None = None,
        spans: Spans = lambda images: (),
        tell: Callable[[Event], None] = lambda event: None,
        stop: Callable[[], bool] = lambda: False,
        save_seconds: float = SAVE_SECONDS,
    ) -> None:
        self.model = model
        self.context = context
        self.parameters = dict(parameters)
        self.examples = examples
        self.recipe = recipe
        self.folder = folder
        self.group = group or Group()
        self.spans = spans
        self.record = Record()
        self.last = recipe.last_step(len(examples))
        self._tell = tell if self.group.first else lambda event: None
        self._stop = stop
        self._order = Order(len(examples), recipe.seed)
        weights = [one.weight for example in examples for one in example.questions.values()]
        self._usual_weight = math.fsum(weights) / max(len(weights), 1) / recipe.draws
        self._save_seconds = save_seconds
        self._looks_at_any = bool(held_out)  # everyone looks together, also one whose own part is empty
        self._held_out = self._batches_of_held_out(held_out)
        self._sharded = any(is_sharded(one) for one in model.parameters())
        self._spare = list(self._any_batch(examples)) if self._sharded else []
        self._optimizer = self._make_optimizer()

    def run(self) -> Record:
        """Train until the recipe's end, and leave the best weights in the model.

        Raises:
            Stopped: `stop` said so; the same run goes on later.
            TuneError: the loss is no number any more, or what was saved cannot be read.
        """
        with exact(self.model.device):
            self._restore()
            if self.record.end is None:
                self._train()
            self._take_best()
        return self.record

    def _train(self) -> None:
        if self._looks_at_any and not self.record.looks:
            self._look()
        self._forecast()
        saved = time.monotonic()
        while (end := self._end()) is None:
            asked, due = self._agree(self._stop(), time.monotonic() - saved > self._save_seconds)
            if asked or due:
                self._save()
                saved = time.monotonic()
            if asked:
                raise Stopped(f"stopped after {self.record.step} steps")
            before = self._progress()
            self.take_step(before)
            if self._looks_at_any and self._look_due(before):
                self._look()
        if self._looks_at_any and self.record.looks[-1].step != self.record.step:
            self._look()
        broken = not all(bool(torch.isfinite(local(one)).all()) for one in self.parameters.values())
        if self.group.sums([float(broken)], self.model.device)[0]:
            raise self._no_number("result of", self.record.step)
        self.record.end = end
        self._save()

    def take_step(self, progress: float) -> None:
        """Take the next step, with the learning rate of a run of which `progress` is done.

        Raises:
            TuneError: its gradient is no number.
        """
        started = time.perf_counter()
        rate = self.recipe.learning_rate * schedule(progress, self.recipe.warmup)
        stats = self._gradients(self.record.step)
        gradients = [one.grad for one in self.parameters.values() if one.grad is not None]
        # By the usual weight and not by the step's own, or rows of little weight would count as much as
        # others wherever they meet only their like.
        divisor = max(self._usual_weight * stats.reads, 1e-12)
        norm = self.group.norm(gradients, self.model.device) / divisor
        if not math.isfinite(norm) or not math.isfinite(stats.loss):
            raise self._no_number("gradient of", self.record.step + 1)
        factor = min(1.0, self.recipe.clip / max(norm, 1e-12)) / divisor
        for gradient in gradients:
            local(gradient).mul_(factor)
        for parameters in self._optimizer.param_groups:
            parameters["lr"] = rate
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        seconds = self._agree_seconds(time.perf_counter() - started)
        self.record.step += 1
        self.record.seconds += seconds
        taken = Step(self.record.step, stats.mean_loss, stats.accuracy, rate, stats.rows, seconds)
        self.record.steps.append(taken)
        self._tell(taken)

    def _gradients(self, step: int) -> Stats:
        """Leave the summed gradient of a step's reads in the parameters; returns the sums over everyone."""
        mine = places(step, self.recipe.batch, self.group.rank, self.group.world)
        laid = [one for place in mine if (one := self._prepared(place)) is not None]
        batches = list(packed(laid, self.recipe.rows))
        stats = Stats()
        for batch, counts in self._together(batches):
            with self._precision():
                total, found = loss_of(self.model, batch, share=not self._sharded)
            (total if counts else total * 0.0).backward()
            if counts:
                stats.add(found)
        for one in self.parameters.values():
            if one.grad is None and not is_sharded(one):
                one.grad = torch.zeros_like(one)
        self.group.sum_gradients(self.parameters.values())
        return self._summed(stats)

    def _no_number(self, what: str, step: int) -> TuneError:
        rate = f"{self.recipe.learning_rate:g}"
        return TuneError(f"the {what} step {step} is no number; a lower --lr may help (it is {rate})")

    def _look(self) -> None:
        """Read the held-out part, and keep the weights if they are the best so far."""
        started = time.perf_counter()
        stats = Stats()
        with torch.no_grad(), self._precision():
            for batch, counts in self._together(self._held_out):
                _, found = loss_of(self.model, batch, share=not self._sharded)
                if counts:
                    stats.add(found)
        stats = self._summed(stats)
        if not math.isfinite(stats.loss):
            raise self._no_number("held-out loss after", self.record.step)
        seconds = self._agree_seconds(time.perf_counter() - started)
        look = Look(self.record.step, stats.mean_loss, stats.accuracy, seconds)
        self.record.seconds += seconds
        self.record.looks.append(look)
        if self.record.best is None or look.loss < self.record.best.loss:
            self.record.best, self.record.stale = look, 0
            self._write(self._best(look.step), self.weights)
        else:
            self.record.stale += 1
        self._tell(look)

    def _forecast(self) -> None:
        """Time one step without taking it, and say what the rest will take."""
        left = None if self.last is None else self.last - self.record.step
        if left is not None and left < 2 * LOOKS:
            return
        seconds = []
        for _ in range(2):  # the first one warms up
            started = time.perf_counter()
            self._gradients(self.record.step)
            self._optimizer.zero_grad(set_to_none=True)
            seconds.append(self._agree_seconds(time.perf_counter() - started))
        self.record.seconds += sum(seconds)
        look = self.record.looks[-1].seconds if self.record.looks else 0.0
        ends = [] if left is None else [left * seconds[-1] + self._looks_left(left) * look]
        if self.recipe.minutes is not None:
            ends.append(max(0.0, 60 * self.recipe.minutes - self.record.seconds))
        self._tell(Forecast(seconds[-1], look, left, min(ends)))

    def _looks_left(self, steps: int) -> float:
        if not self._looks_at_any or not self.last:
            return 0
        return steps / self.recipe.every if self.recipe.every else LOOKS * steps / self.last

    def _end(self) -> End | None:
        if self.last is not None and self.record.step >= self.last:
            return "steps"
        late = self.recipe.minutes is not None and self.record.seconds >= 60 * self.recipe.minutes
        if late and self.record.step:  # one step at least: a run that learns nothing is of no use
            return "time"
        if self.recipe.patience and self.record.stale >= self.recipe.patience:
            return "patience"
        return None

    def _progress(self) -> float:
        """Share of the run that is done, by whatever will end it first."""
        shares = [] if self.last is None else [self.record.step / self.last]
        if self.recipe.minutes is not None:
            shares.append(self.record.seconds / (60 * self.recipe.minutes))
        return min(1.0, max(shares))

    def _look_due(self, before: float) -> bool:
        if self.recipe.every is not None:
            return self.record.step % self.recipe.every == 0
        if int(LOOKS * self._progress()) == int(LOOKS * before):
            return False
        looked = sum(one.seconds for one in self.record.looks)
        return self.recipe.minutes is None or looked <= LOOK_SHARE * self.record.seconds

    def _prepared(self, place: int) -> Prepared | None:
        example = self.examples[self._order.example(place)]
        return self._laid_out(example, f"{self.recipe.seed}/{place}", self.recipe.augmentation)

    def laid_out(self, examples: Sequence[Example], how: Augmentation) -> list[Prepared]:
        """Examples as they are read, without those that do not fit."""
        laid = (self._laid_out(one, f"held-out/{number}", how) for number, one in enumerate(examples))
        return [one for one in laid if one is not None]

    def _any_batch(self, examples: Sequence[Example]) -> Iterator[Prepared]:
        """One example that can be read."""
        laid = (self._laid_out(one, "spare", NONE) for one in examples)
        yield next(one for one in laid if one is not None)

    def _laid_out(self, example: Example, seed: str, how: Augmentation) -> Prepared | None:
        try:
            random = Random(seed)  # noqa: S311 - no secret
            draws = self.recipe.draws
            return prepare(example, self.context, random, how=how, draws=draws, spans=self.spans)
        except InvalidRequestError:  # it fits as it is, but not with its options in this order
            return None

    def _batches_of_held_out(self, held_out: Sequence[Example]) -> list[list[Prepared]]:
        """The part of the held-out examples that is read here, the same at every look."""
        mine = range(self.group.rank, len(held_out), self.group.world)
        laid = (self._laid_out(held_out[index], f"held-out/{index}", NONE) for index in mine)
        return list(packed([one for one in laid if one is not None], self.recipe.rows))

    def _together(self, batches: Sequence[Sequence[Prepared]]) -> Iterator[tuple[Sequence[Prepared], bool]]:
        """The batches, and whether each counts: with spread weights all processes run equally many."""
        for batch in batches:
            yield batch, True
        if not self._sharded:
            return
        most = max(self.group.all_of(len(batches)))
        for _ in range(most - len(batches)):
            yield self._spare, False

    @contextmanager
    def _precision(self) -> Iterator[None]:
        enabled = self.recipe.precision == "bfloat16"
        with torch.autocast(self.model.device.type, torch.bfloat16, enabled=enabled):
            yield

    def _summed(self, stats: Stats) -> Stats:
        sums = [stats.loss, stats.weight, stats.correct, stats.reads, stats.rows]
        loss, weight, correct, reads, rows = self.group.sums(sums, self.model.device)
        return Stats(loss, weight, correct, int(reads), int(rows))

    def _agree(self, *mine: bool) -> list[bool]:
        """What the first process says."""
        flags = self.group.sums([float(one and self.group.first) for one in mine], self.model.device)
        return [flag > 0 for flag in flags]

    def _agree_seconds(self, mine: float) -> float:
        return self.group.sums([mine * self.group.first], self.model.device)[0]

    def _make_optimizer(self) -> torch.optim.AdamW:
        """AdamW that pulls matrices towards zero, but neither norms and scalars nor the embedding."""
        pulled = [p for name, p in self.parameters.items() if p.dim() > 1 and "embed_tokens" not in name]
        rest = [p for name, p in self.parameters.items() if p.dim() <= 1 or "embed_tokens" in name]
        groups = [
            {"params": pulled, "weight_decay": self.recipe.weight_decay},
            {"params": rest, "weight_decay": 0.0},
        ]
        # One by one where tensors that are spread and whole ones are side by side.
        return torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=self.recipe.learning_rate,
            betas=BETAS,
            foreach=False if self._sharded else None,
        )

    def weights(self) -> dict[str, torch.Tensor]:
        """What was trained as it is now, whole and on the CPU; every process must ask for it."""
        return {name: whole(one.detach()).cpu() for name, one in self.parameters.items()}

    def _save(self) -> None:
        def content() -> dict[str, Any]:
            moments = {
                name: {key: whole(value).cpu() for key, value in self._optimizer.state[one].items()}
                for name, one in self.parameters.items()
                if one in self._optimizer.state
            }
            return {"record": asdict(self.record), "weights": self.weights(), "moments": moments}

        self._write(self.folder / keep.STATE, content)
        if self.group.first:
            for old in self.folder.glob("best-*.pt"):
                if self.record.best is None or old != self._best(self.record.best.step):
                    old.unlink()

    def _write(self, path: Path, content: Callable[[], dict[str, Any]]) -> None:
        """Everyone gathers, the first process writes."""
        gathered = content() if self.group.first or self._sharded else {}
        if self.group.first:
            keep.save(path, gathered)

    def _restore(self) -> None:
        path = self.folder / keep.STATE
        if not path.exists():
            return
        saved = keep.load(path)
        self._put(saved["weights"])
        for name, moments in saved["moments"].items():
            one = self.parameters[name]
            self._optimizer.state[one] = {
                key: value if key == "step" else _like(value, one) for key, value in moments.items()
            }
        self.record = Record.of(saved["record"])

    def _take_best(self) -> None:
        if self.record.best is not None and self.record.best.step != self.record.step:
            self.group.wait()  # until it is written
            self._put(keep.load(self._best(self.record.best.step)))

    @torch.no_grad()
    def _put(self, weights: Mapping[str, torch.Tensor]) -> None:
        for name, one in self.parameters.items():
            local(one).copy_(local(_like(weights[name], one)))

    def _best(self, step: int) -> Path:
        return self.folder / f"best-{step}.pt"


def _like(value: torch.Tensor, one: torch.Tensor) -> torch.Tensor:
    """A whole tensor on the device of another one, and spread as that is."""
    value = value.to(one.device)
    if not is_sharded(one):
        return value
    from torch.distributed.tensor import distribute_tensor  # noqa: PLC0415 - only when weights are spread

    return distribute_tensor(value, one.device_mesh, one.placements)  # type: ignore[attr-defined]
