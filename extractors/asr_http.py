"""Speech to text by a companion service that answers OpenAI's transcription requests."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from jev.extractors.errors import ServiceUnavailable
from jev.extractors.limits import Limits
from jev.extractors.options import AudioOptions

if TYPE_CHECKING:
    import httpx


def transcribe_remote(
    data: bytes,
    format_: str,
    options: AudioOptions,
    limits: Limits,
    *,
    transport: httpx.BaseTransport | None = None,
) -> str:
    """Post a file to the service and return the text it answers with.

    Nothing that the service sends is repeated in an error: it may hold the speech, or a key.

    Args:
        data: the file as it was given.
        format_: its format, such as "mp3"; becomes the extension of the name sent along.
        options: with `url`.
        limits: for `transcribe_seconds`, over which it is given up, and `max_transcript_bytes`.
        transport: for tests.

    Raises:
        ServiceUnavailable: if it cannot be reached, is too slow, refuses, redirects, or answers
            anything but a JSON object with a string `text`.
    """
    import httpx  # noqa: PLC0415 - only when there is speech

    deadline = time.monotonic() + limits.transcribe_seconds
    form = {"response_format": "json"}
    form |= {"model": options.url_model} if options.url_model else {}
    form |= {"language": options.language} if options.language else {}
    # Compressed answers would be larger than the bytes that are counted.
    headers = {"accept": "application/json", "accept-encoding": "identity"}
    headers |= {"authorization": f"Bearer {options.api_key}"} if options.api_key else {}
    files = {"file": (f"audio.{format_}", data, "application/octet-stream")}
    # Neither proxies nor a .netrc of the host may see or replace the key.
    client = httpx.Client(
        transport=transport, timeout=limits.transcribe_seconds, follow_redirects=False, trust_env=False
    )
    try:
        with (
            client,
            client.stream("POST", options.url or "", data=form, files=files, headers=headers) as answer,
        ):
            if not answer.is_success:
                raise ServiceUnavailable(
                    f"The transcription service answered with status {answer.status_code}"
                )
            return _text(_body(answer, deadline, limits))
    except httpx.TimeoutException:
        raise _too_slow(limits) from None
    except (httpx.HTTPError, httpx.InvalidURL, OSError):
        raise ServiceUnavailable("The transcription service cannot be reached") from None


def _body(answer: httpx.Response, deadline: float, limits: Limits) -> bytes:
    body = bytearray()
    for chunk in answer.iter_raw():
        body += chunk
        if len(body) > limits.max_transcript_bytes:
            most = limits.max_transcript_bytes
            raise ServiceUnavailable(f"The transcription service answered with more than {most:,} bytes")
        # The timeout of the client counts from chunk to chunk.
        if time.monotonic() > deadline:
            raise _too_slow(limits)
    return bytes(body)


def _text(body: bytes) -> str:
    try:
        answer = json.loads(body)
        text = answer["text"]
        # Half of a surrogate pair is a string in JSON, but no text.
        text.encode()
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise ServiceUnavailable("The transcription service did not answer with a transcript") from None
    return text


def _too_slow(limits: Limits) -> ServiceUnavailable:
    return ServiceUnavailable(
        f"The transcription service took longer than {limits.transcribe_seconds:g} seconds"
    )
