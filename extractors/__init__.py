"""Bytes to evidence: documents, mails, images, video and speech."""

from jev.extractors.errors import (
    ExtractError,
    LimitExceeded,
    MissingReader,
    ServiceUnavailable,
    Unreadable,
    UnsupportedType,
)
from jev.extractors.evidence import Evidence, Kind, Picture
from jev.extractors.limits import Budget, Limits

__all__ = [
    "Budget",
    "Evidence",
    "ExtractError",
    "Kind",
    "LimitExceeded",
    "Limits",
    "MissingReader",
    "Picture",
    "ServiceUnavailable",
    "Unreadable",
    "UnsupportedType",
]
