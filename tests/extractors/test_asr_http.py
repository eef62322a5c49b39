"""A companion service gets the recording and no more, and of its answer only a transcript gets through."""

import contextlib
import gzip
import io
import json
import random
import threading
import time
import wave
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from jev.extractors import Evidence, LimitExceeded, Limits, ServiceUnavailable, Unreadable
from jev.extractors import audio as audio_module
from jev.extractors.audio import read_audio
from jev.extractors.options import AudioOptions, Options

NOTE = "transcript only; no non-speech sounds or speaker identity"


@pytest.fixture(autouse=True)
def _no_transcripts_kept() -> None:
    audio_module._cache.clear()


def wav(seconds: float = 0.2) -> bytes:
    """A recording of that length."""
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes(bytes(2 * round(16_000 * seconds)))
    return out.getvalue()


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
    return read_audio(data or wav(), "x", limits or Limits(), AudioOptions(url=service.url, **options))


def form_of(headers: dict[str, str], body: bytes) -> dict[str, tuple[bytes, bytes]]:
    """Name -> (head, content) of the parts of a multipart body."""
    boundary = b"--" + headers["content-type"].split("boundary=")[1].encode()
    parts = {}
    for part in body.split(boundary)[1:-1]:
        head, _, content = part.partition(b"\r\n\r\n")
        parts[head.split(b'name="')[1].split(b'"')[0].decode()] = (head, content.removesuffix(b"\r\n"))
    return parts


def test_the_service_is_asked_as_openai_is(service: Service) -> None:
    data = wav()
    evidence = ask(service, data, url_model="whisper-1", api_key="sk-secret", language="de")
    assert (evidence.text, evidence.notes) == ("Hello there.", (NOTE,))
    ((path, headers, body),) = service.requests
    assert path == "/v1/audio/transcriptions"
    assert headers["authorization"] == "Bearer sk-secret"
    form = form_of(headers, body)
    head, content = form.pop("file")
    assert content == data
    assert b'filename="audio.wav"' in head
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
        time.sleep(3)
        yield b"{}"

    for body in (dripping, hanging):
        service.body = body
        start = time.monotonic()
        with pytest.raises(ServiceUnavailable, match=r"longer than 0.3 seconds"):
            ask(service, limits=Limits(transcribe_seconds=0.3))
        assert time.monotonic() - start < 2


def test_a_service_that_is_not_there_is_said() -> None:
    options = AudioOptions(url="http://127.0.0.1:1/v1/audio/transcriptions", api_key="sk-secret")
    with pytest.raises(ServiceUnavailable, match="cannot be reached") as caught:
        read_audio(wav(), "x", Limits(), options)
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
        ask(service, wav(0.3))


def test_garbage_is_not_sent_to_the_service(service: Service) -> None:
    with pytest.raises(Unreadable):
        ask(service, b"fLaC\0" + random.Random(0).randbytes(10_000))
    assert service.requests == []


# Transcripts that are kept


def test_the_last_sixteen_transcripts_are_kept(service: Service) -> None:
    files = [wav(0.1 + 0.01 * index) for index in range(17)]
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
