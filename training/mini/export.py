"""Make a checkpoint of states: `python export.py SEED_DIR STATE.pt ... OUT --mix 0.7 --temperature 1.1`.

The weights stand between the seed's and the mean of the trained ones; the temperature goes into the
final norm, which scales the logits (as long as these are far below the soft cap). `benchmarks/quantize.py`
makes the form that is shipped. A checkpoint folder is as good as a state. An OUT that ends in .pt is a state
that `train.py --start` goes on from.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from train import FROZEN, trained

import jev._before_torch  # noqa: F401 - before torch
from jev.engine import Engine
from jev.tune.output import write_full


def weights_of(state: Path, part: str) -> dict[str, Tensor]:
    """What is trained of a state that `train.py` wrote, or of a checkpoint folder."""
    if not state.is_dir():
        return torch.load(state, mmap=True)[part]
    return _trained_of(Engine.load(state))


def _trained_of(engine: Engine) -> dict[str, Tensor]:
    text = engine.model.text
    last = len(text.layers) - 1
    return {name: one.detach() for name, one in text.named_parameters() if trained(name, FROZEN, last)}


@torch.no_grad()
def blend(engine: Engine, states: Sequence[Path], part: str, mix: float, temperature: float = 1.0) -> None:
    """Move the weights the share `mix` of the way to the mean of states; divide logits by a temperature."""
    saved = [weights_of(state, part) for state in states]
    weights = dict(engine.model.text.named_parameters())
    for name in saved[0]:
        weights[name].lerp_(torch.stack([one[name] for one in saved]).mean(0), mix)
    engine.model.text.norm.weight.div_(temperature)


def main() -> None:
    """Write the folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("states", type=Path, nargs="+")
    parser.add_argument("out", type=Path)
    parser.add_argument("--part", default="mean", choices=("mean", "text"))
    parser.add_argument("--mix", type=float, default=1.0)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--guides", type=Path, help="state whose helper scores a state gets")
    parser.add_argument("--name", default="jev-mini")
    parser.add_argument("--description", default="Small trained DiffusionGemma-format model")
    given = parser.parse_args()
    engine = Engine.load(given.model)
    blend(engine, given.states, given.part, given.mix, given.temperature)
    if given.out.suffix == ".pt":
        weights = _trained_of(engine)
        guides = torch.load(given.guides, mmap=True)["guides"] if given.guides else None
        torch.save({"text": weights, "mean": weights, "guides": guides}, given.out)
        return
    given.out.mkdir(parents=True, exist_ok=True)
    write_full(
        given.out,
        {},
        engine.model,
        given.model,
        name=given.name,
        description=given.description,
    )


if __name__ == "__main__":
    main()
