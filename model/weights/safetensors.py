"""Safetensors checkpoints with Hugging Face names, in one file or in shards, read through a memory map."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from jev.model.config import read_json
from jev.model.errors import CheckpointError
from jev.model.offload import Where, placement
from jev.model.weights import Progress
from jev.model.weights.int8 import SCALE_SUFFIX, dequantize, quantize

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
INT8_OF = "int8_of"
"""Metadata key of an int8 file: the dtype of the values it was made from."""

_FLOATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_SIZES = {"I8": 1, "U8": 1, "F16": 2, "BF16": 2, "I16": 2, "F64": 8, "I64": 8}

_TOWER = "model.encoder.vision_tower."
_PROJECTOR = "model.encoder.embed_vision."
VISION = (_TOWER, _PROJECTOR)
"""Tensors that a text model leaves where they are."""

_DECODER = "model.decoder."
_ENCODER_LAYERS = "model.encoder.language_model.layers."
_ENCODER_SCALAR = ".layer_scalar"


def hf_name(name: str) -> str:
    """The checkpoint's name of a parameter of `TextModel`."""
    if name.endswith(".encoder_layer_scalar"):
        return _ENCODER_LAYERS + name.removeprefix("layers.").replace("encoder_layer_scalar", "layer_scalar")
    return _DECODER + name


def hf_vision_name(name: str) -> str:
    """The checkpoint's name of a parameter of `VisionTower`."""
    if name.startswith("embedding_projection."):
        return _PROJECTOR + name
    if name.startswith("layers."):
        linear = ".self_attn." in name or ".mlp." in name
        name = name.replace("_proj.weight", "_proj.linear.weight") if linear else name
        return f"{_TOWER}encoder.{name}"
    return _TOWER + name


