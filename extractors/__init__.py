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
from jev.extractors.options import AudioOptions, Options
from jev.extractors.worker import Pool

__all__ = [
    "AudioOptions",
    "Budget",
    "Evidence",
    "ExtractError",
    "Kind",
    "LimitExceeded",
    "Limits",
    "MissingReader",
    "Options",
    "Picture",
    "Pool",
    "ServiceUnavailable",
    "Unreadable",
    "UnsupportedType",
]
