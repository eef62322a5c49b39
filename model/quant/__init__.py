"""Quantised drop-in modules: weights stay packed in memory and are decoded block by block for each matmul."""

from jev.model.quant.modules import PackedEmbedding, PackedExperts, PackedLinear
from jev.model.quant.packed import Bits, Packed, pack

__all__ = ["Bits", "Packed", "PackedEmbedding", "PackedExperts", "PackedLinear", "pack"]
