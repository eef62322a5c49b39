"""Digests of files, and what a hub's ETag says of one."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path

CHUNK = 2**22

_SHA256 = re.compile(r"[0-9a-f]{64}")
_SHA1 = re.compile(r"[0-9a-f]{40}")


def stated_sha256(etag: str | None) -> str | None:
    """The SHA-256 in hex that an ETag states (files in large-file storage), if it does."""
    return etag if etag and _SHA256.fullmatch(etag) else None


def sha256_of(path: Path, advance: Callable[[int], None] = lambda count: None) -> str:
    """SHA-256 in hex of a file; `advance` gets the bytes of each piece.

    Raises:
        OSError: it cannot be read.
    """
    return _hash(path, hashlib.sha256(), advance)


def agrees(path: Path, etag: str | None, sha256: str) -> bool:
    """Whether a file, whose SHA-256 is known, is the one that an ETag names.

    A hub's ETag is the SHA-256 of a file in large-file storage, and of others git's SHA-1 of "blob SIZE", a
    zero byte and the content. Of any other ETag nothing can be said, which counts as agreeing.
    """
    if stated := stated_sha256(etag):
        return stated == sha256
    if etag and _SHA1.fullmatch(etag):
        head = f"blob {path.stat().st_size}\0".encode()
        # As git names blobs, not for safety.
        return _hash(path, hashlib.sha1(head, usedforsecurity=False), lambda count: None) == etag
    return True


def _hash(path: Path, digest, advance: Callable[[int], None]) -> str:
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            advance(len(chunk))
    return digest.hexdigest()
