"""Proves that what is trained is what is served: the packed read, with the gradient of the plain one."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from random import Random

import pytest
import torch
import torch.nn.functional as F
from tune_cases import QUESTIONS, examples

from jev.engine import Engine
from jev.model.lora import LoraConfig, attach, detach
from jev.model.read import Branch, read
from jev.model.tuning import label_logits
from jev.model.unified import unified_logits
from jev.schemas import SystemOneRequest
from jev.tune.augment import NONE
from jev.tune.examples import Prepared, prepare
from jev.tune.objective import loss_of


class Seven(Random):
    """Draws 7 as every seed of slot noise."""

    def randrange(self, *bounds: int) -> int:
        return 7


def prepared(engine: Engine, count: int) -> list[Prepared]:
    laid = [
        prepare(one, engine.context, Random(number), how=NONE, draws=2)
        for number, one in enumerate(examples(count))
    ]
    return [one for one in laid if one is not None]


def unpacked(engine: Engine, batch: list[Prepared]) -> torch.Tensor:
    """The same loss, one canvas at a time through the plain forward."""
    total = torch.zeros(())
    for one in batch:
        reads = iter(one.reads)
        for branch, canvases in one.prompt.branches:
            for canvas in canvases:
                wanted = next(reads)
                (labels,) = canvas.labels
                logits = unified_logits(engine.model, one.prompt.prefix, branch, canvas)[0, list(labels)]
                target = torch.tensor(wanted.target)
                total = total - wanted.weight * (target * F.log_softmax(logits, dim=-1)).sum()
    return total


def gradients(engine: Engine, loss: torch.Tensor, parameters: list[torch.nn.Parameter]) -> list[torch.Tensor]:
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]


@pytest.mark.parametrize("what", ["all weights", "an adapter"])
def test_the_packed_gradient_is_the_unpacked_one(smooth: Path, what: str) -> None:
    engine = Engine.load(smooth)
    if what == "an adapter":
        parameters = attach(engine.model, LoraConfig(4, 8.0), generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            for one in parameters:  # B is 0 at the start, and A would have no gradient
                one.add_(torch.randn(one.shape, generator=torch.Generator().manual_seed(1)), alpha=0.05)
    else:
        parameters = list(engine.model.text.requires_grad_(True).parameters())
    batch = prepared(engine, 3)
    packed, stats = loss_of(engine.model, batch)
    plain = unpacked(engine, batch)
    assert packed.item() == pytest.approx(plain.item(), rel=1e-6)
    assert (stats.reads, stats.weight) == (12, 6.0)
    ours, theirs = gradients(engine, packed, parameters), gradients(engine, plain, parameters)
    whole = torch.cat([one.flatten() for one in theirs])
    assert whole.norm() > 0.1
    assert (torch.cat([one.flatten() for one in ours]) - whole).norm() <= 1e-5 * whole.norm()
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine - other).norm() <= 1e-5 * max(other.norm(), 0.01 * whole.norm())
    assert sum(bool(one.any()) for one in theirs) > 0.8 * len(parameters)


def test_what_is_trained_is_what_a_request_reads(fresh: Engine) -> None:
    example = examples(1)[0]
    laid = prepare(example, fresh.context, Seven(), how=NONE)
    assert laid is not None
    request = SystemOneRequest(state=example.state, questions=QUESTIONS, seed=7, samples=1)
    plan = fresh.prepare(request)
    assert [list(branch) for branch, _ in laid.prompt.branches] == [list(unit.branch) for unit in plan.units]
    assert [canvas for _, (canvas,) in laid.prompt.branches] == [unit.seeded(0) for unit in plan.units]
    prefix = fresh.model.prefill(plan.units[0].prefix)
    served = read(fresh.model, [(Branch(prefix, unit.branch), [unit.seeded(0)]) for unit in plan.units])
    trained = label_logits(fresh.model, [laid.prompt])
    for one, (reading,) in zip(trained, served, strict=True):
        torch.testing.assert_close(one, torch.tensor(reading.logits[0]), rtol=0, atol=1e-5)


def test_attaching_changes_nothing_before_the_first_step(fresh: Engine) -> None:
    request = SystemOneRequest(state="5 red", questions=QUESTIONS)
    before = fresh.decide(request).answers
    attach(fresh.model, LoraConfig(4, 8.0))
    assert fresh.decide(request).answers == before
    detach(fresh.model)


def test_a_prompt_that_begins_all_others_is_trained_with_them(smooth: Path) -> None:
    """As a transcript that grows does; the shared part would be all of it."""
    engine = Engine.load(smooth)
    parameters = list(engine.model.text.requires_grad_(True).parameters())
    start = "My card was charged twice."
    batch = []
    for more in ("", "\nAgent: which card?", "\nAgent: which card? The blue one.", ""):
        example = dataclasses.replace(examples(1)[0], state=start + more)
        laid = prepare(example, engine.context, Random(3), how=NONE)
        assert laid is not None
        batch.append(laid)
    prefixes = [list(one.prompt.prefix) for one in batch]
    assert all(one[: len(prefixes[0])] == prefixes[0] for one in prefixes)
    assert len(prefixes[1]) > len(prefixes[0])
    for part in (batch, batch[:2], [batch[0], batch[3]]):
        packed, _ = loss_of(engine.model, part)
        plain = unpacked(engine, part)
        assert packed.item() == pytest.approx(plain.item(), rel=1e-6)
        ours, theirs = gradients(engine, packed, parameters), gradients(engine, plain, parameters)
        whole = torch.cat([one.flatten() for one in theirs])
        assert (torch.cat([one.flatten() for one in ours]) - whole).norm() <= 1e-5 * whole.norm()
