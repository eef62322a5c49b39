"""Whether a media file is all there, by the sizes that its container states."""

from __future__ import annotations

from jev.extractors.errors import Unreadable

_MAX_BOXES = 200_000
"""Recordings cut into pieces have two boxes for each frame at most."""
_SEGMENT = b"\x18\x53\x80\x67"
_RIFF_UNKNOWN = 0x7FFFF000
"""Sizes from here on, and 0, are what recorders write that cannot go back to the start of their output."""


def is_cut_short(data: bytes, format_: str) -> bool:
    """Whether an MP4, MOV, M4A, AVI, WAV, MKV or WebM file says that it is longer than `data`.

    Decoders read what is there of such a file, so they do not tell. Formats that state no size, and
    files whose size was not known when they were begun, count as whole.

    Raises:
        Unreadable: for a file of so many boxes that nothing else can be in it.
    """
    if format_ in ("mp4", "mov", "m4a"):
        return _boxes_end(data) > len(data)
    if format_ in ("avi", "wav"):
        size = int.from_bytes(data[4:8], "little")
        return 0 < size < _RIFF_UNKNOWN and size + 8 > len(data)
    if format_ in ("mkv", "webm"):
        return _segment_end(data) > len(data)
    return False


def _boxes_end(data: bytes) -> int:
    """End of the last box of an ISO media file."""
    at = count = 0
    while at + 8 <= len(data):
        count += 1
        if count > _MAX_BOXES:
            raise Unreadable(f"It has more than {_MAX_BOXES:,} boxes")
        size = int.from_bytes(data[at : at + 4], "big")
        if size == 1:
            size = int.from_bytes(data[at + 8 : at + 16], "big")
        # 0 is a box up to the end of the file; anything else below 8 is no box, but padding.
        if size < 8:
            break
        at += size
    return at


def _segment_end(data: bytes) -> int:
    """End of the segment of a Matroska file, which follows its EBML header; 0 if not known."""
    start, size = _vint(data, 4)
    if size is None or data[start + size : start + size + 4] != _SEGMENT:
        return 0
    start, size = _vint(data, start + size + 4)
    return 0 if size is None else start + size


def _vint(data: bytes, at: int) -> tuple[int, int | None]:
    """Read a Matroska size at `at`; return where it ends and its value, None for "not known"."""
    if at >= len(data) or data[at] == 0:
        return at, None
    length = 9 - data[at].bit_length()
    bits = 7 * length
    value = int.from_bytes(data[at : at + length], "big") & ((1 << bits) - 1)
    return at + length, None if value == (1 << bits) - 1 else value
