"""A checkpoint's text model with its large weights packed, one tensor at a time."""

from __future__ import annotations

import torch
from torch import nn

from jev.model.moe import Experts
from jev.model.quant.modules import PackedEmbedding, PackedExperts, PackedLinear
from jev.model.quant.packed import Bits, Packed, pack
from jev.model.text import TextModel
from jev.model.weights.safetensors import TensorFiles, text_names


def load_packed_text(
    text: TextModel, files: TensorFiles, bits: Bits, dtype: torch.dtype, device: str | torch.device
) -> None:
    """Fill a text model on the meta device, putting packed modules in place of its large ones.

    Linears and experts are packed to `bits`; the embedding, whose rows are also the output projection,
    to 8. Norms, scalars and routers stay as they are. What the file holds as int8 groups is taken over
    as it is where 8 bits are wanted.

    Raises:
        CheckpointError: as `load_text`.
    """
    names = {
        name: stored
        for stored, name in text_names(files, {n: v.shape for n, v in text.state_dict().items()}).items()
    }

    def packed(name: str, wanted: Bits = bits) -> Packed:
        stored = names.pop(name)
        groups = files.int8_groups(stored) if wanted == 8 else None
        if groups is not None:
            values, scale, rounded = groups
            return Packed(values, scale, rounded=rounded).to(device)
        return pack(files.tensor(stored, torch.float32, "cpu"), wanted).to(device)

    for path, module in list(text.named_modules()):
        made: nn.Module | None = None
        if isinstance(module, nn.Linear) and not path.endswith("router.proj"):
            made = PackedLinear(packed(f"{path}.weight"))
        elif isinstance(module, Experts):
            made = PackedExperts(packed(f"{path}.gate_up_proj"), packed(f"{path}.down_proj"))
        elif isinstance(module, nn.Embedding):
            made = PackedEmbedding(packed(f"{path}.weight", 8), dtype)
        if made is not None:
            parent, _, last = path.rpartition(".")
            setattr(text.get_submodule(parent), last, made)
    rest = {name: files.tensor(stored, dtype, device) for name, stored in names.items()}
    # Not strict: the packed modules are full already, and their buffers have names of their own.
    loaded = text.load_state_dict(rest, assign=True, strict=False)
    assert not loaded.unexpected_keys
