"""Adapters on a model that runs: to train one, or to serve several and choose one for each forward.

An adapter is a forward hook on the linears that it changes. So the modules stay what they are, packed or
not, the names in `state_dict` do not change, and with no adapter on the results are the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from jev.model.diffusion_gemma import DiffusionGemma
from jev.model.lora.adapter import Adapter, LoraConfig, Pair, is_target, target_shapes

_TRAINED = ""
"""Name of the adapter that `attach` makes."""


@dataclass(eq=False)
class Adapters:
    """The adapters of one model.

    Attributes:
        on: name of the one that forwards use; None = the model is as it was loaded.
        configs: of each adapter by name.
        linears: the changed linears by module name.
    """

    on: str | None = None
    configs: dict[str, LoraConfig] = field(default_factory=dict)
    linears: dict[str, _Linear] = field(default_factory=dict)
    handles: list[RemovableHandle] = field(default_factory=list)


@dataclass(eq=False)
class _Linear:
    """Forward hook of one linear: adds what the adapter that is on says."""

    adapters: Adapters
    pairs: dict[str, tuple[Tensor, Tensor, float]] = field(default_factory=dict)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor | None:
        name = self.adapters.on
        if name is None or name not in self.pairs:
            return None
        a, b, scale = self.pairs[name]
        low = F.linear(args[0].to(a.dtype), a)
        return output + (F.linear(low, b) * scale).to(output.dtype)


def attach(
    model: DiffusionGemma,
    config: LoraConfig,
    *,
    generator: torch.Generator | None = None,
    start: Adapter | None = None,
) -> list[nn.Parameter]:
    """Put a trainable adapter on a model, switch it on and freeze everything else.

    B starts at 0 and A as PEFT starts it (Kaiming uniform with a = sqrt(5)), drawn in the order of the
    layers; so the model's answers are unchanged until the first step of an optimiser.

    Args:
        model: any precision, packed too; gradients flow through `jev.model.packed.forward`.
        config: shape and strength.
        generator: a CPU generator that decides A; None = torch's own.
        start: begin with a copy of these matrices instead.

    Returns:
        A and B of each linear in turn, fp32 on the model's device.

    Raises:
        ValueError: the model has adapters already, or none of the targets exists in it, or `start` is of
            another shape.
    """
    if model.adapters is not None:
        raise ValueError("the model has adapters already; detach them first")
    if start is not None and start.config != config:
        raise ValueError(f"the adapter to start from has {start.config}, not {config}")
    shapes = target_shapes(model.config.text, config.targets)
    if not shapes:
        raise ValueError(f"no layer of the model has {' or '.join(config.targets)}")
    model.requires_grad_(False)
    trained: list[nn.Parameter] = []
    pairs: dict[str, Pair] = {}
    for name, (rows, columns) in shapes.items():
        if start is None:
            a = torch.empty(config.rank, columns)
            nn.init.kaiming_uniform_(a, a=math.sqrt(5), generator=generator)
            b = torch.zeros(rows, config.rank)
        else:
            a, b = (part.detach().float().clone() for part in start.tensors[name])
        pair = nn.Parameter(a.to(model.device)), nn.Parameter(b.to(model.device))
        pairs[name] = pair
        trained.extend(pair)
    adapters = _hooked(model)
    _add(model, adapters, _TRAINED, config, pairs)
    adapters.on = _TRAINED
    return trained


def adapter_of(model: DiffusionGemma) -> Adapter:
    """A copy of the adapter that `attach` made, as it is now, fp32 on the CPU.

    Raises:
        ValueError: the model has none.
    """
    adapters = model.adapters
    if adapters is None or _TRAINED not in adapters.configs:
        raise ValueError("no adapter is attached to the model")
    tensors: dict[str, Pair] = {}
    for name, linear in adapters.linears.items():
        a, b, _ = linear.pairs[_TRAINED]
        tensors[name] = tuple(part.detach().to("cpu", torch.float32, copy=True) for part in (a, b))  # type: ignore[assignment]
    return Adapter(adapters.configs[_TRAINED], tensors)


def detach(model: DiffusionGemma) -> None:
    """Take all adapters off; the model is as it was loaded. Without any it does nothing."""
    if model.adapters is not None:
        for handle in model.adapters.handles:
            handle.remove()
        model.adapters = None


def install(model: DiffusionGemma, adapters: Mapping[str, Adapter]) -> None:
    """Put adapters on a model to choose from with `active`; none is on. They replace what was there.

    The matrices are copied to the model's device in the precision of its arithmetic.

    Raises:
        ValueError: a name is empty.
    """
    if "" in adapters:
        raise ValueError("an adapter needs a name")
    detach(model)
    if not adapters:
        return
    dtype = model.text.norm.weight.dtype
    hooked = _hooked(model)
    for name, adapter in adapters.items():
        tensors = {
            path: (a.to(model.device, dtype), b.to(model.device, dtype))
            for path, (a, b) in adapter.tensors.items()
        }
        _add(model, hooked, name, adapter.config, tensors)


@contextmanager
def active(model: DiffusionGemma, name: str | None) -> Iterator[None]:
    """Within it forwards use the installed adapter `name`; None = the model as it was loaded.

    For one thread at a time. What was on before is on again afterwards.

    Raises:
        KeyError: no adapter has that name.
    """
    adapters = model.adapters
    if name is not None and (adapters is None or name not in adapters.configs):
        raise KeyError(name)
    if adapters is None:
        yield
        return
    before, adapters.on = adapters.on, name
    try:
        yield
    finally:
        adapters.on = before


def _hooked(model: DiffusionGemma) -> Adapters:
    model.adapters = Adapters()
    return model.adapters


def _add(
    model: DiffusionGemma, adapters: Adapters, name: str, config: LoraConfig, tensors: Mapping[str, Pair]
) -> None:
    """Hook the linears that an adapter changes, if they are not yet, and give them its matrices."""
    adapters.configs[name] = config
    for path, (a, b) in tensors.items():
        assert is_target(path, config.targets), path
        if path not in adapters.linears:
            adapters.linears[path] = _Linear(adapters)
            module = model.text.get_submodule(path)
            adapters.handles.append(module.register_forward_hook(adapters.linears[path]))
        adapters.linears[path].pairs[name] = (a, b, config.scale)
