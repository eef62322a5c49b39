"""What a run needs of the machine, said before it starts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from jev.model.config import TextConfig
from jev.tune.gather import Size

STATE_BYTES = 12
"""Of a trained number, besides itself: its gradient and two moments of AdamW, fp32 each."""

OVERHEAD = 0.25
"""Of the activations: what matmuls and the allocator hold besides."""


@dataclass(frozen=True)
class Memory:
    """Bytes that one process needs.

    Attributes:
        weights: of the model.
        training: gradients, moments, and a copy of the trained weights for saving.
        activations: of the largest forward, kept for its gradient.
        largest: rows of that forward.
    """

    weights: int
    training: int
    activations: int
    largest: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.training + self.activations


def memory(
    config: TextConfig,
    sizes: Sequence[Size],
    *,
    weight_bytes: int,
    trained: int,
    rows: int,
    batch: int,
    bytes_each: int = 4,
    shards: int = 1,
) -> Memory:
    """Estimate what training needs.

    Args:
        config: the text model's shape.
        sizes: of all examples.
        weight_bytes: of the loaded model.
        trained: numbers that are trained.
        rows: most rows of one forward.
        batch: most examples of one forward.
        bytes_each: of a number in the forward.
        shards: processes that the weights and what belongs to them are spread over.
    """
    # No forward has more: it holds one example, or several of together at most `rows`.
    used = _most([one.rows for one in sizes], batch, rows)
    dense = max((one.scores / one.rows for one in sizes if one.rows), default=0.0)
    scores = _most([one.scores for one in sizes], batch, math.ceil(rows * dense))
    numbers = used * _row_numbers(config)
    # Scores are kept in fp32 whatever the forward is in, and once more if that is not fp32.
    held = bytes_each * numbers + (4 if bytes_each == 4 else 4 + bytes_each) * scores * _heads(config)
    return Memory(
        weights=weight_bytes // shards,
        training=trained * (STATE_BYTES + 4) // shards,
        activations=round(held * (1 + OVERHEAD)),
        largest=used,
    )


def _most(sizes: Sequence[int], batch: int, limit: int) -> int:
    """At most so much of something in `batch` examples that keep to the limit, or in one that does not."""
    largest = sorted(sizes, reverse=True)[:batch]
    return max(max(largest, default=0), min(sum(largest), limit))


def _row_numbers(config: TextConfig) -> int:
    """Numbers that all layers keep of one row for their gradients: inputs of matmuls, norms and products."""
    hidden, k = config.hidden_size, config.top_k_experts
    total = 0
    for layer in config.layers[:-1]:  # of the last one only keys, values and slot rows are computed
        query = config.num_attention_heads * layer.head_dim
        kv = layer.num_key_value_heads * layer.head_dim
        mlp = 4 * config.intermediate_size + 4 * k * config.moe_intermediate_size
        total += (24 + 2 * k) * hidden + 5 * query + 8 * kv + mlp
    return total


def _heads(config: TextConfig) -> int:
    return config.num_attention_heads * (len(config.layers) - 1)
