"""Cached keys and values of encoder rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from jev.model.config import TextConfig


@dataclass(frozen=True)
class LayerKV:
    """Keys (after norm and rotation) and values (after norm) of one layer: [rows, kv, d] each."""

    k: Tensor
    v: Tensor

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.k.nbytes + self.v.nbytes

    def extended(self, k: Tensor, v: Tensor, keep: int | None) -> LayerKV:
        """Append rows, keeping only the last `keep` (None = all); never a view of the inputs."""
        k, v = torch.cat((self.k, k)), torch.cat((self.v, v))
        if keep is not None and len(k) > keep:
            first = len(k) - keep
            k, v = k[first:].clone(), v[first:].clone()
        return LayerKV(k, v)


@dataclass(frozen=True)
class PrefixKV:
    """A cached prefix of `length` tokens; immutable, so any number of readers may share it.

    Sliding layers keep the last window - 1 rows, all that later rows can see of them.
    """

    length: int
    layers: tuple[LayerKV, ...]

    @property
    def nbytes(self) -> int:
        """Bytes held over all layers."""
        return sum(layer.nbytes for layer in self.layers)

    @classmethod
    def empty(cls, config: TextConfig, like: Tensor) -> PrefixKV:
        """The prefix of no tokens, with the dtype and device of `like`."""
        return cls(
            0,
            tuple(
                LayerKV(*(like.new_empty(0, layer.num_key_value_heads, layer.head_dim) for _ in range(2)))
                for layer in config.layers
            ),
        )

    def extended(self, config: TextConfig, rows: list[LayerKV]) -> PrefixKV:
        """Append one encoder pass's rows (one `LayerKV` a layer) and return the longer prefix."""
        keep = [config.sliding_window - 1 if layer.sliding else None for layer in config.layers]
        layers = tuple(
            old.extended(new.k, new.v, n) for old, new, n in zip(self.layers, rows, keep, strict=True)
        )
        return PrefixKV(self.length + len(rows[0].k), layers)
