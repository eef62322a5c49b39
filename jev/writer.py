"""Texts on the model: each step is one forward of texts that are due, or one picture through the tower.

No HTTP, no queue.
"""

from __future__ import annotations

import hashlib
import time
from array import array
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import pairwise

import torch

from jev.lru import ByteLRU
from jev.model.cache import PrefixKV
from jev.model.denoise import Generation, Progress, run
from jev.model.diffusion_gemma import DiffusionGemma
from jev.model.lora import active
from jev.model.packed import ImageSpan
from jev.sight import seen
from jev.writing import Committed, Draft, Ended, Event, TextPlan

KEPT = 2
"""Beginnings of a prompt that are kept: the next message goes on from the last, another one for the last
message from the one before."""

LOOKED_UP = 16
"""Beginnings of a prompt that are looked for, the longest first."""


@dataclass(eq=False)
class Text:
    """A text on its way.

    Attributes:
        plan: what is asked.
        generation: its prompt and canvases, once its pictures are encoded.
        spans: its pictures' soft tokens so far.
        events: what came of it and was not taken yet.
        error: why it cannot be finished.
        seconds: how long the canvas at work has taken so far.
        turned: whether its turn is over: it has finished a canvas, or a long piece of its prompt.
        encoded: rows of the prompt and of canvases that are encoded.
        keys: names in the cache of the prompt's beginnings, by their lengths, increasing.
    """

    plan: TextPlan
    generation: Generation | None = None
    spans: list[ImageSpan] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    error: Exception | None = None
    seconds: float = 0.0
    turned: bool = False
    encoded: int = 0
    keys: dict[int, bytes] = field(default_factory=dict[int, bytes])

    @property
    def adapter(self) -> str | None:
        """Digest of the adapter that it runs with; None = none."""
        return None if self.plan.adapter is None else self.plan.adapter.digest

    @property
    def done(self) -> bool:
        """Whether there is nothing left to do."""
        return self.error is not None or (self.generation is not None and self.generation.done)

    @property
    def refining(self) -> bool:
        """Whether a canvas is begun and not finished."""
        return self.generation is not None and self.generation.refining

    def take(self) -> list[Event]:
        """What came of it since the last call."""
        taken, self.events = self.events, []
        return taken

    def cancel(self) -> None:
        """End it where it is, and let go of its keys and values."""
        if self.generation is not None:
            self.generation.cancel()
        self.spans.clear()


