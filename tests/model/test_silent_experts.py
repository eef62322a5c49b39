"""Experts whose output norm is all zeros are left out, equal to the bit, until they may change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from jev.model.checkpoint import load_checkpoint
from jev.model.diffusion_gemma import DiffusionGemma
from jev.model.packed import Block, forward
from jev.tune.recipe import Recipe
from jev.tune.trained import trainable

NORM = "layers.0.post_feedforward_layernorm_2.weight"


@pytest.fixture
def silent(tiny: Callable[..., Path]) -> DiffusionGemma:
    """A model whose first layer's experts say nothing."""
    folder = tiny(layers=2, vision=False)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    (name,) = [one for one in tensors if one.endswith(NORM)]
    before = tensors[name]
    save_file({**tensors, name: torch.zeros_like(before)}, file)
    try:
        return load_checkpoint(folder)
    finally:
        save_file({**tensors, name: before}, file)


def output(model: DiffusionGemma) -> torch.Tensor:
    block = Block(model.empty_prefix(), tokens=range(40), canvases=[range(40, 46)], slots=[range(6)])
    return forward(model.text, [block])[0]


def test_left_out_and_equal_to_the_bit(silent: DiffusionGemma) -> None:
    assert [layer.silent_experts for layer in silent.text.layers] == [True, False]
    ran: list[torch.nn.Module] = []
    for layer in silent.text.layers:
        layer.experts.register_forward_pre_hook(lambda module, given: ran.append(module))
    left_out = output(silent)
    assert ran == [silent.text.layers[1].experts]
    silent.text.skip_silent_experts(False)
    assert torch.equal(output(silent), left_out)
    assert len(ran) == 3


def test_heard_again_where_all_weights_are_trained(silent: DiffusionGemma) -> None:
    parameters = trainable(silent, Recipe(full=True))
    output(silent).square().sum().backward()
    gradient = parameters[NORM].grad
    assert gradient is not None
    assert gradient.any()
