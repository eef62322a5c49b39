"""A GGUF file's text model: quantised weights stay in their blocks, everything else becomes parameters."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from jev.model.errors import CheckpointError
from jev.model.gguf.container import GGUFFile
from jev.model.gguf.names import GATE, GATE_UP, ROPE_FREQS, UP, gguf_name
from jev.model.moe import Experts
from jev.model.offload import Placement, Where, placement
from jev.model.quant.block_modules import BlockEmbedding, BlockExperts, BlockLinear, use_row_kernels
from jev.model.quant.blocks import Blocks, decode
from jev.model.quant.int4 import tiled
from jev.model.quant.modules import PackedExperts, PackedLinear
from jev.model.text import TextModel
from jev.model.weights import Progress

_DENSE = ("F32", "F16", "BF16")
"""Types that become parameters in the precision of the arithmetic."""


def load_gguf_text(
    text: TextModel,
    file: GGUFFile,
    dtype: torch.dtype,
    device: Where,
    progress: Progress | None = None,
) -> None:
    """Fill a text model on the meta device, one tensor at a time.

    Linears, experts and the embedding keep quantised weights in their blocks: on a CPU repacked for its
    kernels, where they know the type, and else as they lie in the mapped file. Routers are decoded: they
    are small, and the choice of experts depends on them.

    Raises:
        CheckpointError: naming the first tensor that is missing, has another shape, or is not part of
            this architecture.
    """
    Loading(text, file, dtype, placement(device), progress).run()


def stored_names(text: TextModel, file: GGUFFile) -> dict[str, tuple[str, ...]]:
    """Check a file against the parameters of a text model; the stored names of each by its own.

    There are two for the first matrices of experts that a file keeps apart, gate first.

    Raises:
        CheckpointError: as `load_gguf_text`.
    """
    shapes = {name: tuple(value.shape) for name, value in text.state_dict().items()}
    names: dict[str, tuple[str, ...]] = {}
    for name in shapes:
        stored = gguf_name(name)
        names[name] = (stored,)
        if stored.endswith(GATE_UP) and stored not in file.tensors:
            split = (stored.replace(GATE_UP, GATE), stored.replace(GATE_UP, UP))
            if any(part in file.tensors for part in split):
                names[name] = split
    wanted = {stored for parts in names.values() for stored in parts}
    _none_of(
        [one for parts in names.values() for one in parts if one not in file.tensors], "is missing", file
    )
    _none_of(
        [n for n in file.tensors if n not in wanted and n != ROPE_FREQS], "is not part of this model", file
    )
    for name, parts in names.items():
        expected = shapes[name]
        if len(parts) == 2:
            expected = (expected[0], expected[1] // 2, expected[2])
        for stored in parts:
            found = file.tensors[stored].shape
            if found != expected:
                raise CheckpointError(
                    f"tensor {stored} has shape {list(found)} in {file.path}, expected {list(expected)}"
                )
    return names


def _none_of(names: list[str], what: str, file: GGUFFile) -> None:
    if names:
        more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
        raise CheckpointError(f"tensor {names[0]} {what}{more}, in {file.path}")


class Loading:
    """One text model being filled from one file."""

    def __init__(
        self,
        text: TextModel,
        file: GGUFFile,
        dtype: torch.dtype,
        place: Placement,
        progress: Progress | None,
    ) -> None:
        self._text, self._file, self._dtype, self._place = text, file, dtype, place
        self._names = stored_names(text, file)
        self._total = sum(file.tensors[one].nbytes for parts in self._names.values() for one in parts)
        self._done = 0
        self._progress = progress

    def run(self) -> None:
        """Load every tensor, in the order of the layers."""
        for path, module in list(self._text.named_modules()):
            made: nn.Module | None = None
            if isinstance(module, nn.Linear) and not path.endswith("router.proj"):
                made = self._if_quantised((f"{path}.weight",), BlockLinear)
            elif isinstance(module, Experts):
                made = self._if_quantised((f"{path}.gate_up_proj", f"{path}.down_proj"), BlockExperts)
            elif isinstance(module, nn.Embedding):
                made = self._if_quantised(
                    (f"{path}.weight",), lambda table: BlockEmbedding(table, self._dtype)
                )
            if made is not None:
                parent, _, last = path.rpartition(".")
                setattr(self._text.get_submodule(parent), last, made)
            else:
                self._parameters(path, module)
        use_row_kernels(self._text)

    def _parameters(self, path: str, module: nn.Module) -> None:
        """Fill the parameters that a module has itself."""
        for name, _ in list(module.named_parameters(recurse=False)):
            value = self._dense(f"{path}.{name}" if path else name)
            setattr(module, name, nn.Parameter(value, requires_grad=False))

    def _if_quantised(self, names: tuple[str, ...], make: Callable[..., nn.Module]) -> nn.Module | None:
        """A module over blocks if any of its weights is quantised in the file."""
        stored = [one for name in names for one in self._names[name]]
        if all(self._file.tensors[one].type in _DENSE for one in stored):
            return None
        made = make(*map(self._blocks, names))
        if self._place.device.type == "cuda" and isinstance(made, (PackedLinear, PackedExperts)):
            made = tiled(made.to(self._place.device)).to(self._place.of(names[0]))
        return made

    def _blocks(self, name: str) -> Blocks:
        parts = self._names[name]
        types = {self._file.tensors[one].type for one in parts}
        if len(types) > 1:
            raise CheckpointError(
                f"tensors {' and '.join(parts)} in {self._file.path} are not of the same type"
            )
        raw = [self._file.raw(one) for one in parts]
        blocks = Blocks(raw[0] if len(raw) == 1 else torch.cat(raw, dim=1), types.pop())
        if self._place.device.type == "cpu":
            copied = blocks.use_kernels() or len(raw) > 1
        else:
            device = self._place.of(name)
            blocks, copied = blocks.to(device), device.type != "cpu" or len(raw) > 1
        self._count(parts, release=copied)
        return blocks

    def _dense(self, name: str) -> Tensor:
        """A tensor as `dtype` on the device; always a copy, since nobody may write to the mapped file."""
        parts = self._names[name]
        values = [decode(self._file.raw(one), self._file.tensors[one].type, self._dtype) for one in parts]
        value = values[0] if len(values) == 1 else torch.cat(values, dim=1)
        self._count(parts, release=True)
        return value.to(self._place.of(name))

    def _count(self, parts: tuple[str, ...], *, release: bool) -> None:
        """Report progress, and let go of pages that have been copied."""
        for one in parts:
            self._done += self._file.tensors[one].nbytes
            if release:
                self._file.release(one)
        if self._progress is not None:
            self._progress(self._done, self._total)
