"""How many floating-point operations a forward takes, and the same matmuls with nothing around them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from jev.model.config import LayerConfig, TextConfig
from jev.model.diffusion_gemma import DiffusionGemma
from jev.model.text import Layer


def layer_weights(model: DiffusionGemma, *, wanted: int) -> Iterator[tuple[nn.Linear, bool]]:
    """Every dense matrix of the layers, and whether it sees all rows or the `wanted` ones only.

    In the last layer all rows are only needed as keys and values.
    """
    layers = [layer for layer in model.text.layers if isinstance(layer, Layer)]
    for index, layer in enumerate(layers):
        last = index == len(layers) - 1
        for name, module in layer.named_modules():
            if isinstance(module, nn.Linear) and not (layer.silent_experts and name.startswith("router")):
                everyone = not last or name.endswith(("k_proj", "v_proj"))
                if everyone or wanted:
                    yield module, everyone


def dense_flops(model: DiffusionGemma, rows: int, wanted: int) -> int:
    """Operations of `layer_weights` over `rows` rows, of which `wanted` are read in the end."""
    return sum(
        2 * (rows if everyone else wanted) * module.in_features * module.out_features
        for module, everyone in layer_weights(model, wanted=wanted)
    )


def expert_flops(model: DiffusionGemma, rows: int, wanted: int) -> int:
    """Operations of the chosen experts, where they run."""
    config = model.config.text
    row = 2 * 3 * config.hidden_size * config.moe_intermediate_size * config.top_k_experts
    speaking = [not layer.silent_experts for layer in model.text.layers if isinstance(layer, Layer)]
    return row * (rows * sum(speaking[:-1]) + wanted * speaking[-1])


def attention_flops(config: TextConfig, seen: list[int], wanted: int) -> int:
    """Operations of scores and mixing; row i sees `seen[i]` keys, and the last `wanted` rows are read."""

    def one(layer: LayerConfig, pairs: int) -> int:
        return 4 * config.num_attention_heads * layer.head_dim * pairs

    last = sum(seen[len(seen) - wanted :])
    return sum(one(layer, sum(seen)) for layer in config.layers[:-1]) + one(config.layers[-1], last)


class Matmuls:
    """The dense matmuls of a forward on ready inputs: what the forward could be at best."""

    def __init__(self, model: DiffusionGemma, rows: int, wanted: int) -> None:
        self.flops = dense_flops(model, rows, wanted)
        generator = torch.Generator().manual_seed(0)
        inputs: dict[tuple[int, int], Tensor] = {}
        self.work: list[tuple[Tensor, Tensor]] = []
        for module, everyone in layer_weights(model, wanted=wanted):
            shape = (rows if everyone else wanted, module.in_features)
            if shape not in inputs:
                inputs[shape] = torch.randn(shape, generator=generator)
            self.work.append((inputs[shape], module.weight))

    @torch.inference_mode()
    def run(self) -> None:
        """Multiply all of them once, in the order of the layers."""
        for rows, weight in self.work:
            F.linear(rows, weight)
