"""What a deployment chooses about extraction: whether to read pictures by OCR, and how to hear speech."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import urlsplit

COMPUTE_TYPES = ("int8", "int8_float32", "float32")
"""Arithmetic that a speech model can run in on a CPU."""


@dataclass(frozen=True)
class AudioOptions:
    """Who transcribes speech: a Whisper model in this process, or a companion service.

    Exactly one of `model` and `url` is given. Time and size limits are in `Limits`.

    Attributes:
        model: folder of a faster-whisper (CTranslate2) model, or a name such as "small" that may be
            downloaded at first use.
        compute_type: arithmetic of `model`; one of `COMPUTE_TYPES`.
        language: code such as "en" or "de"; None = the model tells.
        threads: CPU threads of `model`.
        url: address of a service that answers OpenAI's transcription requests, such as
            "http://127.0.0.1:9000/v1/audio/transcriptions".
        url_model: model to ask of the service; None = its default.
        api_key: bearer key for the service.

    Raises:
        ValueError: one sentence, if the options cannot be used.
    """

    model: str | None = None
    compute_type: str = "int8"
    language: str | None = None
    threads: int = 2
    url: str | None = None
    url_model: str | None = None
    api_key: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if bool(self.model) == bool(self.url):
            raise ValueError("Speech needs either a model or the URL of a transcription service")
        if self.compute_type not in COMPUTE_TYPES:
            raise ValueError(
                f"The compute type of the speech model must be one of {', '.join(COMPUTE_TYPES)}"
            )
        if self.threads < 1:
            raise ValueError("The speech model needs at least one thread")
        if self.url:
            _check_url(self.url)
        # A line break in it would end the header it is sent in.
        if self.api_key is not None and not (self.api_key and all("!" <= c <= "~" for c in self.api_key)):
            raise ValueError("The key of the transcription service must be printable ASCII without spaces")


@dataclass(frozen=True)
class Options:
    """How to read attachments.

    Attributes:
        ocr: read the text in pictures.
        audio: who transcribes speech; None = speech is refused.
    """

    ocr: bool = False
    audio: AudioOptions | None = None


def _check_url(url: str) -> None:
    """Refuse an address that is not plain absolute HTTP, without repeating it: it may hold a password."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    absolute = parts.scheme in ("http", "https") and bool(parts.hostname) and port != 0
    if not absolute or any(c.isspace() or not c.isprintable() for c in url):
        raise ValueError("The URL of the transcription service must be an absolute http or https URL")
    if parts.username is not None or parts.password is not None:
        raise ValueError("The URL of the transcription service must not hold a user name or password")
    if parts.fragment:
        raise ValueError("The URL of the transcription service must not have a fragment")
