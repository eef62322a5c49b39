"""What of a model is trained, by name, and putting it on disk."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from jev.model.diffusion_gemma import DiffusionGemma
from jev.model.lora import PROJECTIONS, Adapter, LoraConfig, attach, target_shapes
from jev.model.quant.float8 import Float8Experts, Float8Linear
from jev.model.quant.int4 import TiledExperts, TiledLinear
from jev.tune.recipe import Recipe, TuneError

FORWARD_ONLY = (TiledLinear, TiledExperts, Float8Linear, Float8Experts)
"""Modules whose kernels have no gradient: 4-bit tiles and 8-bit floats on a GPU."""

_PARTS = (".lora_A", ".lora_B")

_UNREAD = "self_conditioning."
"""Weights that only later denoising steps use: a read is the first one, so they get no gradient."""


def lora_config(recipe: Recipe) -> LoraConfig:
    """The shape of the recipe's adapter.

    Raises:
        TuneError: it is none.
    """
    try:
        return LoraConfig(recipe.rank, recipe.scale, recipe.targets or PROJECTIONS)
    except ValueError as error:
        raise TuneError(str(error)) from None


def trainable(model: DiffusionGemma, recipe: Recipe) -> dict[str, nn.Parameter]:
    """Choose what is trained: a new adapter's matrices, or every weight that a read uses.

    The rest of the model is frozen.

    Raises:
        TuneError: the weights are packed or of low precision, or the model has none of the targets.
    """
    model.requires_grad_(False)
    if recipe.full:
        found = {name: one for name, one in model.text.named_parameters() if not name.startswith(_UNREAD)}
        if any(one.dtype != torch.float32 for one in found.values()) or any(model.text.buffers()):
            raise TuneError(
                "all weights can only be trained in float32: leave out --dtype, or train an adapter"
            )
        for one in found.values():
            one.requires_grad_(True)
        model.text.skip_silent_experts(False)  # they may learn to speak
        return found
    config = lora_config(recipe)
    try:
        made = attach(model, config, generator=torch.Generator().manual_seed(recipe.seed))
    except ValueError as error:
        raise TuneError(str(error)) from None
    names = [f"{path}{part}" for path in target_shapes(model.config.text, config.targets) for part in _PARTS]
    return dict(zip(names, made, strict=True))


def count(model: DiffusionGemma, recipe: Recipe) -> int:
    """How many numbers are trained."""
    if recipe.full:
        return sum(one.numel() for name, one in model.text.named_parameters() if not name.startswith(_UNREAD))
    config = lora_config(recipe)
    shapes = target_shapes(model.config.text, config.targets)
    return sum(config.rank * (rows + columns) for rows, columns in shapes.values())


def adapter_from(weights: Mapping[str, Tensor], recipe: Recipe) -> Adapter:
    """The adapter that trained matrices make."""
    first, second = _PARTS
    paths = [name.removesuffix(first) for name in weights if name.endswith(first)]
    pairs = {path: (weights[path + first], weights[path + second]) for path in paths}
    return Adapter(lora_config(recipe), pairs)


def weight_bytes(model: DiffusionGemma) -> int:
    """Bytes of all of the model's tensors."""
    tensors = [*model.parameters(), *model.buffers()]
    return sum(one.nbytes for one in tensors)
