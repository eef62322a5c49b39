"""The engine: a loaded checkpoint that turns requests into answers, without HTTP."""

from __future__ import annotations

import datetime
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from weakref import WeakValueDictionary

import jev._openmp  # noqa: F401 - before torch

import torch  # isort: skip

from jev.calibration.apply import activate
from jev.calibration.file import Calibration
from jev.calibration.identity import Identity, prompt_digest
from jev.combine import all_reads, answers_of, first_work, more_work
from jev.diagnostics import diagnostics
from jev.errors import ModelUnavailableError, NotFoundError
from jev.joint import plan_joint
from jev.labels import Labels
from jev.lru import ByteLRU
from jev.material import Material, unread
from jev.model import embedded
from jev.model.cache import PrefixKV
from jev.model.checkpoint import load_checkpoint
from jev.model.config import read_json
from jev.model.diffusion_gemma import DiffusionGemma
from jev.model.errors import CheckpointError
from jev.model.masks import ImageRule
from jev.model.packed import ImageSpan
from jev.model.quant import Bits
from jev.model.read import Branch, Canvas, Prefill, step
from jev.model.template import Template
from jev.model.tokenizer import Tokenizer
from jev.model.weights.identity import weights_digest
from jev.packing import Step, pack
from jev.plan import PlacedImage, Plan, Unit
from jev.prompt import PromptContext, plan_isolated
from jev.run import Encoding, Run
from jev.schemas import ModelInfo, SystemOneRequest, SystemOneResponse, Usage

ALIASES = ("jev-latest", "jev-preview")
MAX_CANVAS = 64
"""Widest joint canvas: past it answers start to lose their ids."""


class Cancelled(Exception):
    """The caller no longer wants the answer; raised between two steps of the model."""


