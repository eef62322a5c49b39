"""The block loop: a text is written canvas after canvas, each refined over denoising steps.

A `Generation` is one text on its way. It moves by one forward at a time, so that whoever runs it can do
other work between two forwards, stop, or run several texts in one forward.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor

from jev.model.cache import LayerKV, PrefixKV
from jev.model.diffusion_gemma import PREFILL_ROWS, DiffusionGemma
from jev.model.packed import Block, ImageSpan, forward, pieces
from jev.model.sampling import Noise, above_threshold, predict, soft_embedding, within_bound
from jev.model.writing import Options

Finish = Literal["stop", "length", "cancelled"]

LEAST_TEMPERATURE = 1e-30
"""A softmax in fp32 is as sharp as it gets before that, and logits over less are not finite."""


@dataclass(frozen=True)
class Progress:
    """What one forward did for a text.

    Attributes:
        block: number of the canvas, from 0.
        step: denoising steps of this canvas so far; 0 = rows before it were encoded.
        canvas: its likeliest ids now; () while rows are encoded.
        kept: which positions of the canvas the next step sees as they were drawn.
        entropy: mean over the canvas, in nats; 0 while rows are encoded.
        final: whether the canvas is finished. Then `canvas` is what is committed: behind an
            end-of-sequence id there is padding.
    """

    block: int
    step: int
    canvas: tuple[int, ...] = ()
    kept: tuple[bool, ...] = ()
    entropy: float = 0.0
    final: bool = False


@dataclass
class _Canvas:
    """The canvas that is being refined: what it shows now, and what is known from the steps before.

    Attributes:
        ids: int64 [C].
        kept: bool [C]; with the confidence-threshold sampler these stay for good.
        history: likeliest ids of the last `stability` steps.
        soft: what the last step predicted, [C, hidden].
        steps: steps so far.
    """

    ids: Tensor
    kept: Tensor
    history: deque[Tensor]
    soft: Tensor | None = None
    steps: int = 0


class Generation:
    """One text: its prompt is encoded, then canvases are refined and encoded one after another.

    The last canvas is not encoded: nothing follows it.

    Args:
        model: the model.
        prompt: ids to encode first.
        options: how to write.
        prefix: keys and values of what stands before the prompt.
        images: soft tokens that stand in for the embeddings of prompt rows.
        prefill_rows: most rows of the prompt encoded in one forward; an image is not split.
        cuts: places in the prompt, increasing and not within an image, that no forward encodes across. A
            text whose prompt up to such a place is encoded already then becomes what it would become
            otherwise, bit for bit.
        noise: what draws; None = from the options' seed.

    Attributes:
        options: as given.
        kv: keys and values of what is encoded.
        committed: the finished canvases, each as it is or will be encoded.
        finish: why the text ended; None while it has not.
        steps: denoising steps so far.

    Raises:
        ValueError: for no prompt, or one too long for the canvases that are wanted.
    """

    def __init__(
        self,
        model: DiffusionGemma,
        prompt: Sequence[int],
        options: Options,
        *,
        prefix: PrefixKV | None = None,
        images: Sequence[ImageSpan] = (),
        prefill_rows: int = PREFILL_ROWS,
        cuts: Sequence[int] = (),
        noise: Noise | None = None,
    ) -> None:
        config = model.config
        self.kv = prefix or model.empty_prefix()
        self.prompt_tokens = self.kv.length + len(prompt)
        if not self.prompt_tokens:
            raise ValueError("the prompt must have at least one token")
        room = config.text.max_position_embeddings
        if self.prompt_tokens + options.rows > room:
            raise ValueError(
                f"a prompt of {self.prompt_tokens} tokens and {options.canvases} canvases, {options.rows} "
                f"tokens, exceed the model's {room} positions"
            )
        self.model = model
        self.options = options
        self.committed: list[tuple[int, ...]] = []
        self.finish: Finish | None = None
        self.steps = 0
        self._noise = noise or Noise(options.seed, config.text.vocab_size, model.device)
        self._pending = deque(_cut(prompt, images, prefill_rows, cuts))
        self._canvas: _Canvas | None = None

    @property
    def done(self) -> bool:
        """Whether nothing is left to do."""
        return self.finish is not None

    @property
    def refining(self) -> bool:
        """Whether a canvas is begun and not finished."""
        return self._canvas is not None

    @property
    def tokens(self) -> tuple[int, ...]:
        """The text so far: ids before the first end-of-sequence id, at most `max_tokens`."""
        ids = [one for canvas in self.committed for one in canvas]
        ends = self.model.config.eos_token_ids
        end = next((index for index, one in enumerate(ids) if one in ends), len(ids))
        return tuple(ids[: min(end, self.options.max_tokens)])

    @property
    def tokens_per_forward(self) -> float:
        """Tokens of the text for each denoising step; prompt and commits are not counted."""
        return len(self.tokens) / self.steps if self.steps else 0.0

    def cancel(self) -> None:
        """End the text where it is, and let go of its keys and values."""
        if self.finish is None:
            self._end("cancelled")

    def step(self) -> Progress:
        """Run one forward."""
        return step(self.model, [self])[0]

    def block(self) -> Block:
        """The rows of the next forward; the same until `advance`."""
        if self._pending:
            tokens, images = self._pending[0]
            return Block(self.kv, tokens=tokens, images=images)
        if self._canvas is None:
            ids = self._noise.ids(self.options.width(len(self.committed)))
            self._canvas = _Canvas(
                ids, torch.zeros_like(ids, dtype=torch.bool), deque(maxlen=self.options.stability)
            )
        canvas = self._canvas
        return Block(
            self.kv,
            canvases=[canvas.ids.tolist()],
            slots=[range(len(canvas.ids))],
            soft=[canvas.soft],
        )

    @torch.inference_mode()
    def advance(self, hidden: Tensor, rows: list[LayerKV]) -> Progress:
        """Take in what the forward of `block()` gave.

        Args:
            hidden: the last hidden states of the canvas [C, hidden]; [0, hidden] when rows were encoded.
            rows: keys and values of the encoded rows by layer.

        Raises:
            ArithmeticError: for a logit that is not finite.
        """
        number = len(self.committed)
        if self._pending:
            self.kv = self.kv.extended(self.model.config.text, rows)
            self._pending.popleft()
            return Progress(number, 0)
        assert self._canvas is not None
        canvas = self._canvas
        best, entropy, final = self._denoise(canvas, hidden)
        ids = tuple(best.tolist())
        if final:
            ids = self._commit(ids)
        return Progress(number, canvas.steps, ids, tuple(canvas.kept.tolist()), entropy, final)

    def _denoise(self, canvas: _Canvas, hidden: Tensor) -> tuple[Tensor, float, bool]:
        """One step on the canvas: its likeliest ids, its mean entropy, and whether it is finished."""
        options, text = self.options, self.model.text
        left = options.max_denoising_steps - canvas.steps
        temperature = options.t_min + (options.t_max - options.t_min) * left / options.max_denoising_steps
        found = predict(text, hidden, max(temperature, LEAST_TEMPERATURE))
        if options.sampler == "entropy-bound":
            accepted = within_bound(found.entropy, options.entropy_bound)
            drawn = self._noise.pick(found.probabilities, accepted)
            canvas.kept = accepted
        else:
            drawn = self._noise.pick(found.probabilities, ~canvas.kept)
            sure = found.probabilities.gather(1, drawn[:, None])[:, 0]
            accepted = above_threshold(sure, ~canvas.kept, options.threshold)
            drawn = torch.where(canvas.kept, canvas.ids, drawn)
            canvas.kept = canvas.kept | accepted
        # Drawn even where nothing looks at it any more: the next canvas's draws come after it.
        canvas.ids = torch.where(canvas.kept, drawn, self._noise.ids(len(drawn)))
        canvas.steps += 1
        self.steps += 1

        stable = len(canvas.history) == options.stability and all(
            torch.equal(before, found.best) for before in canvas.history
        )
        canvas.history.append(found.best)
        entropy = found.entropy.mean().item()
        if not math.isfinite(entropy):
            raise ArithmeticError("the model gave a logit that is not finite")
        final = left == 1 or (stable and entropy < options.confidence)
        if options.sampler == "confidence-threshold":
            final = final or bool(canvas.kept.all())
        canvas.soft = None
        if options.self_conditioning and not final:
            canvas.soft = soft_embedding(text, found)
        return found.best, entropy, final

    def _commit(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        """Finish the canvas: cut behind the end of the text, then encode it or end."""
        config = self.model.config
        self._canvas = None
        end = next((index for index, one in enumerate(ids) if one in config.eos_token_ids), None)
        if end is not None:
            ids = ids[: end + 1] + (config.pad_token_id,) * (len(ids) - end - 1)
        self.committed.append(ids)
        if end is not None:
            # An end that lies behind the last token that is wanted came too late.
            limit = self.options.max_tokens - sum(map(len, self.committed[:-1]))
            self._end("stop" if end <= limit else "length")
        elif len(self.committed) == self.options.canvases:
            self._end("length")
        else:
            self._pending.extend(pieces(ids, (), len(ids)))
        return ids

    def _end(self, finish: Finish) -> None:
        self.finish = finish
        self._canvas = None
        self._pending.clear()
        self.kv = self.model.empty_prefix()


def _cut(
    ids: Sequence[int], images: Sequence[ImageSpan], rows: int, cuts: Sequence[int]
) -> Iterator[tuple[Sequence[int], list[ImageSpan]]]:
    """The pieces of a prompt, none of them across a cut."""
    for start, end in pairwise((0, *(cut for cut in cuts if 0 < cut < len(ids)), len(ids))):
        within = [ImageSpan(one.start - start, one.embeddings) for one in images if start <= one.start < end]
        yield from pieces(ids[start:end], within, rows)


def step(model: DiffusionGemma, generations: Sequence[Generation]) -> list[Progress]:
    """Run one forward for several texts that are not done; each text's vocabulary-wide work is done in turn.

    What a text becomes depends on the others by the rounding of differently shaped matmuls, which may
    tip a token. Texts that shall not depend on each other at all are run alone.
    """
    found = run(model, generations)
    return [one.advance(*rows) for one, rows in zip(generations, found, strict=True)]


@torch.inference_mode()
def run(model: DiffusionGemma, generations: Sequence[Generation]) -> list[tuple[Tensor, list[LayerKV]]]:
    """The forward of a step: for each text what its `advance` takes. If it fails, nothing has changed."""
    blocks = [one.block() for one in generations]
    hidden, encoded = forward(model.text, blocks, rule=model.image_rule)
    parts = hidden.split([sum(map(len, block.slots)) for block in blocks])
    return list(zip(parts, encoded, strict=True))


def write(
    model: DiffusionGemma,
    prompt: Sequence[int],
    options: Options,
    *,
    images: Sequence[ImageSpan] = (),
) -> Generation:
    """Write a whole text; see `Generation`."""
    generation = Generation(model, prompt, options, images=images)
    while not generation.done:
        generation.step()
    return generation
