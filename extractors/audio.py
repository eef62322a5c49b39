"""Speech: decoded here in any case, then transcribed by a model in this process or a companion service."""

from __future__ import annotations

import io
import logging
import re
import threading
import time
from collections import OrderedDict
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from jev.extractors.asr_http import transcribe_remote
from jev.extractors.container import is_cut_short
from jev.extractors.detect import sniff
from jev.extractors.errors import (
    ExtractError,
    LimitExceeded,
    MissingReader,
    ServiceUnavailable,
    Unreadable,
    UnsupportedType,
)
from jev.extractors.evidence import Evidence, digest
from jev.extractors.limits import Limits
from jev.extractors.options import AudioOptions

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from av.container import InputContainer
    from faster_whisper import WhisperModel

SAMPLE_RATE = 16_000
"""Samples a second that Whisper hears."""


class Recording(NamedTuple):
    """Float32 samples [n] in -1..1, mono, at `SAMPLE_RATE`, and notes on what of the file is not in them."""

    samples: np.ndarray
    notes: tuple[str, ...]


class Transcript(NamedTuple):
    """The words of a recording, and the notes on it."""

    text: str
    notes: tuple[str, ...]


_COVERAGE = "transcript only; no non-speech sounds or speaker identity"
_DEMUXERS = {"m4a": "mp4", "webm": "matroska"}
_STATES_LENGTH = re.compile(rb"(?:Xing|Info)\0\0\0")
"""What encoders write into the first frame of an MP3 file; elsewhere its length is a guess."""
_HEAD = 1 << 20
_OGG_END = 0x04
_log = logging.getLogger(__name__)

_cache: OrderedDict[tuple[str, AudioOptions], Transcript] = OrderedDict()
_cache_lock = threading.Lock()
_model_lock = threading.Lock()


def read_audio(data: bytes, name: str, limits: Limits, options: AudioOptions | None) -> Evidence:
    """Transcribe the speech in an MP3, WAV, OGG, FLAC or M4A file.

    Transcripts are kept by content, the last `max_cached_transcripts` of them; failures are not.

    Raises:
        LimitExceeded: for `max_audio_seconds` or `max_text_chars`.
        Unreadable: if it is damaged or cut short, or no speech is found in it.
        UnsupportedType: if it is no audio.
        MissingReader: if faster-whisper is not installed.
        ServiceUnavailable: if nothing transcribes speech here, or what does fails or is too slow.
    """
    content = sniff(data, name)
    if content.kind != "audio":
        raise UnsupportedType(f"Its content is of kind {content.kind}, which is not audio")
    if options is None:
        raise ServiceUnavailable("Speech cannot be read: no speech model is configured")
    sha256 = digest(data)
    transcript = _cached(sha256, options)
    if transcript is None:
        recording = decode_audio(data, content.format, limits)
        if options.url:
            text = transcribe_remote(data, content.format, options, limits)
        else:
            text = transcribe(recording.samples, options, limits)
        text = "".join(c for c in text if c.isprintable() or c in "\n\t").strip()
        if not text:
            raise Unreadable("No speech found in it")
        transcript = Transcript(text, recording.notes)
        _keep(sha256, options, transcript, limits.max_cached_transcripts)
    if len(transcript.text) > limits.max_text_chars:
        found = len(transcript.text)
        raise LimitExceeded("max_text_chars", limits.max_text_chars, found, unit="characters")
    return Evidence(name, "audio", transcript.text, (), (_COVERAGE, *transcript.notes), sha256)


def decode_audio(data: bytes, format_: str, limits: Limits) -> Recording:
    """Decode a file, leaving out what is damaged in it.

    Raises:
        LimitExceeded: for `max_audio_seconds`; decoding stops there.
        Unreadable: if it is mostly damaged, is cut short by what it says of its length, or has no sound.
        MissingReader: if PyAV is not installed.
    """
    import numpy as np  # noqa: PLC0415 - only when there is speech

    try:
        import av  # noqa: PLC0415
        from av.error import FFmpegError  # noqa: PLC0415
    except ImportError:
        raise _missing() from None
    if is_cut_short(data, format_):
        raise _incomplete()
    most = int(limits.max_audio_seconds * SAMPLE_RATE)
    parts: list[np.ndarray] = []
    count = damaged = packets = 0
    stated = 0.0
    try:
        # The format is given, so that no content is taken for a playlist that names other files.
        demuxer = _DEMUXERS.get(format_, format_)
        with av.open(io.BytesIO(data), mode="r", format=demuxer, metadata_errors="ignore") as container:
            stated = container.duration / av.time_base if container.duration else 0.0
            for part in _decoded(container):
                packets += 1
                damaged += part is None
                if part is None:
                    continue
                parts.append(part)
                count += part.size
                if count > most:
                    break
    except ExtractError:
        raise
    # FFmpeg's errors are OSError or ValueError by their code; a change of channels is a ValueError.
    except (FFmpegError, OSError, ValueError, EOFError) as error:
        raise _broken() from error
    if count > most:
        seconds = count / SAMPLE_RATE
        raise LimitExceeded(
            "max_audio_seconds", limits.max_audio_seconds, seconds, unit="seconds", at_least=True
        )
    if not count or 2 * damaged > packets:
        raise _broken() if damaged else Unreadable("It is a recording without sound")
    notes = _notes(data, format_, damaged=damaged > 0, missing=count / SAMPLE_RATE < 0.99 * stated - 0.1)
    return Recording(np.concatenate(parts).astype(np.float32) / 32768.0, notes)


