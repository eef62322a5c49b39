"""An adapter made part of the weights, so that the model needs no adapter any more."""

from __future__ import annotations

from torch import Tensor, nn

from jev.model.diffusion_gemma import DiffusionGemma
from jev.model.errors import CheckpointError
from jev.model.lora.adapter import Adapter, Pair


def merge(model: DiffusionGemma, adapter: Adapter) -> None:
    """Add an adapter to the weights of a model in memory: W += scale * B A.

    Raises:
        CheckpointError: the weights are packed in 8 or 4 bits.
    """
    linears: dict[str, nn.Linear] = {}
    for name in adapter.tensors:
        module = model.text.get_submodule(name)
        if not isinstance(module, nn.Linear):
            raise CheckpointError(
                f"{name} is packed, and an adapter cannot be merged into packed weights; "
                "load the model in a floating-point dtype"
            )
        linears[name] = module
    for name, module in linears.items():
        merged = merged_weight(module.weight, adapter.tensors[name], adapter.config.scale)
        # A new tensor: the old one may be the memory map of the file.
        module.weight = nn.Parameter(merged, requires_grad=module.weight.requires_grad)


def merged_weight(weight: Tensor, pair: Pair, scale: float) -> Tensor:
    """W + scale * B A in fp32, cast once to the type of W [out, in]."""
    a, b = (part.detach().to(weight.device).float() for part in pair)
    return (weight.detach().float() + scale * (b @ a)).to(weight.dtype)
