"""Ways to multiply rows by a 4-bit matrix on the CPU: kernels, torch's packed products, decoding, fp32."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from cut import random_blocks

from jev.model import native
from jev.model.quant.blocks import Blocks, decode
from jev.model.quant.modules import linear

HEIGHT, WIDTH = 4096, 2816


def ways(rows: list[int], rounds: int) -> list[dict[str, Any]]:
    """GFLOP/s by way for each number of rows, best of the rounds, on one thread.

    The calling thread's own time counts, so that a busy machine changes little.
    """
    raw = torch.from_numpy(random_blocks("Q4_K", (HEIGHT, WIDTH)))
    weights, blocks, plain = native.prepare("Q4_K", raw, WIDTH), Blocks(raw, "Q4_K"), decode(raw, "Q4_K")
    four = torch._convert_weight_to_int4pack_for_cpu(
        torch.randint(0, 16, plain.shape, dtype=torch.int32), innerKTiles=1
    )
    groups = torch.rand(WIDTH // 32, HEIGHT, 2).bfloat16()
    eight, scale = torch.randint(-127, 128, plain.shape, dtype=torch.int8), torch.rand(HEIGHT).bfloat16()

    def of(x: torch.Tensor) -> dict[str, Callable[[], object]]:
        half = x.bfloat16()
        return {
            "kernels": lambda: weights.linear(x),
            "torch int4 (bf16, 32)": lambda: torch._weight_int4pack_mm_for_cpu(half, four, 32, groups),
            "torch int8 (bf16, a row)": lambda: torch._weight_int8pack_mm(half, eight, scale),
            "decode, then fp32": lambda: linear(x, blocks),
            "fp32": lambda: x @ plain.T,
        }

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    found = []
    with torch.inference_mode():
        for count in rows:
            calls = of(torch.randn(count, WIDTH))
            best = {name: min(_seconds(call) for _ in range(rounds)) for name, call in calls.items()}
            work = 2 * count * HEIGHT * WIDTH / 1e9
            found.append({"rows": count} | {name: work / one for name, one in best.items()})
    torch.set_num_threads(threads)
    return found


def _seconds(call: Callable[[], object]) -> float:
    started = time.thread_time()
    call()
    return time.thread_time() - started
