"""What a denoising step makes of the model's last hidden states: tokens, how sure they are, which to keep."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from jev.model.text import TextModel

MAX_VALUES = 2**25
"""Most values of a vocabulary-wide tensor held beside a canvas's probabilities: 128 MiB in fp32.

A part of fewer rows would read the whole vocabulary's weights too often.
"""
CACHED_VALUES = 2**18
"""Values that a CPU goes over several times before it takes the next: 1 MiB in fp32 stays in its cache."""


@dataclass(frozen=True)
class Prediction:
    """What the model says of one canvas at temperature T.

    Attributes:
        probabilities: fp32 [C, vocab]; the one tensor of this size.
        best: the likeliest ids, int64 [C].
        entropy: nats, fp32 [C].
        normaliser: log of the sum of exponentials of the logits over T, fp32 [C].
    """

    probabilities: Tensor
    best: Tensor
    entropy: Tensor
    normaliser: Tensor


def predict(text: TextModel, hidden: Tensor, temperature: float) -> Prediction:
    """Project last hidden states [C, hidden] and take the softmax over the vocabulary.

    Rows go in parts, so that logits exist for `MAX_VALUES` values at a time only.
    """
    rows, vocab = len(hidden), text.config.vocab_size
    probabilities = torch.empty(rows, vocab, dtype=torch.float32, device=hidden.device)
    best, entropy, normaliser = [], [], []
    for at in _parts(rows, vocab, MAX_VALUES):
        logits = text.project(hidden[at])
        for within in _parts(len(logits), vocab, _working(hidden.device)):
            scaled, p = logits[within].div_(temperature), probabilities[at][within]
            top = scaled.max(-1, keepdim=True)
            scaled.sub_(top.values)
            total = torch.exp(scaled, out=p).sum(-1, keepdim=True)
            p.div_(total)
            total = total[:, 0].log()
            best.append(top.indices[:, 0])
            # -sum p log p, with log p = scaled - total.
            entropy.append(total - torch.linalg.vecdot(p, scaled))
            normaliser.append(total + top.values[:, 0])
    return Prediction(probabilities, torch.cat(best), torch.cat(entropy), torch.cat(normaliser))


def _parts(rows: int, vocab: int, values: int) -> Iterator[slice]:
    """Rows in parts of at most so many vocabulary-wide values."""
    step = max(1, values // vocab)
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def _working(device: torch.device) -> int:
    return CACHED_VALUES if device.type == "cpu" else MAX_VALUES


def soft_embedding(text: TextModel, prediction: Prediction) -> Tensor:
    """What the next step is conditioned on: the canvas's soft embeddings [C, hidden].

    The reference hands on logits over T in the weights' type, so below fp32 they are rounded.
    """
    dtype = text.norm.weight.dtype
    if dtype == torch.float32:
        return text.soften(prediction.probabilities)
    soft = []
    for at in _parts(len(prediction.best), text.config.vocab_size, MAX_VALUES):
        scaled = prediction.probabilities[at].log() + prediction.normaliser[at, None]
        soft.append(text.soften(torch.softmax(scaled.to(dtype).float(), dim=-1)))
    return torch.cat(soft)


class Noise:
    """All random draws of one text, from one seeded generator, in the order of the reference.

    For each canvas `ids` is called once, then for each step `pick` and `ids`. With one seed and one
    device these are the draws of `torch.randint` and `torch.multinomial`.
    """

    def __init__(self, seed: int, vocab: int, device: torch.device) -> None:
        self.vocab = vocab
        self.device = device
        self.generator = torch.Generator(device).manual_seed(seed)

    def ids(self, count: int) -> Tensor:
        """Ids from the whole vocabulary, special ones too, each as likely: int64 [count]."""
        return torch.randint(0, self.vocab, (count,), generator=self.generator, device=self.device)

    def pick(self, probabilities: Tensor, wanted: Tensor) -> Tensor:
        """Draw one id from each row of fp32 [C, vocab]: int64 [C].

        Rows that are not `wanted` [C] come back as 0; the generator moves on for them as well.

        As `torch.multinomial` does it: the largest p / q, with q drawn from the exponential
        distribution. On CPUs `Tensor.exponential_` takes a serial logarithm for each q; the same
        doubles from `torch.rand` take a quarter of its time, and logarithms for wanted rows only.
        """
        picked = torch.zeros(len(probabilities), dtype=torch.int64, device=self.device)
        if self.device.type != "cpu":
            q = torch.empty_like(probabilities).exponential_(generator=self.generator)
            drawn = q.reciprocal_().mul_(probabilities).argmax(-1)
            return torch.where(wanted, drawn, picked)
        for at in _parts(len(probabilities), self.vocab, CACHED_VALUES):
            p, rows = probabilities[at], wanted[at]
            uniform = torch.rand(p.shape, generator=self.generator, dtype=torch.float64)
            q = uniform[rows].neg_().log1p_().neg_().float()
            picked[at][rows] = torch.div(p[rows], q).argmax(-1)
        return picked


def within_bound(entropy: Tensor, bound: float) -> Tensor:
    """The entropy-bound sampler: which positions to keep, bool [C], given entropies [C] in nats.

    From the surest on, as long as those before (without the position itself) add up to at most
    `bound`; so the surest one is always kept. (arXiv 2505.24857)
    """
    ordered, order = entropy.sort()
    kept = torch.empty_like(entropy, dtype=torch.bool)
    kept[order] = ordered.cumsum(0) - ordered <= bound
    return kept


def above_threshold(probability: Tensor, open_: Tensor, threshold: float) -> Tensor:
    """The confidence-threshold sampler: which of the open positions [C] to keep, bool [C].

    Those whose token's probability [C] is at least `threshold`, or else the likeliest one.
    """
    kept = open_ & (probability >= threshold)
    if not kept.any() and open_.any():
        kept[torch.where(open_, probability, -1.0).argmax()] = True
    return kept
