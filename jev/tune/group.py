"""The processes that train together: who one is, sums over all, and weights that are spread over them.

One process is the same code with nothing to sum. Gradients are summed, not averaged: the trainer divides
by the weight of all reads of a step, so that two processes take the steps of one with twice the batch.
"""

from __future__ import annotations

import datetime
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from jev.model.text import Layer, TextModel

T = TypeVar("T")

TIMEOUT = datetime.timedelta(hours=12)
"""How long processes wait for each other: one asks a teacher and measures while the others wait."""

MEET_TIMEOUT = datetime.timedelta(minutes=5)
"""How long a process looks for the first one."""


@dataclass(frozen=True)
class Group:
    """A process among others.

    Attributes:
        rank: its number.
        world: how many there are.
    """

    rank: int = 0
    world: int = 1

    @property
    def first(self) -> bool:
        """Whether it is the one that reads, measures and writes."""
        return self.rank == 0

    def sums(self, values: Sequence[float], device: torch.device) -> list[float]:
        """Each value summed over all processes, in float64."""
        if self.world == 1:
            return list(values)
        kind = torch.float32 if device.type == "mps" else torch.float64
        total = torch.tensor(values, dtype=kind, device=device)
        torch.distributed.all_reduce(total)
        return total.tolist()

    def all_of(self, value: T) -> list[T]:
        """Every process's value, by rank."""
        if self.world == 1:
            return [value]
        box: list[Any] = [None] * self.world
        torch.distributed.all_gather_object(box, value)
        return box

    def share(self, value: T | None) -> T:
        """What the first process has, for everyone."""
        if self.world == 1:
            return cast(T, value)
        box = [value]
        torch.distributed.broadcast_object_list(box, src=0)
        return cast(T, box[0])

    def wait(self) -> None:
        """Until everyone is here."""
        if self.world > 1:
            torch.distributed.barrier()

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Sum the gradients of weights that every process has whole; sharded ones are summed already."""
        if self.world == 1:
            return
        whole = [one for one in parameters if not is_sharded(one)]
        for one in whole:
            if one.grad is None:  # in no read of this process, but perhaps of another one
                one.grad = torch.zeros_like(one)
        by_kind: dict[torch.dtype, list[Tensor]] = {}
        for one in whole:
            assert one.grad is not None
            by_kind.setdefault(one.grad.dtype, []).append(one.grad)
        for gradients in by_kind.values():
            flat = torch.cat([one.reshape(-1) for one in gradients])
            torch.distributed.all_reduce(flat)
            parts = flat.split([one.numel() for one in gradients])
            for one, part in zip(gradients, parts, strict=True):
                one.copy_(part.view_as(one))

    def norm(self, gradients: Sequence[Tensor], device: torch.device) -> float:
        """The norm of a gradient, of which some parts may be spread over the processes."""
        spread = [local(one) for one in gradients if is_sharded(one)]
        rest = [one for one in gradients if not is_sharded(one)]
        square = _square(rest)
        if len(rest) < len(gradients):  # the same in every process
            square += self.sums([_square(spread)], device)[0]
        return square**0.5


def _square(parts: Sequence[Tensor]) -> float:
    """The squared norm of all parts together."""
    return float(torch.stack([part.float().square().sum() for part in parts]).sum()) if parts else 0.0


def is_sharded(tensor: Tensor) -> bool:
    """Whether each process holds only a part of it."""
    return hasattr(tensor, "full_tensor")


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that is in this process."""
    return cast(Any, tensor).to_local() if is_sharded(tensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor; every process must ask for it."""
    return cast(Any, tensor).full_tensor() if is_sharded(tensor) else tensor


def shard(text: TextModel, group: Group, device: torch.device, *, keep: Iterable[nn.Parameter] = ()) -> None:
    """Spread the layers' weights and the embedding over the processes (FSDP2).

    Attention and norms of the last layer stay whole: an encoder pass takes only keys and values of it,
    by a call that no hook of FSDP sees. So do the norms outside of the layers.

    Args:
        text: the model.
        group: of two or more processes.
        device: where the weights are.
        keep: parameters that stay whole, such as an adapter's.
    """
    from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415 - only when it is used
    from torch.distributed.fsdp import FSDPModule, fully_shard  # noqa: PLC0415

    mesh = init_device_mesh(device.type, (group.world,))
    *layers, last = (cast(Layer, layer) for layer in text.layers)
    for module in (*layers, last.mlp, last.experts, text.embed_tokens):
        fully_shard(module, mesh=mesh, ignored_params=set(keep) & set(module.parameters()))
        sharded = cast(FSDPModule, module)
        sharded.set_gradient_divide_factor(1.0)
        sharded.set_force_sum_reduction_for_comms(True)  # gloo can only sum


def join(rank: int, world: int, device: torch.device) -> Group:
    """Meet the other processes, whose address is in MASTER_ADDR and MASTER_PORT."""
    if world == 1:
        return Group()
    backend = "nccl" if device.type == "cuda" else "gloo"
    torch.distributed.init_process_group(backend, rank=rank, world_size=world, timeout=TIMEOUT)
    return Group(rank, world)


def meet(rank: int, world: int, meeting: Path, waiting: Callable[[], None]) -> Group:
    """Meet the other processes of this machine, on its CPUs.

    They hand objects to each other, so nobody else may be able to join: they find each other by a file in a
    folder of their own, and talk on the loopback interface.

    Args:
        rank: number of this process.
        world: how many there are.
        meeting: a file for them alone, which nobody has made yet.
        waiting: called again and again by the first process while others are missing; may raise.

    Raises:
        RuntimeError: the first process is not there.
    """
    first = rank == 0
    os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    store = torch.distributed.FileStore(str(meeting), world)  # pyright: ignore[reportPrivateImportUsage] - it is documented
    store.set_timeout(MEET_TIMEOUT)
    store.set(f"here/{rank}", "")
    while first and not store.check([f"here/{other}" for other in range(world)]):
        waiting()
        time.sleep(0.05)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=TIMEOUT)
    return Group(rank, world)


def leave(group: Group) -> None:
    """Part from the other processes."""
    if group.world > 1:
        torch.distributed.destroy_process_group()


def from_torchrun(environment: Mapping[str, str] = os.environ) -> tuple[int, int, int] | None:
    """Rank, number of processes and rank on this machine, where `torchrun` started this process."""
    if "RANK" not in environment or "WORLD_SIZE" not in environment:
        return None
    local_rank = environment.get("LOCAL_RANK", "0")
    return int(environment["RANK"]), int(environment["WORLD_SIZE"]), int(local_rank)
