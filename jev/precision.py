"""What a precision by name means: the type of the arithmetic, and how the weights are packed."""

from __future__ import annotations

from typing import Literal

import torch

from jev.model.errors import CheckpointError
from jev.model.quant import Bits


def precision_of(dtype: str, device: str) -> tuple[torch.dtype, Bits | Literal["float8"] | None]:
    """The type of the arithmetic, and bits of the packed weights if they are packed.

    Raises:
        CheckpointError: for a name that is neither, or 8-bit floats without a GPU.
    """
    packed: dict[str, Bits | Literal["float8"]] = {"int8": 8, "int4": 4, "float8": "float8"}
    cpu = torch.device(device).type == "cpu"
    if dtype == "float8" and cpu:
        raise CheckpointError("dtype 'float8' needs a GPU; on a CPU int8 takes as little memory")
    if dtype in packed:
        return torch.float32 if cpu else torch.bfloat16, packed[dtype]
    found = getattr(torch, dtype, None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise CheckpointError(
            f"dtype {dtype!r} is neither a floating-point type of torch nor float8, int8 or int4"
        )
    return found, None
