"""Video: a few frames at known times; the container is scanned first, so that no header is believed."""

from __future__ import annotations

import os
import tempfile
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from jev.extractors.container import is_cut_short
from jev.extractors.detect import sniff
from jev.extractors.errors import LimitExceeded, Unreadable, UnsupportedType
from jev.extractors.evidence import Evidence, Picture, digest
from jev.extractors.limits import Limits, check_slots

if TYPE_CHECKING:
    import numpy as np
    from cv2 import VideoCapture

_THREADS = 4
_SILENT = 0
_PACKETS = -1
"""The value of CAP_PROP_FORMAT that gives coded packets instead of pictures."""


class Frame(NamedTuple):
    """A frame as it came out of the decoder: its time in seconds, and BGR pixels [height, width, 3]."""

    seconds: float
    pixels: np.ndarray


def read_video(data: bytes, name: str, limits: Limits, slots: int) -> Evidence:
    """Read frames of an MP4, MOV, AVI, MKV or WebM clip, about one a second, thinned evenly to fit.

    Args:
        data: the file.
        name: its name, for the evidence.
        limits: the limits.
        slots: pictures that the request may still have.

    Raises:
        LimitExceeded: for `max_pixels`, `max_video_frames` or `max_video_seconds`, each before any frame
            is decoded, and for `max_images` if there is no slot left.
        Unreadable: if it is damaged or cut short, or has no picture.
        UnsupportedType: if it is no video.
    """
    content = sniff(data, name)
    if content.kind != "video":
        raise UnsupportedType(f"Its content is of kind {content.kind}, which is not a video")
    check_slots(limits, 1, slots)
    if is_cut_short(data, content.format):
        raise Unreadable("It is an incomplete video: its end is missing")
    with _captures(data, content.format) as (packets, capture):
        times = _scan(packets, limits)
        wanted = sample(times, min(limits.max_frames_per_video, slots))
        frames = [_frame_at(capture, seconds, times) for seconds in wanted]
    pictures = tuple(_picture(frame, limits) for frame in frames)
    note = f"{len(pictures)} of {len(times)} frames, approximate times, no soundtrack or motion"
    return Evidence(name, "video", "", pictures, (note,), digest(data), sampled=True)


