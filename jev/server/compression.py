"""Decompression that stops at a size limit."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Protocol

import zstandard

from jev.errors import TooLargeError
from jev.schemas import BadRequestError

ZSTD_WINDOW = 8 * 2**20
"""Largest zstd window: what RFC 9659 allows in `Content-Encoding: zstd`."""

STEP = 256
"""Input bytes fed at once, so that no step yields much: the smallest zstd block is 4 bytes and gives
at most 128 KiB, deflate gives at most 1032 bytes for one."""

MAX_FRAMES = 1024
"""Most gzip members or zstd frames of one body."""


class _Frame(Protocol):
    """One gzip member or zstd frame being read."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, /) -> bytes: ...


def decompress(data: bytes, encoding: str, limit: int) -> bytes:
    """Undo one content encoding: "identity", "gzip" or "zstd".

    Raises:
        TooLargeError: the result is over `limit` bytes.
        BadRequestError: the data is corrupt, cut short, or followed by something else.
    """
    if encoding == "identity":
        return data
    try:
        return _expand(data, limit, encoding, _FRAMES[encoding])
    except (zlib.error, zstandard.ZstdError):
        raise _broken(encoding, "is corrupt") from None


def _expand(data: bytes, limit: int, encoding: str, new_frame: Callable[[], _Frame]) -> bytes:
    out = bytearray()
    at = 0
    for _ in range(MAX_FRAMES):
        frame = new_frame()
        while not frame.eof:
            step = data[at : at + STEP]
            if not step:
                raise _broken(encoding, "is cut short")
            out += frame.decompress(step)
            if len(out) > limit:
                raise TooLargeError(f"The decompressed body is over the limit of {limit} bytes")
            at += len(step) - len(frame.unused_data)
        if at == len(data):
            return bytes(out)
    raise _broken(encoding, f"has more than {MAX_FRAMES} frames")


def _gzip_member() -> _Frame:
    return zlib.decompressobj(wbits=31)


def _zstd_frame() -> _Frame:
    return zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW).decompressobj()


_FRAMES: dict[str, Callable[[], _Frame]] = {"gzip": _gzip_member, "zstd": _zstd_frame}


def _broken(encoding: str, what: str) -> BadRequestError:
    return BadRequestError.at(msg=f"The {encoding} body {what}", type="encoding_invalid")
