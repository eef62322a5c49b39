"""The same call in process: `LocalJev` runs an engine instead of asking a server."""

from __future__ import annotations

import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Unpack, overload

from jev._body import DecideOptions, Questions, State, encode
from jev._draft import Draft
from jev.errors import InvalidRequestError, MissingExtraError
from jev.results import Decision, TypedDecision, decision_of, typed_of
from jev.schemas import (
    ATTACHMENT_FIELDS,
    BadRequestError,
    ModelInfo,
    SystemOneRequest,
    parse_json,
    parse_request,
)

if TYPE_CHECKING:
    from jev.attachments import Reader
    from jev.engine import Engine
    from jev.material import Material
    from jev.settings import Settings

T = TypeVar("T")


class LocalJev:
    """Decisions in this process, without a server. Threads may share one; calls take turns.

    Attachments are read in worker processes, which start with the first one. `close` ends them.

    Args:
        model: path of a checkpoint; None for the embedded model.
        device: torch device, such as "cpu" or "cuda".
        dtype: torch dtype of the weights, by name.
        ocr: whether the text in pictures is read; "auto" does so if the model cannot see them and OCR
            is installed.
        speech_model: folder or name of a faster-whisper model that hears recordings.
        speech_url: transcription service to ask instead.
        limits: limits on attachments by name, such as {"max_pdf_pages": 100}.
        engine: a loaded engine to use instead; then model, device and dtype are not looked at.
        settings: how attachments are read; then ocr, speech_model, speech_url and limits are not
            looked at. Without them the environment (JEV_SPEECH_LANGUAGE, ...) says the rest.

    Raises:
        MissingExtraError: when torch or tokenizers is not installed.
        ValueError: when the checkpoint cannot be loaded; one sentence says why.
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
    ) -> None:
        self._engine = engine or _load(model, device, dtype)
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
        # Through JSON and back, so that the engine sees exactly what a server would.
        body = parse_json(encode(Draft.of(state, questions, options).complete()))
        try:
            request, warnings = parse_request(body)
        except BadRequestError as error:
            raise InvalidRequestError.of(error.issues) from None
        response = self._engine.decide(request, *self._material(request))
        response = response.model_copy(update={"x_warnings": warnings or None})
        decision = decision_of(response, body["questions"])
        return typed_of(questions, decision) if isinstance(questions, type) else decision

    def models(self) -> list[ModelInfo]:
        """Return the models that this engine answers to."""
        return self._engine.models()

    def _material(self, request: SystemOneRequest) -> list[Material]:
        """What the attachments say, if there are any."""
        if not request.assets and not any(getattr(request, name) for name in ATTACHMENT_FIELDS):
            return []
        with _extra_named():
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


def _load(model: str | Path | None, device: str, dtype: str) -> Engine:
    with _extra_named():
        from jev.engine import Engine  # noqa: PLC0415 - only here, so that the SDK needs no torch

        return Engine.load(model, device=device, dtype=dtype)


@contextmanager
def _extra_named() -> Generator[None]:
    """Say what to install when a package that others do without is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "jev").split(".")[0] == "jev":
            raise
        raise MissingExtraError(
            f"LocalJev needs {error.name}: pip install 'jev-server[server]'", name=error.name
        ) from error