class TensorFiles:
    """The tensors of a checkpoint folder by name, opened lazily.

    Tensors that come out as they are stored share one memory map a file. What is converted is read through a
    map of its own, which goes with it: pages that stay mapped would count as this process's memory.
    """

    def __init__(self, folder: Path, single: str | None = None) -> None:
        """Read the index of a folder, or the header of its one file; `single` names a file to take alone."""
        self.folder = folder
        index = folder / INDEX
        if single is None and index.exists():
            content = read_json(index)
            weight_map = content.get("weight_map") if isinstance(content, Mapping) else None
            if not isinstance(weight_map, Mapping):
                raise CheckpointError(f"{INDEX}: weight_map is missing")
            for name, file in weight_map.items():
                if not isinstance(file, str) or Path(file).name != file:
                    raise CheckpointError(f"{INDEX}: tensor {name} is in {file!r}, which is not a file name")
            self.files: dict[str, str] = dict(weight_map)
        else:
            file = single or SINGLE
            self.files = dict.fromkeys(self._open(file).keys(), file)
        self._opened: dict[str, safe_open] = {}

    def _open(self, file: str) -> safe_open:
        path = self.folder / file
        if not path.is_file():
            raise CheckpointError(f"{file} is missing in {self.folder}")
        try:
            return safe_open(path, framework="pt")
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path} is damaged or not a safetensors file: {error}") from None

    @property
    def has_vision(self) -> bool:
        """Whether the files hold a vision tower."""
        return any(name.startswith(_TOWER) for name in self.files)

    def __contains__(self, name: str) -> bool:
        return name in self.files

    def __iter__(self) -> Iterator[str]:
        return iter(self.files)

    def shape(self, name: str) -> list[int]:
        """The stored shape, from the file's header alone."""
        return self._read(name, lambda f: f.get_slice(name).get_shape())

    def tensor(self, name: str, dtype: torch.dtype, device: str | torch.device) -> Tensor:
        """Load one tensor as `dtype`, decoding int8 groups where the file has them.

        Decoded values are rounded to the precision that the file says they had before, which takes
        most of the error out of tensors that were on a coarse grid already.
        """
        stays = torch.device(device).type == "cpu" and self._dtype(name) == dtype
        value = self._read(name, lambda f: f.get_tensor(name), alone=not stays)
        if value.dtype == torch.int8:
            scale, rounded = self._scale(name, value)
            value = dequantize(value, scale)
            value = value.bfloat16() if rounded else value
        if not value.is_floating_point():
            raise CheckpointError(f"tensor {name} has type {value.dtype}, expected floating point")
        return value.to(device=device, dtype=dtype)

    def plain(self, name: str) -> Tensor:
        """Load one tensor on the CPU in the type it is stored in; int8 groups are decoded.

        Decoded values are bfloat16 where the file says that they were, and fp32 otherwise.
        """
        groups = self.int8_groups(name)
        if groups is None:
            return self._read(name, lambda f: f.get_tensor(name), alone=True)
        values, scale, rounded = groups
        decoded = dequantize(values, scale)
        return decoded.bfloat16() if rounded else decoded

    def int8_groups(self, name: str) -> tuple[Tensor, Tensor, bool] | None:
        """A tensor that is stored as int8 groups, as it is stored; None for any other.

        Returns:
            int8 values [..., in], scales [..., groups], and whether decoded values are to be rounded to
            bfloat16.
        """
        if self._read(name, lambda f: f.get_slice(name).get_dtype()) != "I8":
            return None
        value = self._read(name, lambda f: f.get_tensor(name))
        return value, *self._scale(name, value)

    def _scale(self, name: str, value: Tensor) -> tuple[Tensor, bool]:
        """The checked scales of an int8 tensor, and whether its values were bfloat16."""
        if name + SCALE_SUFFIX not in self:
            raise CheckpointError(f"tensor {name} is int8 but {name + SCALE_SUFFIX} is missing")
        scale: Tensor = self._read(name + SCALE_SUFFIX, lambda f: f.get_tensor(name + SCALE_SUFFIX))
        groups = scale.shape[-1] if scale.dim() else 0
        if scale.shape[:-1] != value.shape[:-1] or groups == 0 or value.shape[-1] % groups:
            raise CheckpointError(
                f"tensor {name + SCALE_SUFFIX} has shape {list(scale.shape)}, "
                f"expected {list(value.shape[:-1])} and a divisor of {value.shape[-1]}"
            )
        if not scale.is_floating_point():
            raise CheckpointError(
                f"tensor {name + SCALE_SUFFIX} has type {scale.dtype}, expected floating point"
            )
        metadata = self._read(name, lambda f: f.metadata()) or {}
        return scale, metadata.get(INT8_OF) == "bfloat16"

    def size(self, name: str) -> int:
        """Bytes of the tensor in its file."""
        count = math.prod(self.shape(name))
        return count * _SIZES.get(self._read(name, lambda f: f.get_slice(name).get_dtype()), 4)

    def _dtype(self, name: str) -> torch.dtype | None:
        """The stored type if it is one to compute in."""
        return _FLOATS.get(self._read(name, lambda f: f.get_slice(name).get_dtype()))

    def _read(self, name: str, read, *, alone: bool = False):
        """Read from the file that has the tensor, `alone` through a map that nothing else uses."""
        file = self.files[name]
        if alone:
            opened = self._open(file)
        else:
            if file not in self._opened:
                self._opened[file] = self._open(file)
            opened = self._opened[file]
        try:
            return read(opened)
        except SafetensorError as error:
            raise CheckpointError(f"tensor {name} cannot be read from {file}: {error}") from None


def load_text(
    files: TensorFiles,
    shapes: Mapping[str, torch.Size],
    dtype: torch.dtype,
    device: Where,
    progress: Progress | None = None,
) -> dict[str, Tensor]:
    """Load the tensors of `TextModel` named in `shapes`; vision tensors are left alone.

    Raises:
        CheckpointError: naming the first tensor that is missing, has another shape, or is not part
            of this architecture.
    """
    wanted = text_names(files, shapes)
    place = placement(device)
    loaded: dict[str, Tensor] = {}
    count = counter(files, wanted, progress)
    for stored, name in wanted.items():
        loaded[name] = files.tensor(stored, dtype, place.of(name))
        count(stored)
    return loaded


