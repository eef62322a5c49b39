"""Products of fp32 rows with GGUF blocks on the CPU, by compiled kernels with int8 activations, and what else
of a forward must not depend on the rows beside it: products with fp32 matrices, gates, attention.

Weights keep the bits they have in the file; activations are rounded to int8, with one scale for each 32.
A row's result is the same bits whatever other rows there are and however many threads.
Where the package was built without a C++ compiler nothing is `available`, and callers decode blocks instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from jev.model.native.library import Part, check, load, pointer, select, select_first

TYPES = {"Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14}
"""GGUF block types that have kernels, with their numbers in ggml."""

BLOCKS = {
    "Q5_0": (32, 22),
    "Q5_1": (32, 24),
    "Q8_0": (32, 34),
    "Q4_K": (256, 144),
    "Q5_K": (256, 176),
    "Q6_K": (256, 210),
}
"""Weights and bytes of a block."""

_library = load()
_kernels = "off" if _library is None else select_first(_library)


def available() -> bool:
    """Whether the kernels were built and are not switched off."""
    return _library is not None


def kernels() -> str:
    """Which kernels are in use: avx512, avxvnni, avx2, neon, generic or off."""
    return _kernels


def use(name: str | None) -> None:
    """Use the kernels of a name, or (None) those that were chosen at the start.

    Raises:
        ValueError: if this machine or this build has none of that name.
    """
    global _kernels  # noqa: PLW0603 - one choice for the whole process, as in the library
    if _library is None:
        raise ValueError("the compiled kernels are not available")
    _kernels = select_first(_library) if name is None else select(_library, name)


def supports(type_name: str) -> bool:
    """Whether blocks of a GGUF type can be prepared."""
    return _library is not None and type_name in TYPES


def takes(x: Tensor) -> bool:
    """Whether the kernels can take such rows: on the CPU, and without gradients."""
    return available() and x.device.type == "cpu" and not (torch.is_grad_enabled() and x.requires_grad)


class Weights:
    """A quantised matrix, or one for each expert, interleaved for the kernels; it takes no more bits.

    Attributes:
        type_name: GGUF block type.
        packed: uint8 [matrices, bytes].
        matrices: how many.
        height: rows of each.
        width: weights in a row.

    """

    def __init__(self, type_name: str, packed: Tensor, height: int, width: int) -> None:
        self.type_name = type_name
        self.number = TYPES[type_name]
        self.packed = packed
        self.matrices = len(packed)
        self.height = height
        self.width = width

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.packed.nbytes

    def linear(self, x: Tensor, matrix: int = 0) -> Tensor:
        """Multiply x fp32 [N, width] by a matrix's transpose: fp32 [N, height].

        A row's result depends on that row alone. Rows with NaN or infinity become NaN.

        Raises:
            ValueError: for another width.
        """
        x = _floats(x, self.width)
        out = torch.empty(len(x), self.height, dtype=torch.float32)
        assert _library is not None
        status = _library.jev_linear(
            *(self.number, pointer(self.packed[matrix]), self.height, self.width),
            *(pointer(x), len(x), pointer(out), torch.get_num_threads()),
        )
        check(status)
        return out

    def rows(self, index: Tensor, matrix: int = 0) -> Tensor:
        """Rows fp32 [N, width] of int64 `index` [N], bit for bit as the `gguf` package decodes them.

        Raises:
            IndexError: for an index that is not in 0..height - 1.
        """
        index = index.to(torch.int64).contiguous()
        out = torch.empty(len(index), self.width, dtype=torch.float32)
        assert _library is not None
        status = _library.jev_rows(
            *(self.number, pointer(self.packed[matrix]), self.height, self.width),
            *(pointer(index), len(index), pointer(out)),
        )
        check(status)
        return out


def prepare(type_name: str, raw: Tensor, width: int) -> Weights:
    """Interleave raw blocks uint8 [rows, row bytes] or [experts, rows, row bytes] of rows of `width` weights.

    Raises:
        ValueError: for a type or a width that has no kernels, or rows of another length.
    """
    if _library is None or type_name not in TYPES:
        raise ValueError(f"no kernels for {type_name} blocks")
    if raw.dtype != torch.uint8 or raw.ndim not in (2, 3):
        raise ValueError("raw blocks must be uint8 [rows, bytes] or [experts, rows, bytes]")
    raw = raw.contiguous() if raw.ndim == 3 else raw.contiguous()[None]
    matrices, rows, row_bytes = raw.shape
    number = TYPES[type_name]
    size = _library.jev_packed_bytes(number, rows, width)
    values, block_bytes = BLOCKS[type_name]
    if size < 0 or row_bytes != width // values * block_bytes:
        raise ValueError(f"rows of {row_bytes} bytes are not {width} weights of type {type_name}")
    packed = torch.empty(matrices, size, dtype=torch.uint8)
    _library.jev_large_pages(pointer(packed), packed.nbytes)
    _library.jev_pack(
        *(number, pointer(raw), matrices, rows, width, pointer(packed), torch.get_num_threads())
    )
    return Weights(type_name, packed, rows, width)


def experts(x: Tensor, weights: Tensor, index: Tensor, gate_up: Weights, down: Weights) -> Tensor:
    """Mix gated MLPs of rows x fp32 [N, hidden] by weights fp32 and index int64 [N, k]: fp32 [N, hidden].

    gate_up holds [experts, 2 * inner, hidden], gate rows first, down [experts, hidden, inner]. The experts of
    a row are summed in the order of their numbers.

    Raises:
        ValueError: for shapes that do not fit each other.
        IndexError: for an index of no expert.
    """
    hidden, inner = gate_up.width, down.width
    x = _floats(x, hidden)
    if gate_up.height != 2 * inner or down.height != hidden or gate_up.matrices != down.matrices:
        raise ValueError("gate_up and down do not belong to the same experts")
    if weights.shape != index.shape or weights.ndim != 2 or len(weights) != len(x):
        raise ValueError(f"weights and index must be [{len(x)}, k]")
    weights, index = weights.float().contiguous(), index.to(torch.int64).contiguous()
    out = torch.empty(len(x), hidden, dtype=torch.float32)
    assert _library is not None
    status = _library.jev_experts(
        *(gate_up.number, pointer(gate_up.packed), down.number, pointer(down.packed)),
        *(down.matrices, hidden, inner, pointer(x), len(x), pointer(weights), pointer(index)),
        *(index.shape[1], pointer(out), torch.get_num_threads()),
    )
    check(status)
    return out


def dense(x: Tensor, weight: Tensor) -> Tensor:
    """Multiply x fp32 [N, in] by the transpose of weight fp32 [out, in]: fp32 [N, out].

    Raises:
        ValueError: for another width.
    """
    height, width = weight.shape
    x, weight = _floats(x, width), weight.float().contiguous()
    out = torch.empty(len(x), height, dtype=torch.float32)
    assert _library is not None
    status = _library.jev_dense(
        *(pointer(weight), height, width, pointer(x), len(x), pointer(out), torch.get_num_threads())
    )
    check(status)
    return out


def gate(gates: Tensor, up: Tensor) -> Tensor:
    """gelu_tanh(gates) * up of two fp32 tensors of one shape.

    Raises:
        ValueError: for different shapes.
    """
    if gates.shape != up.shape:
        raise ValueError(f"gates {list(gates.shape)} and up {list(up.shape)} must have one shape")
    gates, up = gates.float().contiguous(), up.float().contiguous()
    out = torch.empty(gates.shape, dtype=torch.float32)
    assert _library is not None
    status = _library.jev_gate(
        *(pointer(gates), pointer(up), out.numel(), pointer(out), torch.get_num_threads())
    )
    check(status)
    return out


Keys: TypeAlias = tuple[Tensor, Tensor, Tensor | None]
"""Keys and values fp32 [M, kv, d] with a bias fp32 [N, M] of 0 and -inf (None = all are seen)."""


def attend(q: Tensor, parts: Sequence[Keys]) -> Tensor:
    """Softmax attention (scale 1) of q fp32 [N, heads, d] over the keys of all parts in turn: [N, heads * d].

    Keys that a row does not see change no bit of its result, wherever they stand: it depends on the row and
    on the keys that it sees, in their order.

    Raises:
        ValueError: for shapes that do not fit each other, or without any key.
    """
    rows, heads, dim = q.shape
    kv = parts[0][0].shape[1] if parts else 0
    if not (kv and dim and sum(len(k) for k, _, _ in parts)) or heads % kv:
        raise ValueError(f"{heads} heads of {dim} need keys whose heads divide them")
    q = q.float().contiguous()
    held: list[Tensor] = []  # until the call is over
    listed = (Part * len(parts))()
    for part, (k, v, bias) in zip(listed, parts, strict=True):
        if k.shape != (len(k), kv, dim) or v.shape != k.shape:
            raise ValueError(f"keys and values must be [M, {kv}, {dim}]")
        if bias is not None and bias.shape != (rows, len(k)):
            raise ValueError(f"a bias must be [{rows}, {len(k)}], not {list(bias.shape)}")
        keys, values = k.float().contiguous(), v.float().contiguous()
        part.keys, part.values, part.count = pointer(keys), pointer(values), len(k)
        held += [keys, values]
        if bias is not None:
            added = bias.float() if bias.stride(-1) == 1 else bias.float().contiguous()
            part.bias, part.bias_step = added.data_ptr(), added.stride(0)
            held.append(added)
    out = torch.empty(rows, heads * dim, dtype=torch.float32)
    assert _library is not None
    status = _library.jev_attend(
        *(pointer(q), rows, heads, kv, dim, listed, len(parts), pointer(out), torch.get_num_threads())
    )
    check(status)
    return out


def _floats(x: Tensor, width: int) -> Tensor:
    if x.ndim != 2 or x.shape[1] != width:
        raise ValueError(f"x must be [rows, {width}], not {list(x.shape)}")
    return x.float().contiguous()


__all__ = [
    "Keys",
    "Weights",
    "attend",
    "available",
    "dense",
    "experts",
    "gate",
    "kernels",
    "prepare",
    "supports",
    "takes",
    "use",
]