def _notes(data: bytes, format_: str, *, damaged: bool, missing: bool) -> tuple[str, ...]:
    """Say what of a recording was not decoded; refuse a FLAC file that is shorter than it states."""
    if format_ == "flac" and missing:
        raise _incomplete()
    if damaged:
        return ("damaged parts left out",)
    cut = format_ == "mp3" and missing and _STATES_LENGTH.search(data, 0, _HEAD)
    return ("its end seems to be missing",) if cut or _lacks_last_page(data) else ()


def transcribe(samples: np.ndarray, options: AudioOptions, limits: Limits) -> str:
    """Transcribe samples with the model in this process; '' if there is no speech.

    The same samples give the same text. One transcription runs at a time.

    Args:
        samples: as of `decode_audio`.
        options: with `model`.
        limits: for `transcribe_seconds`, waiting included.

    Raises:
        MissingReader: if faster-whisper is not installed.
        ServiceUnavailable: if the model cannot be loaded, fails or is too slow.
    """
    deadline = time.monotonic() + limits.transcribe_seconds
    if not _model_lock.acquire(timeout=limits.transcribe_seconds):
        raise _too_slow(limits)
    try:
        model = _model(options.model or "", options.compute_type, options.threads)
        try:
            # Without the filter Whisper hears words in silence; with several temperatures it draws lots.
            segments, _ = model.transcribe(
                samples,
                language=options.language,
                temperature=0.0,
                condition_on_previous_text=False,
                vad_filter=True,
            )
            texts: list[str] = []
            for segment in segments:
                texts.append(segment.text.strip())
                if time.monotonic() > deadline:
                    raise _too_slow(limits)
        except (ExtractError, MemoryError):
            raise
        # Two inference libraries fail in their own ways; the samples are sound.
        except Exception as error:
            _log.exception("the speech model failed")
            raise ServiceUnavailable("The speech model failed") from error
        return " ".join(text for text in texts if text)
    finally:
        _model_lock.release()


def _decoded(container: InputContainer) -> Iterator[np.ndarray | None]:
    """Decode the first audio track: int16 samples [n] of each packet, None for a damaged one."""
    import av  # noqa: PLC0415
    import numpy as np  # noqa: PLC0415
    from av.error import InvalidDataError  # noqa: PLC0415

    if not container.streams.audio:
        raise Unreadable("It is a recording without sound")
    stream = container.streams.audio[0]
    resampler = av.AudioResampler(format="s16", layout="mono", rate=SAMPLE_RATE)
    for packet in container.demux(stream):
        try:
            frames = packet.decode()
        except InvalidDataError:
            yield None
            continue
        parts = [np.zeros(0, np.int16)]
        for frame in frames:
            # Times with gaps would be an error; what is between them is silence, and of no matter.
            frame.pts = None
            parts += [part.to_ndarray().reshape(-1) for part in resampler.resample(frame)]
        yield np.concatenate(parts)
    yield np.concatenate(
        [np.zeros(0, np.int16), *(p.to_ndarray().reshape(-1) for p in resampler.resample(None))]
    )


def _lacks_last_page(data: bytes) -> bool:
    """Whether this is an Ogg file whose last page is not marked as the last."""
    at = data.rfind(b"OggS")
    return data.startswith(b"OggS") and at + 5 < len(data) and not data[at + 5] & _OGG_END


@lru_cache(maxsize=1)
def _model(model: str, compute_type: str, threads: int) -> WhisperModel:
    """Load the speech model, once; called under the lock."""
    try:
        from faster_whisper import WhisperModel  # noqa: PLC0415
    except ImportError:
        raise _missing() from None
    try:
        return WhisperModel(model, device="cpu", compute_type=compute_type, cpu_threads=threads)
    except MemoryError:
        raise
    # It may be any of a bad name, no network, a broken file; none is the caller's fault.
    except Exception as error:
        _log.error("the speech model %r cannot be loaded: %s", model, error)
        raise ServiceUnavailable("The speech model cannot be loaded") from error


def _cached(sha256: str, options: AudioOptions) -> Transcript | None:
    with _cache_lock:
        transcript = _cache.get((sha256, options))
        if transcript is not None:
            _cache.move_to_end((sha256, options))
        return transcript


def _keep(sha256: str, options: AudioOptions, transcript: Transcript, most: int) -> None:
    with _cache_lock:
        _cache[sha256, options] = transcript
        while len(_cache) > most:
            _cache.popitem(last=False)


def _broken() -> Unreadable:
    return Unreadable("It is a damaged recording")


def _incomplete() -> Unreadable:
    return Unreadable("It is an incomplete recording: its end is missing")


def _missing() -> MissingReader:
    return MissingReader("Reading speech needs faster-whisper: pip install 'jev-server[server]'")


def _too_slow(limits: Limits) -> ServiceUnavailable:
    return ServiceUnavailable(f"Transcribing took longer than {limits.transcribe_seconds:g} seconds")
