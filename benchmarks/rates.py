"""Prefill and packed reads as matmul rates: the forward, its dense matmuls alone, and a plain matmul."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from flops import Matmuls, attention_flops, expert_flops
from texts import questions, state
from timing import Variant

from jev.engine import Engine
from jev.model.cache import PrefixKV
from jev.model.read import Branch, read
from jev.plan import Unit
from jev.schemas import SystemOneRequest

PLAIN_REPEATS = 20


@dataclass(frozen=True)
class Rate:
    """A forward beside what it could be at best.

    Attributes:
        name: what is run.
        rows: rows of the forward.
        forward: all of it.
        dense: its dense matmuls alone, on ready inputs.
        plain: one matmul of as many rows by the MLP's first matrix, repeated.

    """

    name: str
    rows: int
    forward: Variant
    dense: Variant
    plain: Variant


def rates(engine: Engine, tokens: int) -> list[Rate]:
    """A prefill of about `tokens` tokens and reads behind it."""
    body = {"state": state(tokens, "rates"), "questions": questions(8), "samples": 1}
    units = engine.prepare(SystemOneRequest.model_validate(body)).units
    prefix = units[0].prefix
    kv = engine.model.prefill(prefix)
    kept = [Branch(kv, unit.branch) for unit in units]
    read(engine.model, _work(kept, units, 0), keep=True)
    fresh = [Branch(kv, unit.branch) for unit in units]
    return [
        _rate(
            engine,
            "prefill",
            lambda _: engine.model.prefill(prefix),
            seen=list(range(1, len(prefix) + 1)),
            wanted=0,
        ),
        _rate(
            engine,
            "8 questions",
            lambda n: read(engine.model, _work(fresh, units, n)),
            seen=[row for unit in units for row in _seen(kv, unit, branch=True)],
            wanted=8,
        ),
        _rate(
            engine,
            "1 question",
            lambda n: read(engine.model, _work(fresh[:1], units[:1], n)),
            seen=_seen(kv, units[0], branch=True),
            wanted=1,
        ),
        _rate(
            engine,
            "re-read of 8",
            lambda n: read(engine.model, _work(kept, units, n)),
            seen=[row for unit in units for row in _seen(kv, unit, branch=False)],
            wanted=8,
        ),
    ]


def _work(branches: list[Branch], units: list[Unit], number: int):
    return [(branch, [unit.seeded(number)]) for branch, unit in zip(branches, units, strict=True)]


def _seen(kv: PrefixKV, unit: Unit, *, branch: bool) -> list[int]:
    """For each row of a unit, how many keys it sees."""
    length, width = len(unit.branch), len(unit.canvas)
    causal = [kv.length + row + 1 for row in range(length)] if branch else []
    return [*causal, *[kv.length + length + width] * width]


def _rate(
    engine: Engine, name: str, forward: Callable[[int], object], *, seen: list[int], wanted: int
) -> Rate:
    config, rows = engine.model.config.text, len(seen)
    matmuls = Matmuls(engine.model, rows, wanted)
    flops = matmuls.flops + expert_flops(engine.model, rows, wanted) + attention_flops(config, seen, wanted)
    left = torch.randn(rows, config.hidden_size)
    right = torch.randn(config.intermediate_size, config.hidden_size)

    def plain(_: int) -> None:
        for _ in range(PLAIN_REPEATS):
            torch.nn.functional.linear(left, right)

    return Rate(
        name,
        rows,
        Variant(f"{name}: forward", forward, flops),
        Variant(f"{name}: its matmuls", lambda _: matmuls.run(), matmuls.flops),
        Variant(f"{name}: plain matmul", plain, PLAIN_REPEATS * 2 * rows * right.numel()),
    )
