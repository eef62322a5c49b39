"""The same call in process: `LocalJev` runs an engine instead of asking a server."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Unpack, overload

from jev._batch import Batches
from jev._batch_rows import Item, Job, RowResult
from jev._body import DecideOptions, Questions, State, encode
from jev._draft import Draft
from jev._extras import extra_named
from jev.errors import InvalidRequestError, JevError
from jev.results import Decision, TypedDecision, decision_of, typed_of
from jev.schemas import (
    ATTACHMENT_FIELDS,
    BadRequestError,
    ModelInfo,
    SystemOneRequest,
    SystemOneResponse,
    Warning,
    parse_json,
    parse_request,
)

if TYPE_CHECKING:
    from jev.attachments import Reader
    from jev.calibration.file import Calibration
    from jev.engine import Engine
    from jev.material import Material
    from jev.plan import Plan
    from jev.settings import Settings

T = TypeVar("T")

GROUP_ROWS = 32
"""Rows that `batch` gives to the engine together, if not more are asked at once."""


class LocalJev(Batches):
    """Decisions in this process, without a server. Threads may share one; calls take turns.

    Attachments are read in worker processes, which start with the first one. `close` ends them.

    Args:
        model: path of a checkpoint; None for the embedded model.
        device: torch device, such as "cpu" or "cuda".
        dtype: precision: a floating-point type of torch by name, or "int8" or "int4", which keep the
            weights packed in memory.
        ocr: whether the text in pictures is read; "auto" does so if the model cannot see them and OCR
            is installed.
        speech_model: folder or name of a faster-whisper model that hears recordings.
        speech_url: transcription service to ask instead.
        limits: limits on attachments by name, such as {"max_pdf_pages": 100}.
        engine: a loaded engine to use instead; then model, device and dtype are not looked at.
        settings: how attachments are read; then ocr, speech_model, speech_url and limits are not
            looked at. Without them the environment (JEV_SPEECH_LANGUAGE, ...) says the rest.
        calibrations: files of `jev calibrate` by the names that `decide(calibration=...)` takes; a given
            engine gets them too.
        adapters: adapter folders by the names behind the plus sign of `decide(model="jev-latest+NAME")`; not
            for a given engine, which has its own.

    Raises:
        MissingExtraError: when torch or tokenizers is not installed.
        ValueError: when the checkpoint, a calibration or an adapter cannot be loaded; one sentence says why.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        device: str = "cpu",
        dtype: str = "float32",
        ocr: Literal["auto", "on", "off"] = "auto",
        speech_model: str | Path | None = None,
        speech_url: str | None = None,
        limits: Mapping[str, float] | None = None,
        engine: Engine | None = None,
        settings: Settings | None = None,
        calibrations: Mapping[str, str | Path] | None = None,
        adapters: Mapping[str, str | Path] | None = None,
    ) -> None:
        loaded = _calibrations(calibrations) if calibrations else {}
        self._engine = engine or _load(model, device, dtype, adapters or {})
        if loaded:
            self._engine.calibrations.update(loaded)
        self._settings = settings
        self._reading: dict[str, Any] = {
            "ocr": ocr,
            "speech_model": None if speech_model is None else str(speech_model),
            "speech_url": speech_url,
            "limits": None if limits is None else dict(limits),
        }
        self._reader: Reader | None = None
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"LocalJev({self._engine.name!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the processes that read attachments; the engine's memory goes with its last reference."""
        with self._lock:
            reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    @overload
    def decide(
        self, state: State, questions: type[T], **options: Unpack[DecideOptions]
    ) -> TypedDecision[T]: ...
    @overload
    def decide(self, state: State, questions: Questions, **options: Unpack[DecideOptions]) -> Decision: ...
    def decide(
        self, state: State, questions: Questions | type[Any], **options: Unpack[DecideOptions]
    ) -> Decision:
        """Ask questions about a state, as `Jev.decide` does.

        Raises:
            TypeError: for questions that cannot be asked, or attachments that are no files.
            OSError: for an attachment that cannot be read.
            APIError: what a server would refuse too, as one of its subclasses.
            ValueError: for arguments or environment by which attachments cannot be read.
        """
        asked = _Asked.of(state, questions, options)
        return asked.decision(self._engine.decide(asked.request, *self._material(asked.request)))

    def models(self) -> list[ModelInfo]:
        """Return the models that this engine answers to."""
        return self._engine.models()

    def _decide_rows(self, job: Job, items: Iterator[Item]) -> Iterator[RowResult[Any]]:
        while group := list(islice(items, max(job.concurrency, GROUP_ROWS))):
            begun: list[tuple[Item, _Asked, Plan]] = []
            for item in group:
                if item.error is not None:
                    yield item.done(item.error)
                    continue
                try:
                    asked = _Asked.of(item.state, item.questions or job.questions, job.options_of(item))
                    plan = self._engine.prepare(asked.request, *self._material(asked.request))
                except (JevError, OSError, ValueError) as error:
                    yield item.done(error)
                else:
                    begun.append((item, asked, plan))
            answers = self._engine.decide_many([plan for _, _, plan in begun])
            for (item, asked, _), answer in zip(begun, answers, strict=True):
                try:
                    outcome: Decision | Exception = asked.decision(answer)
                except (JevError, OSError, ValueError, ArithmeticError) as error:  # of this row alone
                    outcome = error
                yield item.done(outcome)

    def _material(self, request: SystemOneRequest) -> list[Material]:
        """What the attachments say, if there are any."""
        if not request.assets and not any(getattr(request, name) for name in ATTACHMENT_FIELDS):
            return []
        with extra_named("LocalJev"):
            from jev.attachments import NoFiles, sources_of  # noqa: PLC0415 - it needs the extra

            reader = self._started()
        return [reader.read_sync(sources_of(request, {}, NoFiles(), reader.pool.limits))]

    def _started(self) -> Reader:
        from jev.attachments import reader_of  # noqa: PLC0415 - it needs the extra
        from jev.settings import Settings  # noqa: PLC0415

        with self._lock:
            if self._reader is None:
                settings = self._settings or Settings.load(**self._reading)
                self._reader = reader_of(settings, has_vision=self._engine.has_vision)
            return self._reader


