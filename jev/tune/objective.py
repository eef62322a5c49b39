"""The objective: cross-entropy between what is read at the seeded slots and what should be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from jev.model.diffusion_gemma import DiffusionGemma
from jev.model.tuning import label_logits
from jev.tune.examples import Prepared


@dataclass
class Stats:
    """Sums over reads.

    Attributes:
        loss: weighted cross-entropy, nats.
        weight: of the reads.
        correct: weight of the reads whose largest label is the target's largest.
        reads: how many.
        rows: rows that the model ran.
    """

    loss: float = 0.0
    weight: float = 0.0
    correct: float = 0.0
    reads: int = 0
    rows: int = 0

    def add(self, other: Stats) -> None:
        """Count the other's reads too."""
        self.loss += other.loss
        self.weight += other.weight
        self.correct += other.correct
        self.reads += other.reads
        self.rows += other.rows

    @property
    def mean_loss(self) -> float:
        """Nats a read."""
        return self.loss / self.weight if self.weight else 0.0

    @property
    def accuracy(self) -> float:
        """Share of the weight that is read right."""
        return self.correct / self.weight if self.weight else 0.0


def loss_of(model: DiffusionGemma, batch: Sequence[Prepared], *, share: bool = True) -> tuple[Tensor, Stats]:
    """Run a batch in one packed forward; `weighed` of what was read. Of `share` see `label_logits`."""
    return weighed(batch, label_logits(model, [one.prompt for one in batch], share=share))


def weighed(batch: Sequence[Prepared], logits: Sequence[Tensor]) -> tuple[Tensor, Stats]:
    """The loss of label logits, one tensor a read of the batch.

    Returns:
        The weighted sum of cross-entropies -sum_i t_i log p_i as a scalar with gradients (divide by
        the usual weight of a read times the reads of a step), and the counts.
    """
    reads = [read for one in batch for read in one.reads]
    total = logits[0].new_zeros(())
    stats = Stats(reads=len(reads), rows=sum(one.prompt.rows for one in batch))
    for read, row in zip(reads, logits, strict=True):
        target = row.new_tensor(read.target)
        total = total - read.weight * (target * F.log_softmax(row, dim=-1)).sum()
        stats.weight += read.weight
        stats.correct += read.weight * bool(row.argmax() == target.argmax())
    stats.loss = float(total.detach())
    return total, stats


@torch.no_grad()
def evaluate(model: DiffusionGemma, batches: Sequence[Sequence[Prepared]]) -> Stats:
    """The counts over batches, without gradients."""
    stats = Stats()
    for batch in batches:
        stats.add(loss_of(model, batch)[1])
    return stats
