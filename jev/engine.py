"""The engine: a loaded checkpoint that turns requests into answers, without HTTP."""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import jev._openmp  # noqa: F401 - before torch

import torch  # isort: skip

from jev.decide import Reads, entropy, softmax, to_alternatives, to_answer
from jev.diagnostics import diagnostics
from jev.errors import InvalidRequestError, ModelUnavailableError, NotFoundError
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
from jev.model.read import Branch, Canvas, Reading, read
from jev.model.template import Template
from jev.model.tokenizer import Tokenizer
from jev.plan import Group, PlacedImage, Plan, Unit, alternatives
from jev.prompt import PromptContext, plan_isolated
from jev.schemas import Answer, ModelInfo, SystemOneRequest, SystemOneResponse, Usage

ALIASES = ("jev-latest", "jev-preview")
MAX_CANVAS = 64
"""Widest joint canvas: past it answers start to lose their ids."""


class Cancelled(Exception):
    """The caller no longer wants the answer; raised between two steps of the model."""


@dataclass
class Run:
    """One plan being run: prefixes, branches and what was read so far, by unit."""

    plan: Plan
    cancelled: Callable[[], bool]
    prefixes: dict[bytes, PrefixKV] = field(default_factory=dict)
    branches: dict[int, Branch] = field(default_factory=dict)
    readings: dict[int, list[Reading]] = field(default_factory=dict)
    keys: dict[int, bytes] = field(default_factory=dict)
    cached_prefixes: int = 0
    prefill_s: float = 0.0
    read_s: float = 0.0

    def key_of(self, unit: Unit) -> bytes:
        """The unit's prefix key, worked out once for all units that share the prefix."""
        same = id(unit.prefix)
        if same not in self.keys:
            self.keys[same] = unit.prefix_key
        return self.keys[same]

    def check(self) -> None:
        """Stop here if nobody waits for the answer."""
        if self.cancelled():
            raise Cancelled