class Engine:
    """One loaded model with its tokenizer, labels and prefix cache.

    `prepare` may be called from any thread; what runs the model (`start`, `step`, `finish`, `run`,
    `run_many`) from one thread at a time. `decide` does both under a lock.

    Attributes:
        name: the resolved model name that answers carry.
        description: one line for the model list.
        release_date: YYYY-MM-DD.
        fingerprint: digest of the checkpoint's config and weights; "" for a model without a folder.
        calibrations: by the name that requests give.
    """

    def __init__(
        self,
        model: DiffusionGemma,
        tokenizer: Tokenizer,
        *,
        name: str,
        description: str = "",
        release_date: str = "1970-01-01",
        max_context: int | None = None,
        max_request_tokens: int | None = None,
        cache_bytes: int = 256 * 2**20,
        vision_cache_bytes: int = 64 * 2**20,
        soft_tokens: int | None = None,
        step_rows: int = 512,
        prefill_rows: int = 128,
        fingerprint: str = "",
        calibrations: Mapping[str, Calibration] | None = None,
    ) -> None:
        config = model.config
        longest = config.text.max_position_embeddings
        if max_context is not None and max_context > longest:
            raise CheckpointError(f"max_context {max_context} is over the {longest} positions of the model")
        if tokenizer.vocab_size > config.text.vocab_size:
            raise CheckpointError(
                f"tokenizer.json has {tokenizer.vocab_size} ids, the model {config.text.vocab_size}"
            )
        self.model = model
        self.name = name
        self.description = description
        self.release_date = release_date
        self.fingerprint = fingerprint
        self.calibrations = dict(calibrations or {})
        self.max_context = max_context or longest
        self.step_rows = step_rows
        self.prefill_rows = min(prefill_rows, step_rows)
        self.cache: ByteLRU[PrefixKV] = ByteLRU(cache_bytes)
        self.vision_cache: ByteLRU[torch.Tensor] = ByteLRU(vision_cache_bytes)
        self.context = PromptContext(
            tokenizer=tokenizer,
            template=Template(tokenizer),
            labels=Labels.of(tokenizer),
            vocab_size=config.text.vocab_size,
            canvas_length=min(config.canvas_length, MAX_CANVAS),
            max_context=self.max_context,
            max_request_tokens=max_request_tokens or 2 * self.max_context,
            vision=model.vision.config if model.vision is not None else None,
            soft_tokens=soft_tokens,
        )
        self._lock = threading.Lock()
        self._counts = {"rows_prefill": 0, "rows_read": 0, "reads": 0, "steps": 0}
        self._encodings: WeakValueDictionary[bytes, Encoding] = WeakValueDictionary()
        self._started = 0

    @classmethod
    def load(
        cls,
        model: str | Path | None = None,
        *,
        device: str = "cpu",
        dtype: str = "float32",
        name: str | None = None,
        max_context: int | None = None,
        cache_bytes: int = 256 * 2**20,
        vision_cache_bytes: int = 64 * 2**20,
        step_rows: int = 512,
        prefill_rows: int = 128,
        vision: str | Path | None = None,
        image_rule: ImageRule = "diffusion_gemma",
        soft_tokens: int | None = None,
        calibrations: Mapping[str, Calibration] | None = None,
    ) -> Engine:
        """Load a checkpoint folder; None is the embedded model. Of the others see `load_checkpoint`.

        `dtype` is a floating-point type of torch by name, or "int8" or "int4": then the large weights
        stay packed in memory, and the arithmetic is fp32 on a CPU and bf16 elsewhere.

        Raises:
            CheckpointError: one sentence naming the file, key or tensor that is wrong.
        """
        folder = embedded.path() if model is None else Path(model)
        torch_dtype, bits = _precision(dtype, device)
        loaded = load_checkpoint(
            folder,
            device=device,
            dtype=torch_dtype,
            vision=vision or True,
            image_rule=image_rule,
            bits=bits,
        )
        card = read_json(folder / "jev.json") if (folder / "jev.json").exists() else {}
        modified = datetime.date.fromtimestamp((folder / "config.json").stat().st_mtime)
        return cls(
            loaded,
            Tokenizer.from_folder(folder),
            name=name or card.get("name") or folder.resolve().name,
            description=card.get("description", "DiffusionGemma checkpoint"),
            release_date=card.get("release_date", modified.isoformat()),
            max_context=max_context,
            cache_bytes=cache_bytes,
            vision_cache_bytes=vision_cache_bytes,
            soft_tokens=soft_tokens,
            step_rows=step_rows,
            prefill_rows=prefill_rows,
            fingerprint=weights_digest(folder),
            calibrations=calibrations,
        )

    @cached_property
    def identity(self) -> Identity:
        """What calibrations tell this model from others by."""
        return Identity(self.name, self.fingerprint, prompt_digest(self.context))

    @property
    def has_vision(self) -> bool:
        """Whether pictures can be shown to the model."""
        return self.model.vision is not None

    def models(self) -> list[ModelInfo]:
        """The names that requests may use."""
        names = (*ALIASES, self.name)
        return [
            ModelInfo(name=name, description=self.description, release_date=self.release_date)
            for name in names
        ]

    def stats(self) -> dict[str, float]:
        """Counts since loading, for metrics."""
        return {
            "prefix_hits": self.cache.hits,
            "prefix_misses": self.cache.misses,
            "prefix_bytes": self.cache.bytes,
            **self._counts,
        }

    def prepare(self, request: SystemOneRequest, material: Material | None = None) -> Plan:
        """Tokenise a request and check all of it, without running the model.

        Args:
            request: the request.
            material: its attachments and assets, read; None = it has none.

        Raises:
            NotFoundError: for a model that is not loaded.
            InvalidRequestError: for what cannot be asked of this model, naming the field.
            ModelUnavailableError: for pictures, when the model has no vision tower.
        """
        if request.model not in (*ALIASES, self.name):
            raise NotFoundError(f"No model named {request.model[:200]!r}; loaded: {self.name}")
        material = unread(request, has_vision=self.has_vision) if material is None else material
        if material.pictures and not self.has_vision:
            raise ModelUnavailableError("This model has no vision tower, so it cannot read images")
        calibration = None
        if request.calibration is not None:
            calibration = activate(request, self.calibrations, self.identity)
        plan = plan_joint if request.layout == "joint" else plan_isolated
        return replace(plan(request, self.context, material), calibration=calibration)

    def decide(self, request: SystemOneRequest, material: Material | None = None) -> SystemOneResponse:
        """Answer a request; callers in several threads take turns."""
        plan = self.prepare(request, material)
        with self._lock:
            return self.run(plan)

    def decide_many(self, plans: Sequence[Plan]) -> list[SystemOneResponse | Exception]:
        """Run several plans together, as `run_many` does; callers in several threads take turns."""
        with self._lock:
            return self.run_many(plans)

    def run(self, plan: Plan, *, cancelled: Callable[[], bool] = lambda: False) -> SystemOneResponse:
        """Do the model's work for a plan.

        Raises:
            Cancelled: between two steps, once `cancelled()` is true.
        """
        if cancelled():
            raise Cancelled
        run = self.start(plan)
        while not run.done:
            if cancelled():
                raise Cancelled
            self.step([run])
        return self.finish(run)

    def run_many(self, plans: Sequence[Plan], *, fresh: bool = False) -> list[SystemOneResponse | Exception]:
        """Do the model's work for several plans at once; one that fails is its exception instead.

        Args:
            plans: what to run.
            fresh: neither look at what the prefix cache holds nor add to it. Then the work is packed
                the same way whatever ran before, so that the same plans give the same numbers.
        """
        cache, encodings = self.cache, self._encodings
        if fresh:
            self.cache, self._encodings = ByteLRU(0), WeakValueDictionary()
        try:
            left = dict(enumerate(map(self.start, plans)))
            found: dict[int, SystemOneResponse | Exception] = {}
            while left:
                for index in [index for index, run in left.items() if run.done]:
                    # Let go of at once: its keys and values are larger than all else of it.
                    found[index] = self._finished(left.pop(index))
                if left:
                    self.step(list(left.values()))
            return [found[index] for index in range(len(plans))]
        finally:
            self.cache, self._encodings = cache, encodings

    def _finished(self, run: Run) -> SystemOneResponse | Exception:
        try:
            return self.finish(run)
        except Exception as error:
            return error

    def start(self, plan: Plan) -> Run:
        """Begin a plan: find what of it is encoded already."""
        self._started += 1
        run = Run(plan, self._started, to_read=deque(first_work(plan)))
        for unit in plan.units:
            key = run.key_of(unit)
            prefix = next((one for one in run.encodings if one.key == key), None)
            if prefix is None:
                prefix = self._prefix(key, unit)
                run.cached_prefixes += prefix.done
                run.encodings.append(prefix)
            if len(unit.branch) > self.step_rows:
                prefix = Encoding(unit.branch, unit.branch_images, after=prefix)
                run.encodings.append(prefix)
            run.sources[id(unit)] = prefix
        run.extended = not plan.groups
        return run

    def step(self, runs: Sequence[Run]) -> None:
        """Run one forward with work of unfinished runs, given in order of arrival.

        If it fails, each run's part is tried alone, and those that fail again keep the `error`.
        """
        work = pack(runs, self.step_rows, self.prefill_rows)
        try:
            self._forward(work)
        except Exception as error:
            if len(work.shares) == 1:
                next(iter(work.shares)).error = error
                return
            for run in work.shares:
                try:
                    self._forward(pack([run], self.step_rows, self.prefill_rows))
                except Exception as alone:
                    run.error = alone

    def finish(self, run: Run) -> SystemOneResponse:
        """The response of a run that is done.

        Raises:
            Exception: what the model raised, for a run that failed.
        """
        if run.error is not None:
            raise run.error
        plan = run.plan
        reads = all_reads(plan, run.readings)
        report = None
        if plan.request.diagnostics:
            report = {"model": asdict(self.identity), **diagnostics(run, reads)}
        return SystemOneResponse(
            model=self.name,
            answers=answers_of(plan, reads),
            usage=Usage(input_tokens=plan.input_tokens, output_tokens=plan.output_tokens),
            x_warnings=plan.warnings or None,
            x_diagnostics=report,
        )

    def _prefix(self, key: bytes, unit: Unit) -> Encoding:
        """The unit's prefix: in the cache, on its way for another run, or to be encoded."""
        if (one := self._encodings.get(key)) is not None:
            self.cache.hits += 1  # it is encoded once for everyone
            return one
        one = Encoding(unit.prefix, unit.prefix_images, key=key, kv=self.cache.get(key))
        if one.kv is not None:
            one.start = len(one.tokens)
        elif not one.tokens:
            one.kv = self.model.empty_prefix()
        else:
            self._encodings[key] = one
        return one

    def _forward(self, work: Step) -> None:
        """Run the chosen work and hand out what came of it; when it fails, nothing has changed."""
        started = time.perf_counter()
        prefills = [self._chunk(one, rows) for one, rows in work.encode]
        canvases: dict[int, list[Canvas]] = {}
        owners: dict[int, tuple[Run, Branch]] = {}
        for run, unit, number in work.read:
            canvases.setdefault(id(unit), []).append(
                unit.seeded(number, mass=bool(run.plan.request.diagnostics))
            )
            owners[id(unit)] = (run, self._branch(run, unit))
        longer, readings = step(
            self.model, prefills, [(owners[key][1], ones) for key, ones in canvases.items()]
        )
        for (one, rows), kv in zip(work.encode, longer, strict=True):
            one.kv, one.start = kv, one.start + rows
            if one.done:
                one.spans = None
                if one.key is not None:
                    self.cache.put(one.key, kv)
        for key, found in zip(canvases, readings, strict=True):
            run, branch = owners[key]
            run.branches[key] = branch
            run.readings.setdefault(key, []).extend(found)
        encoded = sum(rows for _, rows in work.encode)
        self._counts["rows_prefill"] += encoded
        self._counts["rows_read"] += work.rows - encoded
        self._counts["reads"] += len(work.read)
        self._counts["steps"] += 1
        self._account(work, time.perf_counter() - started)

    def _account(self, work: Step, elapsed: float) -> None:
        """Note what the step did for each run, and see which of them want more."""
        for run in work.shares:
            mine = [unit for other, unit, _ in work.read if other is run]
            for unit in mine:
                assert run.to_read.popleft()[0] is unit
            run.rows += work.shares[run]
            run.steps += 1
            if mine:
                run.read_s += elapsed
            else:
                run.prefill_s += elapsed
            if mine and not run.to_read and not run.extended:
                run.extended = True
                run.to_read.extend(more_work(run.plan, run.readings))

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
        return Branch(source.kv, unit.branch, self._spans(unit.branch_images))

    def _spans(self, images: tuple[PlacedImage, ...]) -> tuple[ImageSpan, ...]:
        """Run the vision tower on what it has not seen lately."""
        spans = []
        for image in images:
            assert self.model.vision is not None  # pictures are refused without one
            key = image.sha256.encode()
            soft = self.vision_cache.get(key)
            if soft is None:
                soft = self.model.vision(image.patches)
                self.vision_cache.put(key, soft)
            spans.append(ImageSpan(image.start, soft))
        return tuple(spans)


def _precision(dtype: str, device: str) -> tuple[torch.dtype, Bits | None]:
    """The type of the arithmetic, and bits of the packed weights if they are packed.

    Raises:
        CheckpointError: for a name that is neither.
    """
    packed: dict[str, Bits] = {"int8": 8, "int4": 4}
    if dtype in packed:
        return torch.float32 if torch.device(device).type == "cpu" else torch.bfloat16, packed[dtype]
    found = getattr(torch, dtype, None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise CheckpointError(f"dtype {dtype!r} is neither a floating-point type of torch nor int8 or int4")
    return found, None
