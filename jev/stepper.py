"""Steps of the model: what runs need is packed, run in one forward for each adapter, and handed out.

No HTTP, no questions.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from contextlib import nullcontext
from weakref import WeakValueDictionary

import torch

from jev.combine import first_work, more_work
from jev.lru import ByteLRU
from jev.model.cache import PrefixKV
from jev.model.diffusion_gemma import DiffusionGemma
from jev.model.lora import active
from jev.model.packed import ImageSpan
from jev.model.read import Branch, Canvas, Prefill, step
from jev.packing import Step, pack
from jev.plan import PlacedImage, Plan, Unit
from jev.run import Encoding, Run
from jev.sight import seen


class Stepper:
    """Runs plans on a model, several at once; for one thread at a time.

    Args:
        model: the model, with adapters installed by their digest.
        step_rows: most rows of one step.
        prefill_rows: most rows of a long prompt in it.
        cache: keys and values of prefixes by their digest. Where the model is row-invariant, of branches too:
            there a branch has the same bits whatever ran with it, so that no answer depends on the cache.
        vision_cache: soft tokens of pictures by their digest.
    """

    def __init__(
        self,
        model: DiffusionGemma,
        *,
        step_rows: int,
        prefill_rows: int,
        cache: ByteLRU[PrefixKV],
        vision_cache: ByteLRU[torch.Tensor],
    ) -> None:
        self.model = model
        self.step_rows = step_rows
        self.prefill_rows = min(prefill_rows, step_rows)
        self.cache = cache
        self.vision_cache = vision_cache
        self.counts = {"rows_prefill": 0, "rows_read": 0, "reads": 0, "steps": 0, "branch_hits": 0}
        # Weak: a prefix that nobody waits for any more is forgotten half done.
        self._encodings: WeakValueDictionary[bytes, Encoding] = WeakValueDictionary()

    def fresh(self) -> Stepper:
        """One that knows no prefix and keeps none beyond those that wait for it."""
        return Stepper(
            self.model,
            step_rows=self.step_rows,
            prefill_rows=self.prefill_rows,
            cache=ByteLRU(0),
            vision_cache=self.vision_cache,
        )

    def start(self, plan: Plan) -> Run:
        """Begin a plan: find what of it is encoded already."""
        run = Run(plan, to_read=deque(first_work(plan)))
        for unit in plan.units:
            key = run.key_of(unit)
            prefix = next((one for one in run.encodings if one.key == key), None)
            if prefix is None:
                prefix = self._prefix(key, unit, run.adapter)
                run.cached_prefixes += prefix.done
                run.encodings.append(prefix)
            if len(unit.branch) > self.step_rows:
                prefix = Encoding(unit.branch, unit.branch_images, after=prefix, adapter=run.adapter)
                run.encodings.append(prefix)
            run.sources[id(unit)] = prefix
            if self._keeps(run, unit) and (known := self.cache.peek(run.branch_key_of(unit))) is not None:
                run.known[id(unit)] = known
                self.counts["branch_hits"] += 1
        run.extended = not plan.groups
        return run

    def step(self, runs: Sequence[Run]) -> None:
        """Run one step with work of unfinished runs, given in order of arrival: a forward for each adapter.

        If one fails, each run's part of it is tried alone, and those that fail again keep the `error`.
        """
        for work in self._pack(runs):
            try:
                self._forward(work)
            except Exception as error:
                if len(work.shares) == 1:
                    next(iter(work.shares)).error = error
                    continue
                for run in work.shares:
                    try:
                        for part in self._pack([run]):
                            self._forward(part)
                    except Exception as alone:
                        run.error = alone

    def _pack(self, runs: Sequence[Run]) -> list[Step]:
        return pack(runs, self.step_rows, self.prefill_rows).apart()

    def _prefix(self, key: bytes, unit: Unit, adapter: str | None) -> Encoding:
        """The unit's prefix: in the cache, on its way for another run, or to be encoded."""
        if (one := self._encodings.get(key)) is not None:
            self.cache.hits += 1  # it is encoded once for everyone
            return one
        one = Encoding(unit.prefix, unit.prefix_images, key=key, adapter=adapter, kv=self.cache.get(key))
        if one.kv is not None:
            one.start = len(one.tokens)
        elif not one.tokens:
            one.kv = self.model.empty_prefix()
        else:
            self._encodings[key] = one
        return one

    def _keeps(self, run: Run, unit: Unit) -> bool:
        """Whether the unit's branch has a place in the cache: it is one, and the same bits every time."""
        branch = bool(unit.branch) and run.sources[id(unit)].key is not None
        return branch and run.adapter is None and self.model.row_invariant

    def _forward(self, work: Step) -> None:
        """Run the chosen work and hand out what came of it; when it fails, nothing has changed."""
        started = time.perf_counter()
        prefills = [self._chunk(one, rows) for one, rows in work.encode]
        canvases: dict[int, list[Canvas]] = {}
        owners: dict[int, tuple[Run, Unit, Branch]] = {}
        for run, unit, number in work.read:
            canvases.setdefault(id(unit), []).append(
                unit.seeded(number, mass=bool(run.plan.request.diagnostics))
            )
            owners[id(unit)] = (run, unit, self._branch(run, unit))
        reads = [(owners[key][2], ones) for key, ones in canvases.items()]
        with active(self.model, work.adapter) if work.adapter is not None else nullcontext():
            longer, readings = step(self.model, prefills, reads)
        for (one, rows), kv in zip(work.encode, longer, strict=True):
            one.kv, one.start = kv, one.start + rows
            if one.done:
                one.spans = None
                if one.key is not None:
                    self.cache.put(one.key, kv)
        for key, found in zip(canvases, readings, strict=True):
            run, unit, branch = owners[key]
            if key not in run.branches and key not in run.known and self._keeps(run, unit):
                assert branch.kv is not None
                kept = PrefixKV(len(branch.tokens), tuple(branch.kv))
                self.cache.put_beside(run.branch_key_of(unit), kept, run.key_of(unit))
            run.branches[key] = branch
            run.readings.setdefault(key, []).extend(found)
        encoded = sum(rows for _, rows in work.encode)
        self.counts["rows_prefill"] += encoded
        self.counts["rows_read"] += work.rows - encoded
        self.counts["reads"] += len(work.read)
        self.counts["steps"] += 1
        self._account(work, time.perf_counter() - started)

    def _account(self, work: Step, elapsed: float) -> None:
        """Note what the step did for each run, and see which of them want more."""
        for run in work.shares:
            mine = [unit for other, unit, _ in work.read if other is run]
            for unit in mine:
                assert run.to_read.popleft()[0] is unit
            run.steps += 1
            if mine:
                run.read_s += elapsed
            else:
                run.prefill_s += elapsed
            if mine and not run.to_read and not run.extended:
                run.extended = True
                try:
                    run.to_read.extend(more_work(run.plan, run.readings))
                except Exception as error:  # what came of one run is no fault of the others
                    run.error = error

    def _chunk(self, one: Encoding, rows: int) -> Prefill:
        """The next rows of an encoding as the model takes them."""
        if one.kv is None:
            one.kv = one.after.kv if one.after is not None else self.model.empty_prefix()
        assert one.kv is not None
        if one.spans is None:
            one.spans = self._spans(one.images)
        spans = [
            ImageSpan(span.start - one.start, span.embeddings)
            for span in one.spans
            if one.start <= span.start < one.start + rows
        ]
        return Prefill(one.kv, one.tokens[one.start : one.start + rows], spans)

    def _branch(self, run: Run, unit: Unit) -> Branch:
        """What the unit's canvases are laid behind."""
        if (known := run.branches.get(id(unit))) is not None:
            return known
        source = run.sources[id(unit)]
        assert source.kv is not None
        if source.key is None:
            return Branch(source.kv)
        if (known := run.known.get(id(unit))) is not None:
            return Branch(source.kv, unit.branch, kv=list(known.layers))
        return Branch(source.kv, unit.branch, self._spans(unit.branch_images))

    def _spans(self, images: tuple[PlacedImage, ...]) -> tuple[ImageSpan, ...]:
        """Run the vision tower on what it has not seen lately."""
        return tuple(seen(self.model, image, self.vision_cache) for image in images)
