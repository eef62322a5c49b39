"""Weights in 8-bit floating point (e4m3) with a scale a row, multiplied as such on GPUs that can.

The rows that come in are rounded to 8 bits too, each with its own scale, so that one kernel does the product
(`torch._scaled_mm`, compute capability 8.9 on). Older GPUs decode the weight for each product instead.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from jev.model.moe import mix
from jev.model.quant.packed import CHUNK

LARGEST = torch.finfo(torch.float8_e4m3fn).max
"""448: a row's largest magnitude becomes this."""


def to_float8(values: Tensor) -> tuple[Tensor, Tensor]:
    """Round rows [..., in] to e4m3; returns them and scales fp32 [..., 1], so that values = rows * scales."""
    largest = values.abs().amax(-1, keepdim=True).float()
    scales = torch.where(largest > 0, largest / LARGEST, torch.ones_like(largest))
    return (values.float() / scales).to(torch.float8_e4m3fn), scales


def pack_float8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """`to_float8` of a weight [..., out, in], some rows at a time, so that it takes little memory."""
    flat = weight.reshape(-1, weight.shape[-1])
    parts = [to_float8(part) for part in flat.split(max(1, CHUNK // flat.shape[-1]))]
    values, scales = (torch.cat(column) for column in zip(*parts, strict=True))
    return values.view(weight.shape), scales.view(weight.shape[:-1])


def can_scale(device: torch.device) -> bool:
    """Whether a device multiplies 8-bit floats; a CPU does so for the sake of tests."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 9)
    return device.type == "cpu"


def linear(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """Multiply x [N, in] by the transpose of weight e4m3 [out, in] * scale fp32 [out]: [N, out] like x."""
    if not len(x):
        return x.new_empty(0, len(weight))
    if not can_scale(x.device) or any(size % 16 for size in weight.shape):
        return F.linear(x, weight.to(x.dtype)) * scale.to(x.dtype)
    rows, row_scales = to_float8(x.contiguous())
    product = torch.ops.aten._scaled_mm(
        rows, weight.t(), scale_a=row_scales, scale_b=scale[None], out_dtype=torch.bfloat16
    )
    return product.to(x.dtype)


class Float8Linear(nn.Module):
    """`nn.Linear` without bias over weight e4m3 [out, in] with scale fp32 [out]."""

    weight: Tensor
    scale: Tensor

    def __init__(self, weight: Tensor) -> None:
        """Round a float weight [out, in]."""
        super().__init__()
        values, scale = pack_float8(weight)
        self.register_buffer("weight", values)
        self.register_buffer("scale", scale)

    def forward(self, x: Tensor) -> Tensor:
        """Map x [N, in] to [N, out]."""
        return linear(x, self.weight, self.scale)


class Float8Experts(nn.Module):
    """`jev.model.moe.Experts` over 8-bit floats, one product after another."""

    gate_up_proj: Tensor
    gate_up_scale: Tensor
    down_proj: Tensor
    down_scale: Tensor

    def __init__(self, gate_up_proj: Tensor, down_proj: Tensor) -> None:
        """Round float weights [experts, 2 * inner, hidden] and [experts, hidden, inner]."""
        super().__init__()
        for name, weight in (("gate_up", gate_up_proj), ("down", down_proj)):
            values, scale = pack_float8(weight)
            self.register_buffer(f"{name}_proj", values)
            self.register_buffer(f"{name}_scale", scale)

    def forward(self, x: Tensor, weights: Tensor, index: Tensor) -> Tensor:
        """Mix the chosen experts: x [N, hidden], weights and index [N, k] -> [N, hidden]."""

        def expert(number: int, rows: Tensor) -> Tensor:
            gate, up = linear(rows, self.gate_up_proj[number], self.gate_up_scale[number]).chunk(2, dim=-1)
            inner = F.gelu(gate, approximate="tanh") * up
            return linear(inner, self.down_proj[number], self.down_scale[number])

        return mix(x, weights, index, len(self.gate_up_proj), expert)
