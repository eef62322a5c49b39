"""Helper losses for training from little: they show the model the way from a state to the right label line.

`lines`: a linear score of the row that ends each label line, in a middle and in a late layer, should be
highest for the right line. `pointer`: two heads of the last layer should look from the slot at the end of the
right line rather than at the others. `disagreement`: a choice in another order should be answered alike.
All need only rows that the forward runs anyway.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from fast import Result
from packs import Pack
from torch import Tensor, nn

from jev.model.layers import rms_norm


class Guides(nn.Module):
    """The scores of the lines.

    Args:
        hidden: width of the model.
        layers: after which layers the lines are scored.
        heads: heads of the last layer that point.
    """

    def __init__(
        self, hidden: int, layers: Sequence[int] = (5, 7), heads: int = 2, eps: float = 1e-6
    ) -> None:
        super().__init__()
        self.heads, self.eps = heads, eps
        self.scores = nn.ParameterDict({str(one): nn.Parameter(torch.zeros(hidden)) for one in layers})

    @property
    def layers(self) -> list[int]:
        """Whose outputs are scored."""
        return [int(name) for name in self.scores]

    def lines(self, pack: Pack, result: Result) -> tuple[Tensor, float]:
        """Loss of the lines, a mean over slots, and how often the right line has the highest late score."""
        total = result.logits.new_zeros(())
        right = 0.0
        for name, weight in self.scores.items():
            ends = result.hidden[int(name)].index_select(0, pack.ends.flatten())
            score = rms_norm(ends, None, self.eps).float() @ weight
            score = score.view(pack.ends.shape).masked_fill(~pack.known, -torch.inf)
            total = total + cross_entropy(score, pack).mean() / len(self.scores)
            right = float((score.argmax(-1) == pack.targets.argmax(-1)).float().mean())
        return total, right

    def pointer(self, pack: Pack, result: Result) -> Tensor:
        """Loss of the pointing heads, a mean over slots."""
        keys = result.keys[:, 0].float().index_select(0, pack.ends.flatten()).view(*pack.ends.shape, -1)
        seen = torch.einsum("shd,sld->shl", result.queries[:, : self.heads].float(), keys)
        seen = seen.masked_fill(~pack.known[:, None], -torch.inf)
        logs = F.log_softmax(seen, -1).masked_fill(~pack.known[:, None], 0.0)
        return -(logs * pack.targets[:, None]).sum(-1).mean()


def cross_entropy(logits: Tensor, pack: Pack) -> Tensor:
    """-sum_i t_i log p_i of each slot, weighted, [S]."""
    logs = F.log_softmax(logits, -1).masked_fill(~pack.known, 0.0)
    return -(logs * pack.targets).sum(-1) * pack.weights


def disagreement(logits: Tensor, twins: Sequence[tuple[int, int, list[int]]]) -> Tensor:
    """How far twins are apart: half the sum of both Kullback-Leibler divergences, summed over all pairs."""
    total = logits.new_zeros(())
    for first, second, order in twins:
        one = F.log_softmax(logits[first, order], -1)
        other = F.log_softmax(logits[second, : len(order)], -1)
        total = total + ((one.exp() - other.exp()) * (one - other)).sum() / 2
    return total