class Writer:
    """Runs texts on a model; for one thread at a time.

    Args:
        model: the model, with adapters installed by their digest.
        prefill_rows: most rows of a prompt in one forward.
        turn_rows: rows of a prompt after which other texts have their turn.
        cache: keys and values of prompts by their digest; shared with reads.
        vision_cache: soft tokens of pictures by their digest.
    """

    def __init__(
        self,
        model: DiffusionGemma,
        *,
        prefill_rows: int,
        cache: ByteLRU[PrefixKV],
        vision_cache: ByteLRU[torch.Tensor],
        turn_rows: int = 4096,
    ) -> None:
        self.model = model
        self.prefill_rows = prefill_rows
        self.turn_rows = turn_rows
        self.cache = cache
        self.vision_cache = vision_cache
        self.counts = {"texts": 0, "text_tokens": 0, "canvases": 0, "canvas_rows": 0, "text_steps": 0}

    def start(self, plan: TextPlan) -> Text:
        """Begin a text."""
        self.counts["texts"] += 1
        return Text(plan)

    def step(self, texts: Sequence[Text]) -> None:
        """Run one forward for unfinished texts with one adapter, or the next picture of one of them.

        A text that fails keeps the `error`; if several fail together, each is tried alone.
        """
        for one in texts:
            one.turned = False
        unseen = next((one for one in texts if len(one.spans) < len(one.plan.images)), None)
        try:
            if unseen is not None:
                image = unseen.plan.images[len(unseen.spans)]
                unseen.spans.append(seen(self.model, image, self.vision_cache))
                return
            started = time.perf_counter()
            generations = [self._begin(one) for one in texts]
            adapter = texts[0].adapter
            with active(self.model, adapter) if adapter is not None else nullcontext():
                found = run(self.model, generations)
        except Exception as error:
            if len(texts) == 1:
                self._fail(texts[0], error)
                return
            for one in texts:
                self.step([one])
            return
        for one, generation, rows in zip(texts, generations, found, strict=True):
            try:
                progress = generation.advance(*rows)
            except Exception as error:
                self._fail(one, error)
                continue
            one.seconds += time.perf_counter() - started
            self._note(one, generation, progress)
        self.counts["text_steps"] += 1

    def _fail(self, one: Text, error: Exception) -> None:
        one.error = error
        one.cancel()

    def _begin(self, one: Text) -> Generation:
        """The text's generation, behind as much of its prompt as is in the cache."""
        if one.generation is None:
            plan, prefix = one.plan, None
            one.keys = _keys(plan)
            looked_up = list(one.keys.values())[: -LOOKED_UP - 1 : -1]
            if looked_up:  # a hit or a miss, however many beginnings are looked for
                found = next((key for key in looked_up if self.cache.peek(key) is not None), looked_up[0])
                prefix = self.cache.get(found)
            known = prefix.length if prefix is not None else 0
            one.generation = Generation(
                self.model,
                plan.prompt[known:],
                plan.options,
                prefix=prefix,
                images=[
                    ImageSpan(span.start - known, span.embeddings)
                    for span in one.spans
                    if span.start >= known
                ],
                prefill_rows=self.prefill_rows,
                cuts=[mark - known for mark in plan.marks if mark > known],
            )
        return one.generation

    def _note(self, one: Text, generation: Generation, progress: Progress) -> None:
        """Take in what a forward did for a text."""
        plan = one.plan
        if not progress.step:
            one.seconds = 0.0  # of the prompt, not of a canvas
            self._keep(one, generation)
            return
        block, canvas = progress.block, progress.canvas
        if plan.drafts:
            steps = plan.options.max_denoising_steps
            one.events.append(
                Draft(block, progress.step, steps, canvas, progress.kept, progress.entropy, progress.final)
            )
        if not progress.final:
            return
        one.turned = True
        before = sum(len(event) for event in generation.committed[:-1])
        ids = generation.tokens[before:]
        one.events.append(Committed(block, ids, progress.step, one.seconds))
        one.seconds = 0.0
        self.counts["canvases"] += 1
        self.counts["canvas_rows"] += len(canvas)
        self.counts["text_tokens"] += len(ids)
        if generation.finish is not None:
            finish = "stop" if generation.finish == "stop" else "length"
            one.events.append(
                Ended(finish, len(generation.tokens), len(generation.committed), generation.steps)
            )

    def _keep(self, one: Text, generation: Generation) -> None:
        """Keep what of a prompt others may share; give others their turn when much was encoded."""
        length = generation.kv.length
        if length in one.plan.marks[-KEPT:]:
            self.cache.put(one.keys[length], generation.kv)
        one.turned = length // self.turn_rows > one.encoded // self.turn_rows
        one.encoded = length


def _keys(plan: TextPlan) -> dict[int, bytes]:
    """What decides the keys and values of each beginning of a prompt that others may share, by its length."""
    keys: dict[int, bytes] = {}
    ids = memoryview(array("q", plan.prompt)).cast("B")
    adapter = plan.adapter.digest if plan.adapter is not None else ""
    begun = hashlib.sha256(f"text/{adapter}/".encode())
    for start, end in pairwise((0, *plan.marks)):
        begun.update(ids[start * 8 : end * 8])
        digest = begun.copy()
        for image in plan.images:
            if image.start < end:
                digest.update(image.sha256.encode())
        keys[end] = digest.digest()
    return keys
