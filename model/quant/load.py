"""A checkpoint's text model with its large weights packed, one tensor at a time."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from jev.model.moe import Experts
from jev.model.offload import Where, placement
from jev.model.quant.float8 import Float8Experts, Float8Linear
from jev.model.quant.int4 import tiled
from jev.model.quant.modules import PackedEmbedding, PackedExperts, PackedLinear
from jev.model.quant.packed import Bits, Packed, pack
from jev.model.text import TextModel
from jev.model.weights import Progress
from jev.model.weights.safetensors import TensorFiles, counter, text_names


def load_packed_text(
    text: TextModel,
    files: TensorFiles,
    bits: Bits | Literal["float8"],
    dtype: torch.dtype,
    device: Where,
    progress: Progress | None = None,
) -> None:
    """Fill a text model on the meta device, putting packed modules in place of its large ones.

    Linears and experts are packed to `bits`; the embedding, whose rows are also the output projection,
    to 8, or left as it is beside 8-bit floats. Norms, scalars and routers stay as they are. What the file
    holds as int8 groups is taken over as it is where 8 bits are wanted. On a GPU 4 bits are laid out for
    its kernel.

    Raises:
        CheckpointError: as `load_text`.
    """
    names = {
        name: stored
        for stored, name in text_names(files, {n: v.shape for n, v in text.state_dict().items()}).items()
    }

    count = counter(files, names.values(), progress)

    place = placement(device)

    def packed(name: str, wanted: Bits) -> Packed:
        made = pack_stored(names[name], wanted).to(place.device)
        count(names.pop(name))
        return made

    def whole(name: str) -> Tensor:
        value = files.plain(names[name]).to(place.device)
        count(names.pop(name))
        return value

    def pack_stored(stored: str, wanted: Bits) -> Packed:
        groups = files.int8_groups(stored) if wanted == 8 else None
        if groups is not None:
            values, scale, rounded = groups
            return Packed(values, scale, rounded=rounded)
        # As stored: `pack` makes fp32 of a part at a time.
        return pack(files.plain(stored), wanted)

    for path, module in list(text.named_modules()):
        made: nn.Module | None = None
        if isinstance(module, nn.Linear) and not path.endswith("router.proj"):
            weight = f"{path}.weight"
            made = Float8Linear(whole(weight)) if bits == "float8" else PackedLinear(packed(weight, bits))
        elif isinstance(module, Experts):
            both = (f"{path}.gate_up_proj", f"{path}.down_proj")
            if bits == "float8":
                made = Float8Experts(*map(whole, both))
            else:
                made = PackedExperts(*(packed(weight, bits) for weight in both))
        elif isinstance(module, nn.Embedding) and bits != "float8":
            made = PackedEmbedding(packed(f"{path}.weight", 8), dtype)
        if made is not None:
            if place.device.type == "cuda" and isinstance(made, (PackedLinear, PackedExperts)):
                made = tiled(made)
            parent, _, last = path.rpartition(".")
            setattr(text.get_submodule(parent), last, made.to(place.of(path)))
    rest: dict[str, Tensor] = {}
    for name, stored in names.items():
        rest[name] = files.tensor(stored, dtype, place.of(name))
        count(stored)
    # Not strict: the packed modules are full already, and their buffers have names of their own.
    loaded = text.load_state_dict(rest, assign=True, strict=False)
    assert not loaded.unexpected_keys
