"""Helper losses for training from little: they show the model the way from a state to the right label line.

`lines`: a linear score of the row that ends each label line, in a middle and in a late layer, should be
highest for the right line. `pointer`: two heads of the last layer should look from the slot at the end of the
right line rather than at the others. Both need only rows that the forward runs anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from jev.model.diffusion_gemma import DiffusionGemma
from jev.model.layers import rms_norm, rotate
from jev.prompt import PromptContext
from jev.tune.examples import Prepared


class Guides(nn.Module):
    """Losses on hidden states, caught by hooks while `jev.model.tuning.label_logits` runs.

    Args:
        model: the model.
        context: what the prompts were built with.
        layers: after which layers the lines are scored.
        heads: heads of the last layer that point.
    """

    def __init__(
        self, model: DiffusionGemma, context: PromptContext, layers: Sequence[int] = (5, 7), heads: int = 2
    ) -> None:
        super().__init__()
        config = model.config.text
        self.newline = context.tokenizer.encode("\n")[0]
        self.tail = len(context.template.answer_turn)
        self.eps = config.rms_norm_eps
        self.heads = heads
        self.scores = nn.ParameterDict(
            {str(one): nn.Parameter(torch.zeros(config.hidden_size)) for one in layers}
        )
        self._hidden: dict[str, Tensor] = {}
        self._last: tuple[Tensor, Any] | None = None
        for one in layers:
            model.text.layers[one].register_forward_hook(self._keep(str(one)))
        attention: Any = model.text.layers[-1].self_attn  # type: ignore[union-attr]
        attention.register_forward_pre_hook(self._keep_last)
        self._attention = (attention,)  # in a tuple, so that its weights do not count as this module's

    def _keep(self, name: str) -> Any:
        def hook(module: nn.Module, given: Any, output: Tensor) -> None:
            self._hidden[name] = output

        return hook

    def _keep_last(self, module: nn.Module, given: tuple[Any, ...]) -> None:
        self._last = (given[0], given[1])

    def forward(self, batch: Sequence[Prepared]) -> tuple[Tensor, Tensor, float]:
        """Loss of the lines and of the pointer, summed over reads, after a forward of `batch`; and the
        share of reads whose right line has the highest late score.
        """
        ends: list[int] = []
        slots: list[int] = []
        targets: list[tuple[float, ...]] = []
        start = 0
        for one in batch:
            reads = iter(one.reads)
            for branch, canvases in one.prompt.branches:
                length = len(branch)
                for canvas in canvases:
                    read = next(reads)
                    found = [
                        index
                        for index, token in enumerate(branch[: length - self.tail])
                        if token == self.newline
                    ]
                    ends += [start + index for index in found[-len(read.target) :]]
                    slots.append(start + length + canvas.slots[0])
                    targets.append(read.target)
                start += length + sum(len(canvas.ids) for canvas in canvases)
        sizes = [len(target) for target in targets]
        rows = torch.tensor(ends)
        lines = rows.new_zeros((), dtype=torch.float32)
        right = 0
        for name, weight in self.scores.items():
            score = rms_norm(self._hidden[name][rows], None, self.eps) @ weight
            right = 0
            for part, target in zip(score.split(sizes), targets, strict=True):
                wanted = part.new_tensor(target)
                lines = lines - (wanted * F.log_softmax(part, -1)).sum() / len(self.scores)
                right += bool(part.argmax() == wanted.argmax())
        return lines, self._pointer(rows, torch.tensor(slots), sizes, targets), right / len(targets)

    def _pointer(
        self, rows: Tensor, slots: Tensor, sizes: list[int], targets: list[tuple[float, ...]]
    ) -> Tensor:
        assert self._last is not None
        h, (cos, sin) = self._last
        (a,) = self._attention
        k = rotate(a.k_norm(a.k_proj(h[rows]).view(-1, a.kv_heads, a.dim)), cos[rows], sin[rows])
        q = rotate(a.q_norm(a.q_proj(h[slots]).view(-1, a.heads, a.dim)), cos[slots], sin[slots])
        loss = h.new_zeros(())
        for index, (part, target) in enumerate(zip(k.split(sizes), targets, strict=True)):
            seen = F.log_softmax(q[index, : self.heads] @ part[:, 0].T, dim=-1)
            loss = loss - (seen * seen.new_tensor(target)).sum() / self.heads
        return loss