@dataclass(frozen=True)
class _Asked:
    """One decision that is under way: its questions as given and as sent, and what a server would ignore."""

    questions: Questions | type[Any]
    wire: dict[str, Any]
    request: SystemOneRequest
    warnings: list[Warning]

    @classmethod
    def of(cls, state: State, questions: Questions | type[Any], options: DecideOptions) -> _Asked:
        """Check the arguments; errors as in `LocalJev.decide`."""
        # Through JSON and back, so that the engine sees exactly what a server would.
        body = parse_json(encode(Draft.of(state, questions, options).complete()))
        try:
            request, warnings = parse_request(body)
        except BadRequestError as error:
            raise InvalidRequestError.of(error.issues) from None
        return cls(questions, body["questions"], request, warnings)

    def decision(self, outcome: SystemOneResponse | Exception) -> Decision:
        """The decision, typed if a class was asked; whatever the engine raised is raised."""
        if isinstance(outcome, Exception):
            raise outcome
        warnings = [*self.warnings, *(outcome.x_warnings or ())]
        decision = decision_of(outcome.model_copy(update={"x_warnings": warnings or None}), self.wire)
        return typed_of(self.questions, decision) if isinstance(self.questions, type) else decision


def _calibrations(paths: Mapping[str, str | Path]) -> dict[str, Calibration]:
    with extra_named("LocalJev"):
        from jev.calibration.file import load_calibrations  # noqa: PLC0415 - for those who have some

        return load_calibrations(paths)


def _load(model: str | Path | None, device: str, dtype: str, adapters: Mapping[str, str | Path]) -> Engine:
    with extra_named("LocalJev"):
        from jev.adapters import load_adapters  # noqa: PLC0415 - as the engine
        from jev.engine import Engine  # noqa: PLC0415 - only here, so that the SDK needs no torch

        return Engine.load(model, device=device, dtype=dtype, adapters=load_adapters(adapters, model))
