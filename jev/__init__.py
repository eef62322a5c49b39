"""Self-hosted typed decisions: post a state and typed questions, get label probabilities.

>>> from jev import Jev, Noul
>>> jev = Jev("http://127.0.0.1:8000")
>>> jev.decide("My card was charged twice!", {"angry": Noul("Is the customer angry?")})

Importing this package loads neither torch nor a web framework.
"""

from typing import TYPE_CHECKING, Any

from jev._batch_jobs import batch_line
from jev._batch_rows import RowResult
from jev.client import AsyncJev, Jev
from jev.errors import (
    APIError,
    AuthenticationError,
    ConnectionError,
    InvalidRequestError,
    JevError,
    MissingExtraError,
    ModelUnavailableError,
    NotFoundError,
    OverloadedError,
    PermissionDeniedError,
    RateLimitError,
    ResponseError,
    ServerError,
    TimeoutError,
    TooLargeError,
    UnsupportedMediaTypeError,
)
from jev.results import Decision, TypedDecision
from jev.retry import RetryPolicy
from jev.schemas import (
    Choice,
    ChoiceAnswer,
    ModelInfo,
    Noul,
    NoulAnswer,
    Row,
    Score,
    ScoreAnswer,
    UploadedFile,
    Usage,
)

if TYPE_CHECKING:
    from jev.local import LocalJev

__all__ = [
    "APIError",
    "AsyncJev",
    "AuthenticationError",
    "Choice",
    "ChoiceAnswer",
    "ConnectionError",
    "Decision",
    "InvalidRequestError",
    "Jev",
    "JevError",
    "LocalJev",
    "MissingExtraError",
    "ModelInfo",
    "ModelUnavailableError",
    "NotFoundError",
    "Noul",
    "NoulAnswer",
    "OverloadedError",
    "PermissionDeniedError",
    "RateLimitError",
    "ResponseError",
    "RetryPolicy",
    "Row",
    "RowResult",
    "Score",
    "ScoreAnswer",
    "ServerError",
    "TimeoutError",
    "TooLargeError",
    "TypedDecision",
    "UnsupportedMediaTypeError",
    "UploadedFile",
    "Usage",
    "batch_line",
]


def __getattr__(name: str) -> Any:
    if name == "LocalJev":
        from jev.local import LocalJev  # noqa: PLC0415 - loaded when it is used

        return LocalJev
    raise AttributeError(f"module 'jev' has no attribute {name!r}")