def counter(files: TensorFiles, names: Iterable[str], progress: Progress | None) -> Callable[[str], None]:
    """To be called with each stored name once it is loaded; tells `progress` the bytes so far."""
    if progress is None:
        return lambda name: None
    sizes = {name: files.size(name) for name in names}
    total, done = sum(sizes.values()), 0

    def count(name: str) -> None:
        nonlocal done
        done += sizes[name]
        progress(done, total)

    return count


def text_names(files: TensorFiles, shapes: Mapping[str, torch.Size]) -> dict[str, str]:
    """Check the files against the parameters of `TextModel`; the stored name of each -> its own.

    Raises:
        CheckpointError: as `load_text`.
    """
    wanted = {hf_name(name): name for name in shapes}
    _check_present(files, wanted)
    extra = [
        name
        for name in files
        if name.removesuffix(SCALE_SUFFIX) not in wanted and not name.startswith(VISION)
    ]
    if extra:
        raise CheckpointError(
            f"tensor {extra[0]}{_and_more(extra)} is not part of this model, in {files.folder}"
        )
    _check_shapes(files, wanted, shapes)
    return wanted


def load_vision(
    files: TensorFiles, shapes: Mapping[str, torch.Size], dtype: torch.dtype, device: str | torch.device
) -> dict[str, Tensor]:
    """Load the tensors of `VisionTower` named in `shapes`, and no others.

    Raises:
        CheckpointError: naming the first tensor that is missing or has another shape.
    """
    wanted = {hf_vision_name(name): name for name in shapes}
    _check_present(files, wanted)
    _check_shapes(files, wanted, shapes)
    return {name: files.tensor(stored, dtype, device) for stored, name in wanted.items()}


def _check_present(files: TensorFiles, wanted: Mapping[str, str]) -> None:
    missing = [name for name in wanted if name not in files]
    if missing:
        raise CheckpointError(f"tensor {missing[0]} is missing{_and_more(missing)} in {files.folder}")


def _check_shapes(files: TensorFiles, wanted: Mapping[str, str], shapes: Mapping[str, torch.Size]) -> None:
    for stored, name in wanted.items():
        if files.shape(stored) != list(shapes[name]):
            raise CheckpointError(
                f"tensor {stored} has shape {files.shape(stored)}, expected {list(shapes[name])}"
            )


def _and_more(names: list[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""


def write_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write tensors to a safetensors file, with the permissions that any new file gets.

    Raises:
        OSError: it cannot be written.
    """
    path.unlink(missing_ok=True)
    path.touch()
    usual = path.stat().st_mode
    try:
        save_file(dict(tensors), path, metadata={"format": "pt"})
        path.chmod(usual)  # `save_file` lets nobody else read it, such as the account of a server
    except SafetensorError as error:  # which is what a full disk raises
        raise OSError(f"{path} cannot be written: {error}") from None


def save_checkpoint(tensors: Mapping[str, Tensor], path: Path, *, dtype: torch.dtype | None = None) -> None:
    """Write parameters of `TextModel` to one safetensors file under their Hugging Face names."""
    stored = {hf_name(name): value.to(dtype or value.dtype).contiguous() for name, value in tensors.items()}
    save_file(stored, path, metadata={"format": "pt"})


def save_int8(
    tensors: Mapping[str, Tensor],
    path: Path,
    *,
    rounded: Mapping[str, tuple[Tensor, Tensor]] | None = None,
    source: torch.dtype = torch.float32,
) -> None:
    """Write parameters of `TextModel` with every matrix (two or more dimensions) as int8 groups.

    Args:
        tensors: parameters by name.
        path: the file to write.
        rounded: int8 values and scales of matrices that were quantised before; others are rounded to nearest.
        source: the precision that the values have; bfloat16 is remembered in the file.
    """
    stored: dict[str, Tensor] = {}
    for name, value in tensors.items():
        if value.dim() > 1:
            values, scale = (rounded or {}).get(name) or quantize(value)
            stored[hf_name(name)], stored[hf_name(name) + SCALE_SUFFIX] = (
                values.contiguous(),
                scale.contiguous(),
            )
        else:
            stored[hf_name(name)] = value.to(source).contiguous()
    metadata = {"format": "pt", **({INT8_OF: "bfloat16"} if source == torch.bfloat16 else {})}
    save_file(stored, path, metadata=metadata)
