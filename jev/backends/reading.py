"""Plans answered canvas by canvas: for backends that read the engine's canvases in another way."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeAlias

from jev.backends.material import MaterialReader
from jev.combine import all_reads, answers_of, first_work, more_work
from jev.diagnostics import diagnostics
from jev.engine import ALIASES, MAX_CANVAS
from jev.errors import InvalidRequestError, ModelUnavailableError, NotFoundError, ServerError
from jev.joint import plan_joint
from jev.labels import Labels
from jev.material import NOTHING, Material
from jev.model.read import Reading
from jev.model.source import read_card, read_config, read_tokenizer
from jev.model.template import Template
from jev.plan import Plan, Unit
from jev.prompt import PromptContext, plan_isolated
from jev.run import Run
from jev.schemas import SystemOneRequest, SystemOneResponse, Usage
from jev.settings import Settings

Work: TypeAlias = Sequence[tuple[Unit, int]]
"""Canvases to read: units, each with a read number."""

ReadAll: TypeAlias = Callable[[Work], Awaitable[Sequence[Reading]]]
"""Reads all of the given canvases, in order."""


async def answer(plan: Plan, model: str, read: ReadAll) -> SystemOneResponse:
    """Answer a plan by the engine's rules (samples, extension, permutations) from someone's readings.

    Raises:
        ServerError: for a logit that is not finite.
    """
    run = Run(plan)
    started = time.perf_counter()
    try:
        await _extend(run, first_work(plan), read)
        await _extend(run, more_work(plan, run.readings), read)
        run.read_s = time.perf_counter() - started
        reads = all_reads(plan, run.readings)
    except ArithmeticError as error:
        raise ServerError(f"{model}: {error}") from error
    return SystemOneResponse(
        model=model,
        answers=answers_of(plan, reads),
        usage=Usage(input_tokens=plan.input_tokens, output_tokens=plan.output_tokens),
        x_diagnostics=diagnostics(run, reads) if plan.request.diagnostics else None,
    )


async def _extend(run: Run, work: Work, read: ReadAll) -> None:
    if work:
        for (unit, _), reading in zip(work, await read(work), strict=True):
            run.readings.setdefault(id(unit), []).append(reading)


class Planner:
    """Makes the plans that the engine would make, for a backend that shows its model text only.

    Args:
        kind: the backend, for messages.
        context: what prompts are built with.
        name: name of the model, for requests that ask for one.
        settings: how attachments are read.
        has_vision: whether the engine would show this model pictures; then they are not read as text here.
    """

    def __init__(
        self, kind: str, context: PromptContext, name: str, settings: Settings, *, has_vision: bool
    ) -> None:
        self.context = context
        self.name = name
        self._kind = kind
        self._material = MaterialReader(settings, has_vision=has_vision)
        self._workers = ThreadPoolExecutor(1, thread_name_prefix="jev-prepare")
        self._closed = False

    async def plan(self, request: SystemOneRequest) -> Plan:
        """Check and tokenise a request off the event loop.

        Raises:
            NotFoundError: for another model.
            InvalidRequestError: for what cannot be asked, naming the field.
            ModelUnavailableError: for pictures, or once it is closed.
        """
        if self._closed:
            raise ModelUnavailableError("The backend is closed")
        material = await self._material.of(request) or NOTHING
        return await asyncio.get_running_loop().run_in_executor(self._workers, self._plan, request, material)

    def _plan(self, request: SystemOneRequest, material: Material) -> Plan:
        if request.model not in (*ALIASES, self.name):
            raise NotFoundError(f"No model named {request.model[:200]!r}; loaded: {self.name}")
        if material.pictures:
            raise ModelUnavailableError(f"The backend {self._kind} reads text only, no pictures")
        if request.calibration is not None:
            raise InvalidRequestError.at(
                "calibration", msg=f"The backend {self._kind} gives probabilities as they are, uncalibrated"
            )
        plan = plan_joint if request.layout == "joint" else plan_isolated
        return plan(request, self.context, material)

    async def aclose(self) -> None:
        """End the processes that read attachments."""
        self._closed = True
        self._workers.shutdown(wait=False, cancel_futures=True)
        await self._material.aclose()


def context_of(folder: Path, max_context: int | None = None) -> tuple[PromptContext, str]:
    """What prompts for a checkpoint are built with, and the checkpoint's name, without its weights.

    Args:
        folder: holds `config.json` and `tokenizer.json`; or a GGUF file.
        max_context: most prompt and canvas rows of one read; None = the model's.

    Raises:
        CheckpointError: naming the file that is missing or wrong.
    """
    config, tokenizer = read_config(folder), read_tokenizer(folder)
    longest = max_context or config.text.max_position_embeddings
    context = PromptContext(
        tokenizer=tokenizer,
        template=Template(tokenizer),
        labels=Labels.of(tokenizer),
        vocab_size=config.text.vocab_size,
        canvas_length=min(config.canvas_length, MAX_CANVAS),
        max_context=longest,
        max_request_tokens=2 * longest,
    )
    return context, read_card(folder)["name"]


class CanvasBackend:
    """A `Backend` that reads the planned canvases on a thread of its own; a subclass says how.

    Args:
        planner: makes the plans; closed with the backend.
        model: the resolved name of the model.
        name: what reports call it.
        fingerprint: what tells the weights and settings from others.
    """

    concurrency = 2

    def __init__(self, planner: Planner, *, model: str, name: str, fingerprint: str) -> None:
        self.name = name
        self.model = model
        self.fingerprint = fingerprint
        self._planner = planner
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="jev-read")

    async def decide(self, request: SystemOneRequest) -> SystemOneResponse:
        """Answer a request; errors as in `Backend`."""
        return await answer(await self._planner.plan(request), self.model, self._on_thread)

    async def aclose(self) -> None:
        """End the thread and the processes that read attachments; pending calls fail."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        await self._planner.aclose()

    def read(self, work: Work) -> list[Reading]:
        """Read the canvases, in order."""
        raise NotImplementedError

    async def _on_thread(self, work: Work) -> list[Reading]:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self.read, work)
