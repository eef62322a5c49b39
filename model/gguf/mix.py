"""Which type each tensor of a Q4_K_M file has, as llama.cpp chooses (`llama_tensor_get_type`)."""

from __future__ import annotations

from collections.abc import Mapping

from jev.model.gguf.quantize import fitting_type

MIXES = ("Q4_K_M",)


def q4_k_m(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, str]:
    """Types by GGUF name, for tensors in the file's order.

    The embedding is Q6_K; so are values and down projections of the layers that count most, the first and
    last eighth and every third between. Everything else with rows and columns is Q4_K, routers and vectors
    are F32. Rows that are no multiple of 256 fall back as `fitting_type` says.
    """
    layers = 1 + max(int(name.split(".")[1]) for name in shapes if name.startswith("blk."))
    values = [name for name in shapes if name.endswith("attn_v.weight")]
    types: dict[str, str] = {}
    for name, shape in shapes.items():
        wanted = "Q4_K"
        if name == "token_embd.weight" or (name in values and _counts(values.index(name), len(values))):
            wanted = "Q6_K"
        elif name.endswith(("ffn_down.weight", "ffn_down_exps.weight")):
            wanted = "Q6_K" if _counts(int(name.split(".")[1]), layers) else "Q4_K"
        plain = len(shape) == 1 or name.endswith("ffn_gate_inp.weight")
        types[name] = "F32" if plain else fitting_type(wanted, shape[-1])
    return types


def _counts(index: int, count: int) -> bool:
    """Whether a layer gets more bits (llama.cpp's `use_more_bits`)."""
    eighth = count // 8
    return index < eighth or index >= 7 * count // 8 or (index - eighth) % 3 == 2
