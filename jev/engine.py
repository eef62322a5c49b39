"""The engine: a loaded checkpoint that turns requests into answers, without HTTP."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import jev._before_torch  # noqa: F401 - before torch
from jev.adapters import check_adapter_name
from jev.calibration.apply import activate
from jev.calibration.file import Calibration
from jev.calibration.identity import Identity, prompt_digest
from jev.combine import all_reads, answers_of
from jev.diagnostics import diagnostics
from jev.errors import ModelUnavailableError, NotFoundError
from jev.joint import plan_joint
from jev.labels import Labels
from jev.lru import ByteLRU
from jev.material import Material, unread
from jev.model import embedded
from jev.model.checkpoint import load_checkpoint
from jev.model.diffusion_gemma import DiffusionGemma
from jev.model.errors import CheckpointError
from jev.model.lora import Adapter, install
from jev.model.masks import ImageRule
from jev.model.pixels import Patches
from jev.model.source import read_card, read_tokenizer
from jev.model.template import Template
from jev.model.tokenizer import Tokenizer
from jev.model.weights import Progress
from jev.model.weights.identity import weights_digest
from jev.plan import Adapted, Plan
from jev.precision import precision_of
from jev.prompt import PromptContext, plan_isolated
from jev.run import Run
from jev.schemas import ModelInfo, SystemOneRequest, SystemOneResponse, Usage
from jev.stepper import Stepper
from jev.writer import Writer
from jev.writing import Room, TextPlan, plan_text

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
        stepper: what runs the model.
        fingerprint: digest of the checkpoint's config and weights; "" for a model without a folder.
        precision: as `load` takes it; "" if not known.
        calibrations: by the name that requests give.
        adapters: by the name behind the plus sign of a request's model, such as "jev-latest+support".
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
        precision: str = "",
        calibrations: Mapping[str, Calibration] | None = None,
        adapters: Mapping[str, Adapter] | None = None,
        text_tile: int = 1,
        max_text_tokens: int | None = None,
        writes: bool = True,
    ) -> None:
        config = model.config
        longest = config.text.max_position_embeddings
        if max_context is not None and max_context > longest:
            raise CheckpointError(f"max_context {max_context} is over the {longest} positions of the model")
        if tokenizer.vocab_size > config.text.vocab_size:
            raise CheckpointError(
                f"tokenizer.json has {tokenizer.vocab_size} ids, the model {config.text.vocab_size}"
            )
        self.adapters = dict(adapters or {})
        for adapter in self.adapters:
            check_adapter_name(adapter)
        if self.adapters:
            install(model, {one.digest: one for one in self.adapters.values()})
        self.model = model
        self.name = name
        self.description = description
        self.release_date = release_date
        self.fingerprint = fingerprint
        self.precision = precision
        self.calibrations = dict(calibrations or {})
        self.max_context = max_context or longest
        self.stepper = Stepper(
            model,
            step_rows=step_rows,
            prefill_rows=prefill_rows,
            cache=ByteLRU(cache_bytes),
            vision_cache=ByteLRU(vision_cache_bytes),
        )
        self.writer = Writer(
            model,
            prefill_rows=self.stepper.prefill_rows,
            cache=self.stepper.cache,
            vision_cache=self.stepper.vision_cache,
        )
        self.writes = writes
        self.room = Room(self.max_context, text_tile, max_text_tokens)
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

    @classmethod
    def load(
        cls,
        model: str | Path | None = None,
        *,
        device: str = "cpu",
        dtype: str = "float32",
        name: str | None = None,
        vision: str | Path | None = None,
        image_rule: ImageRule = "diffusion_gemma",
        offload_layers: int = 0,
        progress: Progress | None = None,
        **options: Any,
    ) -> Engine:
        """Load a checkpoint folder or GGUF file; None is the embedded model. See also `load_checkpoint`.

        `dtype` is a floating-point type of torch by name, or "int8", "int4" or (on GPUs) "float8": then the
        large weights stay packed in memory, and the arithmetic is fp32 on a CPU and bf16 elsewhere.
        `options` are those of the constructor.

        Raises:
            CheckpointError: one sentence naming the file, key or tensor that is wrong.
        """
        path = embedded.path() if model is None else Path(model)
        torch_dtype, bits = precision_of(dtype, device)
        loaded = load_checkpoint(
            path,
            device=device,
            dtype=torch_dtype,
            vision=vision or True,
            image_rule=image_rule,
            bits=bits,
            offload_layers=offload_layers,
            progress=progress,
        )
        card = read_card(path)
        return cls(
            loaded,
            read_tokenizer(path),
            name=name or card["name"],
            description=card.get("description", "DiffusionGemma checkpoint"),
            release_date=card.get("release_date") or card["modified"],
            fingerprint=weights_digest(path),
            precision=dtype,
            writes=card.get("writes", True),
            **options,
        )

    @cached_property
    def identity(self) -> Identity:
        """What calibrations tell this model, without adapters, from others by."""
        return Identity(self.name, self.fingerprint, prompt_digest(self.context), self.precision)

    @property
    def identities(self) -> list[Identity]:
        """The identity of the model as it was loaded, and with each of its adapters."""
        adapted = [self._adapted(name) for name in self.adapters]
        return [self.identity, *map(self._identity_of, adapted)]

    @property
    def warning(self) -> str | None:
        """A sentence for whoever wants a text from a model that was not trained to write."""
        return None if self.writes else f"{self.name} was not trained to write, so this text means nothing"

    @property
    def has_vision(self) -> bool:
        """Whether pictures can be shown to the model."""
        return self.model.vision is not None

    def models(self) -> list[ModelInfo]:
        """The names that requests may use."""
        about = dict.fromkeys((*ALIASES, self.name), self.description)
        for adapter, one in self.adapters.items():
            text = f"{self.description}; with adapter {adapter}, rank {one.config.rank}"
            about |= {f"{name}+{adapter}": text for name in (*ALIASES, self.name)}
        return [
            ModelInfo(name=name, description=text, release_date=self.release_date)
            for name, text in about.items()
        ]

    def stats(self) -> dict[str, float]:
        """Counts since loading, for metrics."""
        return {
            "prefix_hits": self.stepper.cache.hits,
            "prefix_misses": self.stepper.cache.misses,
            "prefix_bytes": self.stepper.cache.bytes,
            **self.stepper.counts,
            **self.writer.counts,
        }

    def prepare(
        self, request: SystemOneRequest, material: Material | None = None, *, adapter: str | None = None
    ) -> Plan:
        """Tokenise a request and check all of it, without running the model.

        Args:
            request: the request.
            material: its attachments and assets, read; None = it has none.
            adapter: name of the adapter for a request whose model names none; None = none.

        Raises:
            NotFoundError: for a model or an adapter that is not loaded.
            InvalidRequestError: for what cannot be asked of this model, naming the field.
            ModelUnavailableError: for pictures, when the model has no vision tower.
        """
        adapted = self._asked(request.model, adapter)
        material = unread(request, has_vision=self.has_vision) if material is None else material
        if material.pictures and not self.has_vision:
            raise ModelUnavailableError("This model has no vision tower, so it cannot read images")
        calibration = None
        if request.calibration is not None:
            calibration = activate(request, self.calibrations, self._identity_of(adapted))
        plan = plan_joint if request.layout == "joint" else plan_isolated
        return replace(plan(request, self.context, material), calibration=calibration, adapter=adapted)

    def prepare_text(
        self,
        prompt: Sequence[int],
        *,
        model: str = ALIASES[0],
        pictures: Sequence[Patches] = (),
        adapter: str | None = None,
        **given: Any,
    ) -> TextPlan:
        """Check a text that is to be written, without running the model.

        Args:
            prompt: ids of the prompt; `context.template` makes them.
            model: the model's name, with an adapter's or without.
            pictures: what stands at the prompt's image rows.
            adapter: name of the adapter if `model` names none; None = none.
            given: as of `jev.writing.plan_text`.

        Raises:
            NotFoundError: for a model or an adapter that is not loaded.
            InvalidRequestError: naming the field and its limit.
            ModelUnavailableError: for pictures, when the model has no vision tower.
        """
        adapted = self._asked(model, adapter)
        if pictures and not self.has_vision:
            raise ModelUnavailableError("This model has no vision tower, so it cannot read images")
        return plan_text(
            prompt,
            self.model.config,
            self.context.template,
            self.room,
            pictures=pictures,
            adapter=adapted,
            **given,
        )

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
        stepper = self.stepper.fresh() if fresh else self.stepper
        left = dict(enumerate(map(stepper.start, plans)))
        found: dict[int, SystemOneResponse | Exception] = {}
        while left:
            for index in [index for index, run in left.items() if run.done]:
                # Let go of at once: its keys and values are larger than all else of it.
                found[index] = self._finished(left.pop(index))
            if left:
                stepper.step(list(left.values()))
        return [found[index] for index in range(len(plans))]

    def _finished(self, run: Run) -> SystemOneResponse | Exception:
        try:
            return self.finish(run)
        except Exception as error:
            return error

    def forget(self) -> None:
        """Empty the caches of prefixes and pictures; what runs keeps what it stands behind."""
        self.stepper.cache.clear()
        self.stepper.vision_cache.clear()

    def start(self, plan: Plan) -> Run:
        """Begin a plan: find what of it is encoded already."""
        return self.stepper.start(plan)

    def step(self, runs: Sequence[Run]) -> None:
        """Run one forward with work of unfinished runs, given in order of arrival."""
        self.stepper.step(runs)

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
            report = {"model": asdict(self._identity_of(plan.adapter)), **diagnostics(run, reads)}
        return SystemOneResponse(
            model=self.name if plan.adapter is None else f"{self.name}+{plan.adapter.name}",
            answers=answers_of(plan, reads),
            usage=Usage(input_tokens=plan.input_tokens, output_tokens=plan.output_tokens),
            x_warnings=plan.warnings or None,
            x_diagnostics=report,
        )

    def _asked(self, model: str, default: str | None) -> Adapted | None:
        """The adapter that a request's model field asks for.

        Raises:
            NotFoundError: the model or the adapter is not loaded.
        """
        names = (*ALIASES, self.name)
        adapter = default
        if model not in names:
            base, _, adapter = model.rpartition("+")
            if base not in names or adapter not in self.adapters:
                loaded = [self.name, *(f"{self.name}+{one}" for one in sorted(self.adapters))]
                raise NotFoundError(f"No model named {model[:200]!r}; loaded: {', '.join(loaded)[:500]}")
        return None if adapter is None else self._adapted(adapter)

    def _adapted(self, name: str) -> Adapted:
        return Adapted(name, self.adapters[name].digest)

    def _identity_of(self, adapter: Adapted | None) -> Identity:
        return self.identity if adapter is None else self.identity.adapted(adapter.name, adapter.digest)
