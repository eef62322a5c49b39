"""Write the int8 form of a checkpoint's text part, as the embedded model is stored.

    python benchmarks/quantize.py SOURCE TARGET

SOURCE is a checkpoint folder, TARGET a folder for its int8 form. `benchmarks/agreement.py` measures how far
its decisions are from the source's.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import torch

from jev.model.checkpoint import load_checkpoint
from jev.model.weights.int8 import fit
from jev.model.weights.safetensors import SINGLE, save_int8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    options = parser.parse_args()

    model = load_checkpoint(options.source, vision=False)
    source = torch.bfloat16 if model.config.raw.get("dtype") == "bfloat16" else torch.float32
    tensors = model.text.state_dict()
    rounded = {}
    for name, weight in tensors.items():
        if weight.dim() > 1:
            rounded[name] = fit(weight, source)
            print(f"{name} {list(weight.shape)}", flush=True)
    options.target.mkdir(parents=True, exist_ok=True)
    for extra in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        if (options.source / extra).exists() and options.source.resolve() != options.target.resolve():
            shutil.copyfile(options.source / extra, options.target / extra)
    save_int8(tensors, options.target / SINGLE, rounded=rounded, source=source)
    print(f"{(options.target / SINGLE).stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