class Engine:
    """One loaded model with its tokenizer, labels and prefix cache.

    `prepare` may be called from any thread; `run` from one thread at a time. `decide` does both
    under a lock.

    Attributes:
        name: the resolved model name that answers carry.
        description: one line for the model list.
        release_date: YYYY-MM-DD.
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
        step_rows: int = 2048,
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
        self.max_context = max_context or longest
        self.step_rows = step_rows
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
        self._counts = {"rows_prefill": 0, "rows_read": 0, "reads": 0}

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
        step_rows: int = 2048,
        vision: str | Path | None = None,
        image_rule: ImageRule = "diffusion_gemma",
        soft_tokens: int | None = None,
    ) -> Engine:
        """Load a checkpoint folder; None is the embedded model. Of the others see `load_checkpoint`.

        Raises:
            CheckpointError: one sentence naming the file, key or tensor that is wrong.
        """
        folder = embedded.path() if model is None else Path(model)
        torch_dtype = getattr(torch, dtype, None)
        if not isinstance(torch_dtype, torch.dtype) or not torch_dtype.is_floating_point:
            raise CheckpointError(f"dtype {dtype!r} is not a floating-point type of torch")
        loaded = load_checkpoint(
            folder, device=device, dtype=torch_dtype, vision=vision or True, image_rule=image_rule
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
        )

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
        material = unread(request) if material is None else material
        if material.pictures and not self.has_vision:
            raise ModelUnavailableError("This model has no vision tower, so it cannot read images")
        if request.calibration is not None:
            raise InvalidRequestError.at(
                "calibration", msg=f"No calibration named {request.calibration[:200]!r} is loaded"
            )
        plan = plan_joint if request.layout == "joint" else plan_isolated
        return plan(request, self.context, material)

    def decide(self, request: SystemOneRequest, material: Material | None = None) -> SystemOneResponse:
        """Answer a request; callers in several threads take turns."""
        plan = self.prepare(request, material)
        with self._lock:
            return self.run(plan)

    def run(self, plan: Plan, *, cancelled: Callable[[], bool] = lambda: False) -> SystemOneResponse:
        """Do the model's work for a plan.

        Raises:
            Cancelled: between two steps, once `cancelled()` is true.
        """
        started = time.perf_counter()
        run = Run(plan, cancelled)
        for unit in plan.units:
            self._encode(run, unit)
        self._read(run, [(unit, n) for unit in plan.units for n in range(plan.first_reads)])
        self._extend(run)
        reads = {
            question: _reads_of(question, group, run.readings)
            for group in plan.groups
            for question in group.questions
        }
        answers: dict[str, Answer] = {}
        for name, question in plan.request.questions.items():
            only = [1.0] if alternatives(question) == 1 else None
            answers[name] = to_answer(question, only or reads[name].probabilities)
        elapsed = time.perf_counter() - started
        return SystemOneResponse(
            model=self.name,
            answers=answers,
            usage=Usage(input_tokens=plan.input_tokens, output_tokens=plan.output_tokens),
            x_diagnostics=diagnostics(run, reads, elapsed) if plan.request.diagnostics else None,
        )

    def _encode(self, run: Run, unit: Unit) -> None:
        """Have the unit's prefix and, if it is too long for one step, its branch in the cache."""
        started = time.perf_counter()
        key = run.key_of(unit)
        if key not in run.prefixes:
            kv = self.cache.get(key)
            if kv is None:
                kv = self._prefill(run, unit.prefix, None, unit.prefix_images)
                self.cache.put(key, kv)
            else:
                run.cached_prefixes += 1
            run.prefixes[key] = kv
        prefix = run.prefixes[key]
        if len(unit.branch) > self.step_rows:
            branch = Branch(self._prefill(run, unit.branch, prefix, unit.branch_images))
        else:
            branch = Branch(prefix, unit.branch, self._spans(run, unit.branch_images))
        run.branches[id(unit)] = branch
        run.prefill_s += time.perf_counter() - started

    def _prefill(
        self, run: Run, tokens: tuple[int, ...], kv: PrefixKV | None, images: tuple[PlacedImage, ...]
    ) -> PrefixKV:
        run.check()
        kv = kv or self.model.empty_prefix()
        for longer in self.model.prefill_steps(tokens, kv, images=self._spans(run, images)):
            run.check()
            kv = longer
        self._counts["rows_prefill"] += len(tokens)
        return kv

    def _spans(self, run: Run, images: tuple[PlacedImage, ...]) -> tuple[ImageSpan, ...]:
        """Run the vision tower on what it has not seen lately."""
        spans = []
        for image in images:
            assert self.model.vision is not None  # pictures are refused without one
            key = image.sha256.encode()
            soft = self.vision_cache.get(key)
            if soft is None:
                run.check()
                soft = self.model.vision(image.patches)
                self.vision_cache.put(key, soft)
            spans.append(ImageSpan(image.start, soft))
        return tuple(spans)

    def _read(self, run: Run, work: list[tuple[Unit, int]]) -> None:
        """Read (unit, read number) pairs, as many in a forward as the row budget holds."""
        started = time.perf_counter()
        for step in self._steps(run, work):
            run.check()
            canvases: dict[int, list[Canvas]] = {}
            for unit, number in step:
                canvases.setdefault(id(unit), []).append(unit.seeded(number))
            results = read(
                self.model,
                [(run.branches[key], canvases[key]) for key in canvases],
                keep=True,
                mass=bool(run.plan.request.diagnostics),
            )
            for key, readings in zip(canvases, results, strict=True):
                run.readings.setdefault(key, []).extend(readings)
            self._counts["reads"] += len(step)
        run.read_s += time.perf_counter() - started

    def _steps(self, run: Run, work: list[tuple[Unit, int]]) -> Iterator[list[tuple[Unit, int]]]:
        step: list[tuple[Unit, int]] = []
        rows = 0
        seen: set[int] = set()
        for unit, number in work:
            branch = run.branches[id(unit)]
            encoded = branch.kv is not None or id(unit) in seen
            need = len(unit.canvas) + (0 if encoded else len(branch.tokens))
            if step and rows + need > self.step_rows:
                self._counts["rows_read"] += rows
                yield step
                step, rows = [], 0
            step.append((unit, number))
            seen.add(id(unit))
            rows += need
        if step:
            self._counts["rows_read"] += rows
            yield step

    def _extend(self, run: Run) -> None:
        """Read uncertain groups again: up to `auto_max` reads where the entropy is over the threshold."""
        request = run.plan.request
        if request.samples != "auto" or request.auto_max == 1:
            return
        more = []
        for group in run.plan.groups:
            first = [_reads_of(question, group, run.readings).probabilities for question in group.questions]
            if any(entropy(p) > request.auto_threshold for p in first):
                more += [(unit, n) for unit in group.units for n in range(1, request.auto_max)]
        self._read(run, more)


def _reads_of(question: str, group: Group, readings: dict[int, list[Reading]]) -> Reads:
    """All of a question's distributions over its alternatives, unit by unit and read by read."""
    rows = []
    for unit in group.units:
        index = next(i for i, slot in enumerate(unit.slots) if slot.question == question)
        rows += [
            to_alternatives(softmax(reading.logits[index]), unit.slots[index].order)
            for reading in readings[id(unit)]
        ]
    return Reads(tuple(rows))
