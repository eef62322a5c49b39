"""Proves that loading takes hardly more memory than the loaded model, and says how far it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from jev.model.checkpoint import load_checkpoint
from jev.model.config import ModelConfig
from jev.model.gguf.write import Stored, metadata_of, rope_freqs, stored_tensor, write_file
from jev.model.quant.blocks import BLOCKS
from jev.model.text import TextModel
from jev.model.tiny import write_tiny_checkpoint

MIB = 2**20

# Only Linux says what a process has held at most since it began.
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc/self/status")

SCRIPT = """
import json, re, sys
from pathlib import Path
import torch
from jev.model.checkpoint import load_checkpoint
from jev.model.quant import PackedLinear

def held(key):
    return int(re.search(rf"{key}:\\s*(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024

def load(path, progress=None):
    dtype, bits = getattr(torch, sys.argv[3]), int(sys.argv[4]) or None
    return load_checkpoint(path, dtype=dtype, bits=bits, vision=False, progress=progress)

torch.set_num_threads(1)
small = load(sys.argv[2])  # brings in all code, which counts as this process's memory as well
small.decode([3, 5], small.prefill([4, 5, 6]))
before, calls = held("VmRSS"), []
model = load(sys.argv[1], lambda *now: calls.append(now))
peak, after = held("VmHWM") - before, held("VmRSS") - before
size = sum(t.nbytes for t in (*model.parameters(), *model.buffers()))
model.decode([3, 5], model.prefill([4, 5, 6]))
used = held("VmHWM") - before
print(json.dumps({"peak": peak, "after": after, "size": size, "calls": calls, "used": used}))
"""


def measured(path: Path, small: Path, dtype: str = "float32", bits: int = 0, **environment: str) -> dict:
    """What a process of its own held while it loaded a checkpoint, after a small one."""
    command = [sys.executable, "-c", SCRIPT, str(path), str(small), dtype, str(bits)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bf16 checkpoint of 11 shards and 130 MB; no tensor is over 3 % of it."""
    folder = tmp_path_factory.mktemp("large") / "checkpoint"
    options = {"hidden": 512, "layers": 12, "experts": 8, "vocab": 2048, "shards": 11}
    return write_tiny_checkpoint(folder, dtype=torch.bfloat16, vision=False, **options)


@pytest.mark.parametrize(("dtype", "bits"), [("float32", 0), ("bfloat16", 0), ("float32", 8), ("float32", 4)])
def test_a_sharded_folder(large: Path, tiny: Callable[..., Path], dtype: str, bits: int) -> None:
    small = tiny(vision=False, shards=3)
    for _ in range(3):
        found = measured(large, small, dtype, bits)
        # Pages that the system maps ahead of reading count as well: by chance it is more, never less.
        if found["peak"] < 1.1 * found["size"] + 8 * MIB:
            break
    assert found["size"] > 38 * MIB
    assert found["peak"] < 1.1 * found["size"] + 8 * MIB
    done = [now for now, _ in found["calls"]]
    assert done == sorted(done)
    assert done[-1] == found["calls"][0][1] > 110 * MIB


@pytest.fixture(scope="module")
def gguf(large: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of the same shape with random Q4_K and Q5_0 blocks."""
    config = ModelConfig.from_folder(large)
    with torch.device("meta"):
        named = TextModel(config.text).state_dict()
    generator = torch.Generator().manual_seed(0)

    def block_bytes(one: Stored) -> torch.Tensor:
        if one.type == "F32":
            return torch.ones(one.shape).view(torch.uint8)
        made = torch.randint(0, 256, one.byte_shape, generator=generator, dtype=torch.uint8)
        blocks = made.view(-1, BLOCKS[one.type][1])
        blocks[:, :4] = torch.tensor([0, 8, 0, 8])  # small scales
        return made

    tensors = [stored_tensor(name, value, "Q4_K") for name, value in named.items()]
    filled = [Stored(one.name, one.type, one.shape, lambda one=one: block_bytes(one)) for one in tensors]
    path = tmp_path_factory.mktemp("large") / "model.gguf"
    spec = json.loads((large / "tokenizer.json").read_text())
    write_file(path, metadata_of(config, spec), [*filled, rope_freqs(config)])
    return path


@pytest.mark.parametrize("kernels", ["", "off"])
def test_a_gguf_file(gguf: Path, tiny: Callable[..., Path], kernels: str) -> None:
    size = gguf.stat().st_size
    assert size > 35 * MIB
    found = measured(gguf, tiny(vision=False, shards=3), JEV_KERNELS=kernels)
    # Packed for the kernels it is as large as the file; without them it stays in the file.
    assert found["peak"] < (1.15 * size + 12 * MIB if kernels != "off" else 0.3 * size)
    assert found["used"] < 1.3 * size + 40 * MIB
    assert found["calls"][-1][0] == found["calls"][-1][1] > 0.95 * size


def test_what_is_converted_keeps_no_map_of_its_file(tiny: Callable[..., Path]) -> None:
    """Else its pages would count as this process's memory for good."""
    folder = tiny(vision=False, shards=3)
    model = load_checkpoint(folder, dtype=torch.bfloat16)
    maps = [
        line for line in Path("/proc/self/maps").read_text().splitlines() if str(folder.resolve()) in line
    ]
    assert maps == []
    assert model.text.norm.weight.dtype == torch.bfloat16