def sample(times: Sequence[float], limit: int) -> list[float]:
    """Choose the frames to show: the one on show at each full second, thinned to `limit` evenly.

    With a constant frame rate these are the frames 0, step, 2 * step, ... for step = max(1, round(rate)).
    Of n candidates more than `limit`, those at round(i * (n - 1) / (limit - 1)) are kept, so the first
    and the last are among them; a limit of 1 keeps the middle one.

    Args:
        times: of all frames, in seconds, ascending; at least one.
        limit: most frames to choose; at least 1.
    """
    period, tolerance = _period(times), _tolerance(times)
    # Below one frame a second every frame is a candidate, if it stays for a second or not.
    apart = max(1, round(1 / period)) * period if 0 < period <= 1 else 1.0
    ticks = range(int((times[-1] - times[0] + tolerance) / apart) + 1)
    shown = {bisect_right(times, times[0] + tick * apart + tolerance) - 1 for tick in ticks}
    candidates = [times[index] for index in sorted(shown)]
    count = len(candidates)
    if count <= limit:
        return candidates
    if limit == 1:
        return [candidates[count // 2]]
    return [candidates[round(i * (count - 1) / (limit - 1))] for i in range(limit)]


def _period(times: Sequence[float]) -> float:
    """Mean time from frame to frame in seconds; 0 if there is only one."""
    return (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else 0.0


def _tolerance(times: Sequence[float]) -> float:
    """How far apart two times in seconds may be that mean the same frame: containers round them."""
    return min(_period(times) / 2, 0.005)


def _scan(packets: VideoCapture, limits: Limits) -> list[float]:
    """Read the times of all frames in seconds, ascending, from the packets, without decoding them."""
    import cv2  # noqa: PLC0415 - only when there is a video

    pixels = int(packets.get(cv2.CAP_PROP_FRAME_WIDTH)) * int(packets.get(cv2.CAP_PROP_FRAME_HEIGHT))
    if pixels <= 0:
        raise Unreadable("It is a damaged video, or one in a coding that cannot be read")
    if pixels > limits.max_pixels:
        raise LimitExceeded("max_pixels", limits.max_pixels, pixels, unit="pixels a frame")
    times: list[float] = []
    while packets.grab():
        times.append(_now(packets))
        if len(times) > limits.max_video_frames:
            most, found = limits.max_video_frames, len(times)
            raise LimitExceeded("max_video_frames", most, found, unit="frames", at_least=True)
        if times[-1] > limits.max_video_seconds:
            most, last = limits.max_video_seconds, times[-1]
            raise LimitExceeded("max_video_seconds", most, last, unit="seconds", at_least=True)
        # A little before the start is usual; more is no time, but the mark for "not known".
        if times[-1] < -limits.max_video_seconds:
            raise Unreadable("It is a video whose frames have no times")
    if not times:
        raise Unreadable("It is a video without a frame")
    times.sort()
    return times


def _frame_at(capture: VideoCapture, seconds: float, times: Sequence[float]) -> Frame:
    """Decode the frame that starts at `seconds`, or the first one after it that can be shown.

    Seeking counts frames at the mean rate, so it lands elsewhere where the rate varies: behind the
    frame, and then the way to it is short; or past it, and then a seek further back is tried.
    """
    import cv2  # noqa: PLC0415

    rate = capture.get(cv2.CAP_PROP_FPS)
    tolerance = _tolerance(times)
    lead = 0.0
    while True:
        start = max(0.0, seconds - lead) if rate > 0 else 0.0
        capture.set(cv2.CAP_PROP_POS_FRAMES, round(start * rate))
        grabbed = capture.grab()
        past = not grabbed or _now(capture) > seconds + tolerance
        if not past or start == 0:
            break
        lead = max(1.0, 2 * lead)
    while grabbed and _now(capture) < seconds - tolerance:
        grabbed = capture.grab()
    shown, pixels = capture.retrieve() if grabbed else (False, None)
    if not shown or pixels is None:
        raise Unreadable("It is a damaged or incomplete video")
    return Frame(_now(capture), pixels)


def _now(capture: VideoCapture) -> float:
    """Time of the frame grabbed last in seconds, as the container has it."""
    import cv2  # noqa: PLC0415

    return capture.get(cv2.CAP_PROP_POS_MSEC) / 1000


@contextmanager
def _captures(data: bytes, format_: str) -> Iterator[tuple[VideoCapture, VideoCapture]]:
    """Open a clip twice: for its packets, and for its pictures."""
    import cv2  # noqa: PLC0415

    with ExitStack() as stack:
        with tempfile.NamedTemporaryFile(suffix=f".{format_}") as file:
            file.write(data)
            file.flush()
            packets = stack.enter_context(_opened(file.name, cv2.CAP_PROP_FORMAT, _PACKETS))
            pictures = stack.enter_context(_opened(file.name))
        # The file is gone from the folder already, so a process that is killed leaves nothing behind.
        yield packets, pictures


@contextmanager
def _opened(path: str, *parameters: int) -> Iterator[VideoCapture]:
    # FFmpeg writes what it finds wrong with a file on stderr, parts of the file with it. OpenCV looks at
    # this once, when it first opens a video: in a worker process that is here.
    os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")
    import cv2  # noqa: PLC0415

    # Where these are depends on the version of OpenCV.
    log: Any = getattr(cv2.utils, "logging", cv2)
    level = log.getLogLevel()
    log.setLogLevel(_SILENT)
    capture = cv2.VideoCapture(path, cv2.CAP_FFMPEG, [cv2.CAP_PROP_N_THREADS, _THREADS, *parameters])
    try:
        if not capture.isOpened():
            raise Unreadable("It is a damaged video, or one in a coding that cannot be read")
        yield capture
    except cv2.error as error:
        raise Unreadable("It is a damaged or incomplete video") from error
    finally:
        capture.release()
        log.setLogLevel(level)


def _picture(frame: Frame, limits: Limits) -> Picture:
    import cv2  # noqa: PLC0415

    height, width = frame.pixels.shape[:2]
    # The size may change from one frame to the next.
    if width * height > limits.max_pixels:
        raise LimitExceeded("max_pixels", limits.max_pixels, width * height, unit="pixels a frame")
    coded, png = cv2.imencode(".png", frame.pixels, [cv2.IMWRITE_PNG_COMPRESSION, 1])
    if not coded:
        raise Unreadable("It is a video with frames that cannot be shown")
    time = f"{max(0.0, frame.seconds):.3f}".rstrip("0").rstrip(".")
    return Picture.of(png.tobytes(), width, height, f"at {time} seconds")
