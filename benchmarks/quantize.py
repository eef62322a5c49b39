"""Write the int8 form of a checkpoint, rounded for the prompts it will see.

    python benchmarks/quantize.py SOURCE TARGET --decisions decisions/train.jsonl.gz

SOURCE is a checkpoint folder, TARGET a folder for its int8 form. The decisions (rows with a state and
questions) are laid out as the server lays them out and run through the model; each matrix is then rounded so
that its products for those inputs change as little as possible (`jev.model.weights.int8.quantize_for`).
`benchmarks/agreement.py` measures what is left of the difference.
"""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
from pathlib import Path

import torch
from torch import Tensor, nn

from jev.engine import Engine
from jev.model.read import Branch, read
from jev.model.weights.int8 import quantize_for
from jev.model.weights.safetensors import SINGLE, save_int8
from jev.schemas import SystemOneRequest


def requests(path: Path, count: int) -> list[SystemOneRequest]:
    """The first `count` rows of a decisions file as requests."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line, _ in zip(lines, range(count), strict=False)]
    return [
        SystemOneRequest.model_validate({"state": row["state"], "questions": row["questions"], "samples": 1})
        for row in rows
    ]


def hessians(engine: Engine, asked: list[SystemOneRequest]) -> dict[str, Tensor]:
    """Sum of x x^T over the inputs x of every linear layer, by the name of its weight."""
    sums: dict[str, Tensor] = {}
    hooks = []
    for name, module in engine.model.text.named_modules():
        if isinstance(module, nn.Linear):

            def hook(_: nn.Module, inputs: tuple[Tensor, ...], name: str = name) -> None:
                x = inputs[0].float()
                key = f"{name}.weight"
                sums[key] = sums.get(key, torch.zeros(x.shape[1], x.shape[1])) + x.T @ x

            hooks.append(module.register_forward_pre_hook(hook))
    empty = engine.model.empty_prefix()
    for start in range(0, len(asked), 8):
        units = [unit for one in asked[start : start + 8] for unit in engine.prepare(one).units]
        work = [(Branch(empty, (*unit.prefix, *unit.branch)), [unit.seeded(0)]) for unit in units]
        read(engine.model, work)
    for one in hooks:
        one.remove()
    return sums


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--decisions", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=600)
    options = parser.parse_args()

    engine = Engine.load(options.source)
    sums = hessians(engine, requests(options.decisions, options.rows))
    tensors = engine.model.text.state_dict()
    rounded = {}
    for name, hessian in sums.items():
        if hessian.abs().sum() > 0:
            rounded[name] = quantize_for(tensors[name], hessian)
            print(f"{name} {list(tensors[name].shape)}", flush=True)
    source = torch.bfloat16 if engine.model.config.raw.get("dtype") == "bfloat16" else torch.float32
    options.target.mkdir(parents=True, exist_ok=True)
    for extra in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        if (options.source / extra).exists() and options.source.resolve() != options.target.resolve():
            shutil.copyfile(options.source / extra, options.target / extra)
    save_int8(tensors, options.target / SINGLE, rounded=rounded, source=source)
    print(f"{(options.target / SINGLE).stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
