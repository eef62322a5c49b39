"""A clip gives the right frames with the times of its container, and a bad one is refused early by name."""

import contextlib
import io
import json
import random
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from jev.extractors import Evidence, ExtractError, LimitExceeded, Limits, Unreadable, UnsupportedType
from jev.extractors.video import read_video, sample

BITS = 13
BAR = 16
WIDTH, HEIGHT = BITS * BAR, 32
CODECS = {"mp4": "libx264", "mov": "libx264", "mkv": "libx264", "webm": "libvpx", "avi": "mpeg4"}
MUXERS = {"mkv": "matroska"}


def numbered(number: int, width: int = WIDTH, height: int = HEIGHT) -> np.ndarray:
    """A frame [height, width, 3] with bar i white where bit i of the number is set."""
    pixels = np.zeros((height, width, 3), dtype=np.uint8)
    for bit in range(BITS):
        if number >> bit & 1:
            pixels[:HEIGHT, bit * BAR : (bit + 1) * BAR] = 255
    return pixels


def number_in(png: bytes) -> int:
    """The number in a decoded frame."""
    pixels = np.asarray(Image.open(io.BytesIO(png)).convert("L"))
    return sum(int(pixels[HEIGHT // 2, bit * BAR + BAR // 2] > 127) << bit for bit in range(BITS))


def clip(
    format_: str,
    times: Sequence[float] | None = None,
    *,
    frames: int = 100,
    rate: Fraction | int = 10,
    codec: str | None = None,
    size: tuple[int, int] = (WIDTH, HEIGHT),
    options: dict[str, str] | None = None,
    sound: bool = False,
) -> bytes:
    """Encode a clip: at a constant rate, or with frames at the given times in seconds."""
    out = io.BytesIO()
    codec = codec or CODECS[format_]
    options = options or {"libx264": {"preset": "ultrafast"}, "libvpx": {"deadline": "realtime"}}.get(
        codec, {}
    )
    with av.open(out, "w", format=MUXERS.get(format_, format_)) as container:
        stream = container.add_stream(codec, rate=rate, options=options)
        stream.width, stream.height = size
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        base = Fraction(1, 1000) if times else 1 / Fraction(rate)
        if times:
            stream.codec_context.time_base = stream.time_base = base
        speech = (
            container.add_stream("libopus" if format_ == "webm" else "aac", rate=48_000) if sound else None
        )
        for number in range(len(times) if times else frames):
            frame = av.VideoFrame.from_ndarray(numbered(number, *size), format="rgb24")
            frame.pts = round(times[number] * 1000) if times else number
            frame.time_base = base
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
        if speech:
            samples = np.zeros((1, 48_000), dtype=np.float32)
            tone = av.AudioFrame.from_ndarray(samples, format="fltp", layout="mono")
            tone.sample_rate = 48_000
            container.mux(speech.encode(tone))
            container.mux(speech.encode())
    return out.getvalue()


def read(data: bytes, slots: int = 8, **limits: float) -> Evidence:
    return read_video(data, "clip", Limits(**limits), slots)


def seen(evidence: Evidence) -> list[tuple[str | None, int]]:
    """Place and frame number of every picture."""
    return [(picture.place, number_in(picture.png)) for picture in evidence.pictures]


def even(count: int, rate: float) -> list[float]:
    return [index / rate for index in range(count)]


# Which frames


def test_candidates_are_a_second_apart_and_thinned_with_both_ends() -> None:
    assert sample(even(100, 10), 4) == [0.0, 3.0, 6.0, 9.0]
    assert sample(even(40, 10), 4) == [0.0, 1.0, 2.0, 3.0]
    assert sample(even(41, 10), 8) == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert sample(even(10, 0.5), 4) == [0.0, 6.0, 12.0, 18.0]
    assert sample([7.0], 4) == [7.0]


def test_a_limit_of_one_keeps_the_middle_candidate() -> None:
    assert sample(even(110, 10), 1) == [5.0]
    assert sample(even(5, 25), 1) == [0.0]


@given(
    count=st.integers(1, 3000),
    rate=st.sampled_from([0.5, 1, 5, 10, 15, 23.976, 24, 25, 29.97, 30, 50, 59.94, 60, 120]),
    limit=st.integers(1, 8),
    decimals=st.sampled_from([3, 6]),
)
def test_at_a_constant_rate_the_choice_is_that_of_frame_numbers(
    count: int, rate: float, limit: int, decimals: int
) -> None:
    # Containers round: Matroska to milliseconds.
    times = [round(index / rate, decimals) for index in range(count)]
    candidates = list(range(0, count, max(1, round(rate))))
    last = len(candidates) - 1
    if len(candidates) <= limit:
        expected = candidates
    elif limit == 1:
        expected = [candidates[len(candidates) // 2]]
    else:
        expected = [candidates[round(i * last / (limit - 1))] for i in range(limit)]
    assert sample(times, limit) == [times[index] for index in expected]


@given(
    gaps=st.lists(st.floats(0.01, 5.0), min_size=1, max_size=300),
    start=st.floats(0, 2),
    limit=st.integers(1, 8),
)
def test_at_any_rate_the_choice_is_of_frames_that_exist(gaps: list[float], start: float, limit: int) -> None:
    times = [start]
    for gap in gaps:
        times.append(times[-1] + gap)
    chosen = sample(times, limit)
    assert 1 <= len(chosen) <= limit
    assert set(chosen) <= set(times)
    assert all(a < b for a, b in pairwise(chosen))


def test_a_frame_that_stays_is_a_candidate_once() -> None:
    # Ten frames in the first second, then one that stays for nine.
    times = [*even(10, 10), 10.0]
    assert sample(times, 8) == [0.0, 0.9, 10.0]


@pytest.mark.parametrize("format_", CODECS)
def test_every_container_gives_frames_with_their_times(format_: str) -> None:
    evidence = read(clip(format_))
    assert (evidence.kind, evidence.text, evidence.sampled) == ("video", "", True)
    assert evidence.notes == ("4 of 100 frames, approximate times, no soundtrack or motion",)
    assert seen(evidence) == [
        ("at 0 seconds", 0),
        ("at 3 seconds", 30),
        ("at 6 seconds", 60),
        ("at 9 seconds", 90),
    ]
    assert {(picture.width, picture.height) for picture in evidence.pictures} == {(WIDTH, HEIGHT)}


@pytest.mark.parametrize(
    ("format_", "codec", "options"),
    [
        ("mp4", "libx264", {"preset": "medium", "bf": "3", "g": "50"}),
        ("mp4", "libx265", {"preset": "ultrafast", "x265-params": "log-level=none"}),
        ("mp4", "mpeg4", {}),
        ("mkv", "libx264", {"preset": "medium", "bf": "3", "g": "1000"}),
        ("webm", "libvpx-vp9", {"deadline": "realtime", "cpu-used": "8", "lag-in-frames": "20"}),
        ("webm", "libvpx", {"auto-alt-ref": "1", "lag-in-frames": "16"}),
        ("avi", "mjpeg", {}),
        ("avi", "libx264", {"preset": "ultrafast"}),
        ("mov", "mjpeg", {}),
    ],
)
def test_every_coding_gives_the_frame_of_its_time(format_: str, codec: str, options: dict[str, str]) -> None:
    evidence = read(clip(format_, codec=codec, options=options, frames=60))
    for place, number in seen(evidence):
        assert place == f"at {number / 10:g} seconds"
    numbers = [number for _, number in seen(evidence)]
    assert len(numbers) == 4
    # A coding with hidden or packed frames may be one off; what is shown and what is said still agree.
    assert np.abs(np.subtract(numbers, [0, 20, 30, 50])).max() <= 1


def test_avi_with_reordered_frames_is_at_most_one_frame_late() -> None:
    # AVI stores no times of showing, so the delay of reordering stays in.
    evidence = read(clip("avi", codec="mpeg4", options={"bf": "2"}, frames=60))
    assert len(evidence.pictures) == 4
    for place, number in seen(evidence):
        assert place in (f"at {number / 10:g} seconds", f"at {(number + 1) / 10:g} seconds")


def test_slots_and_the_limit_bound_the_number_of_frames() -> None:
    data = clip("mp4")
    assert [number for _, number in seen(read(data, slots=2))] == [0, 90]
    assert [number for _, number in seen(read(data, slots=1))] == [50]
    assert [number for _, number in seen(read(data, max_frames_per_video=3))] == [0, 40, 90]
    assert len(read(data, slots=20, max_frames_per_video=20).pictures) == 10
    with pytest.raises(LimitExceeded, match="max_images"):
        read(data, slots=0)


def test_a_short_clip_and_a_single_frame_give_what_there_is() -> None:
    assert seen(read(clip("mp4", frames=1))) == [("at 0 seconds", 0)]
    evidence = read(clip("webm", frames=15))
    assert seen(evidence) == [("at 0 seconds", 0), ("at 1 seconds", 10)]
    assert evidence.notes[0].startswith("2 of 15 frames")


def test_a_fractional_rate_has_fractional_times() -> None:
    evidence = read(clip("mp4", frames=120, rate=Fraction(30_000, 1001)))
    assert seen(evidence) == [
        ("at 0 seconds", 0),
        ("at 1.001 seconds", 30),
        ("at 2.002 seconds", 60),
        ("at 3.003 seconds", 90),
    ]


FAST_THEN_SLOW = [*even(90, 30), *(3 + 2 * t for t in even(20, 1))]
SLOW_THEN_FAST = [*(2 * t for t in even(20, 1)), *(40 + t for t in even(90, 30))]
STAYS = [0.0, 0.5, 58.0, 59.0]
JITTER = [0.0, *(t + random.Random(t).uniform(-0.012, 0.012) for t in even(400, 25)[1:])]


@pytest.mark.parametrize("times", [FAST_THEN_SLOW, SLOW_THEN_FAST, STAYS, JITTER])
@pytest.mark.parametrize("format_", ["mp4", "mov", "mkv", "webm"])
@pytest.mark.parametrize("key", ["1000", "12"])
def test_a_variable_rate_keeps_frames_and_times_together(format_: str, times: list[float], key: str) -> None:
    codec = {"libx264": {"preset": "ultrafast", "g": key}, "libvpx": {"deadline": "realtime", "g": key}}
    evidence = read(clip(format_, times, options=codec[CODECS[format_]]))
    assert evidence.notes[0].startswith(f"4 of {len(times)} frames")
    found = [float(str(place).split()[1]) for place, _ in seen(evidence)]
    assert found == pytest.approx(sample(times, 4), abs=0.0015)
    assert [times[number] for _, number in seen(evidence)] == pytest.approx(found, abs=0.0015)


def test_a_clip_that_starts_late_counts_from_its_first_frame() -> None:
    evidence = read(clip("mkv", [5 + t for t in even(40, 10)]))
    assert [number for _, number in seen(evidence)] == [0, 10, 20, 30]


def test_a_soundtrack_does_not_matter() -> None:
    for format_ in ("mp4", "mkv", "webm"):
        assert [number for _, number in seen(read(clip(format_, sound=True)))] == [0, 30, 60, 90]


def test_a_turned_clip_is_shown_upright() -> None:
    data = bytearray(clip("mp4"))
    matrix = data.index(b"tkhd") + 4 + 40
    # A quarter turn clockwise, as phones write it.
    quarter = (0, 1, 0, -1, 0, 0, HEIGHT, 0, 1)
    scale = (16, 16, 30) * 3
    data[matrix : matrix + 36] = struct.pack(
        ">9i", *(value << shift for value, shift in zip(quarter, scale, strict=True))
    )
    picture = read(bytes(data)).pictures[1]
    assert (picture.width, picture.height) == (HEIGHT, WIDTH)
    upright = Image.open(io.BytesIO(picture.png)).transpose(Image.Transpose.ROTATE_90)
    out = io.BytesIO()
    upright.save(out, "PNG")
    assert number_in(out.getvalue()) == 30


def test_ten_minutes_are_read_in_seconds() -> None:
    # At 160 frames between two whole pictures, as cameras and encoders set it.
    data = clip("mp4", frames=6000, options={"preset": "ultrafast", "g": "160"})
    start = time.process_time()
    evidence = read(data)
    assert time.process_time() - start < 5
    assert [number for _, number in seen(evidence)] == [0, 2000, 3990, 5990]
    assert evidence.pictures[-1].place == "at 599 seconds"


# Limits


def test_length_and_size_are_limited() -> None:
    data = clip("mp4")
    assert read(data, max_video_seconds=9.9, max_video_frames=100, max_pixels=WIDTH * HEIGHT).pictures
    with pytest.raises(LimitExceeded, match=r"at least 9.9 seconds.*limit of 9.8 \(max_video_seconds\)"):
        read(data, max_video_seconds=9.8)
    with pytest.raises(LimitExceeded, match=r"at least 100 frames.*max_video_frames"):
        read(data, max_video_frames=99)
    with pytest.raises(LimitExceeded, match=r"6,656 pixels a frame.*max_pixels"):
        read(data, max_pixels=WIDTH * HEIGHT - 1)


def test_the_number_of_frames_is_counted_and_not_believed() -> None:
    data = bytearray(clip("avi"))
    at = data.index(b"avih") + 8 + 16
    assert struct.unpack_from("<I", data, at) == (100,)
    struct.pack_into("<I", data, at, 2_000_000_000)
    assert read(bytes(data)).notes[0].startswith("4 of 100 frames")


def test_huge_frames_are_refused_before_any_is_decoded() -> None:
    data = bytearray(clip("avi", codec="mjpeg"))
    for name, offset in ((b"avih", 8 + 32), (b"strf", 8 + 4)):
        struct.pack_into("<ii", data, data.index(name) + offset, 60_000, 60_000)
    # The pictures say it too.
    at = 0
    while (at := data.find(b"\xff\xc0\0\x11", at)) >= 0:
        struct.pack_into(">HH", data, at + 5, 60_000, 60_000)
        at += 4
    start = time.process_time()
    with pytest.raises(ExtractError, match=r"max_pixels|cannot be read"):
        read(bytes(data))
    assert time.process_time() - start < 5


# Hostile files


@pytest.mark.parametrize("format_", CODECS)
@pytest.mark.parametrize("share", [0.1, 0.5, 0.95])
def test_a_truncated_clip_is_refused(format_: str, share: float) -> None:
    data = clip(format_)
    with pytest.raises(Unreadable, match=r"incomplete|cannot be read|not a"):
        read(data[: int(len(data) * share)])


READ_ALL = """
import json, sys, time
from pathlib import Path
from jev.extractors import ExtractError, Limits
from jev.extractors.video import read_video

found = {}
for path in map(Path, sys.argv[2:]):
    start = time.process_time()
    try:
        read_video(path.read_bytes(), path.name, Limits(), 8)
    except ExtractError as error:
        found[path.suffix[1:]] = [str(error), time.process_time() - start]
Path(sys.argv[1]).write_text(json.dumps(found))
"""


@pytest.fixture(scope="module")
def garbage(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, tuple[str, float]], str]:
    """What is said of garbage behind a good start and the seconds it took, by format; and what was printed.

    In a process of its own, as videos are read by a server: whoever else uses OpenCV in this one decides
    once how much FFmpeg says, and uses processor time too.
    """
    folder = tmp_path_factory.mktemp("garbage")
    paths = [folder / f"clip.{format_}" for format_ in CODECS]
    for path in paths:
        path.write_bytes(clip(path.suffix[1:])[:48] + random.Random(0).randbytes(4 << 20))
    result = folder / "result.json"
    done = subprocess.run(
        [sys.executable, "-c", READ_ALL, str(result), *map(str, paths)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(result.read_text()), done.stdout + done.stderr


@pytest.mark.parametrize("format_", CODECS)
def test_garbage_behind_a_good_start_is_refused_in_time_and_in_silence(
    format_: str, garbage: tuple[dict[str, tuple[str, float]], str]
) -> None:
    found, printed = garbage
    message, seconds = found[format_]
    assert message.startswith("It is ")
    assert seconds < 5
    assert printed == ""


@pytest.mark.parametrize("format_", CODECS)
def test_flipped_bytes_never_end_in_anything_but_frames_or_a_refusal(format_: str) -> None:
    data = clip(format_, frames=30)
    dice = random.Random(1)
    for _ in range(40):
        broken = bytearray(data)
        for _ in range(dice.randrange(1, 8)):
            broken[dice.randrange(8, len(broken))] = dice.randrange(256)
        start = time.process_time()
        with contextlib.suppress(ExtractError):
            assert 1 <= len(read(bytes(broken)).pictures) <= 4
        assert time.process_time() - start < 5


def test_what_is_no_video_is_refused() -> None:
    with pytest.raises(UnsupportedType, match="kind text"):
        read_video(b"#EXTM3U\nfile:///etc/passwd\n", "list.txt", Limits(), 8)
    with pytest.raises(Unreadable, match="not an MP4"):
        read_video(b"#EXTM3U\nfile:///etc/passwd\n", "list.mp4", Limits(), 8)
    still = io.BytesIO()
    Image.new("RGB", (8, 8)).save(still, "PNG")
    with pytest.raises(UnsupportedType, match="kind image"):
        read_video(still.getvalue(), "clip.mp4", Limits(), 8)


def test_no_file_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    read(clip("mp4"))
    with pytest.raises(ExtractError):
        read(clip("mp4")[:2000])
    assert list(tmp_path.iterdir()) == []
