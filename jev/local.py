"""The same call in process: `LocalJev` runs an engine instead of asking a server."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload

from jev._body import DEFAULT_MODEL, DecideOptions, Questions, State, build_body, encode
from jev.errors import InvalidRequestError, MissingExtraError
from jev.results import Decision, TypedDecision, decision_of, typed_of
from jev.schemas import BadRequestError, ModelInfo, parse_json, parse_request

if TYPE_CHECKING:
    from jev.engine import Engine

T = TypeVar("T")


class LocalJev:
    """Decisions in this process, without a server. Threads may share one; calls take turns.

    Args:
        model: path of a checkpoint; None for the embedded model.
        device: torch device, such as "cpu" or "cuda".
        dtype: torch dtype of the weights, by name.
        engine: a loaded engine to use instead; then the other arguments are not looked at.

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
        engine: Engine | None = None,
    ) -> None:
        self._engine = engine or _load(model, device, dtype)

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
        """Do nothing: the engine's memory goes with its last reference."""

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
            TypeError: for questions that cannot be asked.
            APIError: what a server would refuse too, as one of its subclasses.
        """
        # Through JSON and back, so that the engine sees exactly what a server would.
        body = parse_json(encode(build_body(state, questions, options, model=DEFAULT_MODEL)))
        try:
            request, warnings = parse_request(body)
        except BadRequestError as error:
            raise InvalidRequestError.of(error.issues) from None
        response = self._engine.decide(request).model_copy(update={"x_warnings": warnings or None})
        decision = decision_of(response, body["questions"])
        return typed_of(questions, decision) if isinstance(questions, type) else decision

    def models(self) -> list[ModelInfo]:
        """Return the models that this engine answers to."""
        return self._engine.models()


def _load(model: str | Path | None, device: str, dtype: str) -> Engine:
    try:
        from jev.engine import Engine  # noqa: PLC0415 - only here, so that the SDK needs no torch

        return Engine.load(model, device=device, dtype=dtype)
    except ModuleNotFoundError as error:
        if (error.name or "jev").split(".")[0] == "jev":
            raise
        raise MissingExtraError(
            f"LocalJev needs {error.name}: pip install 'jev-server[server]'", name=error.name
        ) from error
