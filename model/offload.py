"""Layers whose weights stay in the host's memory and come to the GPU for their turn.

While one layer computes, the next hosted one is on its way over a stream of its own, so two of them are on
the GPU at a time. The last layer is never hosted: `jev.model.packed` runs parts of it by themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn

Slot: TypeAlias = tuple[dict[str, Any], str, Tensor]
"""A module's parameters or buffers, a name in them, and the tensor on the host."""


def hosted_layers(count: int, layers: int) -> list[int]:
    """Which layers are on the host, if `count` are: spread out, so that copies have time to come.

    Raises:
        ValueError: there are not so many without the last one.
    """
    if not 0 <= count < max(1, layers):
        raise ValueError(f"{count} of {layers} layers cannot be on the host: at most all but the last")
    return [index * (layers - 1) // count for index in range(count)]


class Placement:
    """Which device a tensor of the text model belongs on.

    Attributes:
        device: where the model computes.
        hosted: layers whose weights stay on the host.
    """

    def __init__(self, device: str | torch.device, hosted: Sequence[int] = ()) -> None:
        self.device = torch.device(device)
        self.hosted = frozenset(hosted)

    def of(self, name: str) -> torch.device:
        """The device of a module or parameter by its name, such as `layers.3.mlp.up_proj.weight`."""
        parts = name.split(".", 2)
        hosted = parts[0] == "layers" and len(parts) > 1 and int(parts[1]) in self.hosted
        return torch.device("cpu") if hosted else self.device


Where: TypeAlias = str | torch.device | Placement
"""What loaders take: one device for everything, or a placement."""


def placement(where: Where) -> Placement:
    """The placement that a device or placement stands for."""
    return where if isinstance(where, Placement) else Placement(where)


class Offload:
    """Brings hosted layers to the device, each right before its forward, and lets go of it right after.

    One forward at a time, of one thread.

    Attributes:
        on_device: how many hosted layers the device holds now.
    """

    def __init__(self, layers: Sequence[nn.Module], device: str | torch.device) -> None:
        """Take layers whose tensors are on the host, in the order in which they run."""
        self._device = torch.device(device)
        cuda = self._device.type == "cuda"
        self._stream = torch.cuda.Stream(self._device) if cuda else None
        self._slots = [_slots(layer, pin=cuda) for layer in layers]
        self._coming: dict[int, tuple[list[Tensor], Any]] = {}
        self.on_device = 0
        for number, layer in enumerate(layers):
            layer.register_forward_pre_hook(lambda *_, number=number: self._bring(number))
            # Also when the layer raises: whoever catches that may run it again.
            layer.register_forward_hook(lambda *_, number=number: self._release(number), always_call=True)

    def _bring(self, number: int) -> None:
        """Put the copies of a layer's tensors in their places, and send for those of the next."""
        self._send(number)
        copies, arrived = self._coming.pop(number)
        if arrived is not None:
            now = torch.cuda.current_stream(self._device)
            now.wait_event(arrived)
            for copy in copies:
                copy.record_stream(now)
        for (place, name, _), copy in zip(self._slots[number], copies, strict=True):
            place[name] = _like(place[name], copy)
        if len(self._slots) > 1:
            self._send((number + 1) % len(self._slots))

    def _send(self, number: int) -> None:
        """Begin to copy a layer's tensors, if that has not begun."""
        if number in self._coming:
            return
        self.on_device += 1
        with nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
            copies = [
                host.to(self._device, non_blocking=True, copy=True) for _, _, host in self._slots[number]
            ]
            arrived = None if self._stream is None else self._stream.record_event()
        self._coming[number] = (copies, arrived)

    def _release(self, number: int) -> None:
        """Put the host's tensors back in their places."""
        for place, name, host in self._slots[number]:
            place[name] = _like(place[name], host)
        self.on_device -= 1


def _slots(layer: nn.Module, *, pin: bool) -> list[Slot]:
    """The places of all tensors of a layer; pinned, copies of them need no CPU."""
    slots: list[Slot] = []
    for module in layer.modules():
        for place in cast(tuple[dict[str, Any], ...], (module._parameters, module._buffers)):
            for name, value in place.items():
                if value is not None:
                    host = value.detach().pin_memory() if pin else value.detach()
                    place[name] = _like(value, host)
                    slots.append((place, name, host))
    return slots


def _like(before: Tensor, value: Tensor) -> Tensor:
    """The value as a parameter where a parameter was."""
    return nn.Parameter(value, requires_grad=False) if isinstance(before, nn.Parameter) else value
