"""The folder of uploads: which names are its own, and how its files are opened, locked and removed."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from jev.errors import ServerError

logger = logging.getLogger(__name__)

T = TypeVar("T")

INDEX = "index.sqlite"
BLOB = re.compile(r"file-[0-9a-f]{32}", re.ASCII)
"""A stored file; its name is its id."""
PART = re.compile(r"(part-[0-9a-f]{32})(?:\.lock|-[0-9]{1,4})", re.ASCII)
"""A file that is arriving, or the lock of its upload."""

_OPEN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def create(path: Path) -> int:
    """Make a file that was not there, for its owner alone, and return its descriptor."""
    return os.open(path, _OPEN | os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)


@contextmanager
def storage() -> Iterator[None]:
    """Turn what the disk and the index raise into a 503."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or (
            getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
        )
        logger.error("the disk fails: %s", error)
        message = "There is no space left on the server's disk" if full else "The server's disk fails"
        raise ServerError(message, status=503, error_type="storage_unavailable") from error


def stored(work: Callable[[], T]) -> T:
    """Do work on the disk; errors as in `storage`."""
    with storage():
        return work()


def own_folder(directory: Path) -> Path:
    """Make the folder, or take one that is empty or was made before."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = directory.resolve(strict=True)
    if not (folder / INDEX).exists():
        for entry in folder.iterdir():
            # A slip such as files_dir = "/home/me" must not change that folder's mode.
            ours = entry.name.startswith(INDEX) or BLOB.fullmatch(entry.name) or PART.fullmatch(entry.name)
            if not ours and entry.name != "lost+found":
                raise OSError(errno.ENOTEMPTY, "it has other files in it")
    with suppress(PermissionError):  # a volume that belongs to somebody else: the files in it do not
        folder.chmod(0o700)
    return folder


def read_regular(path: Path, size: int) -> bytes:
    """Read a file of `size` bytes; KeyError if it is gone, a link, not a regular file or of another size."""
    try:
        descriptor = os.open(path, os.O_RDONLY | _OPEN)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP, errno.ENXIO):
            raise KeyError(path.name) from None
        raise
    status = os.fstat(descriptor)
    # Before it is read: what somebody else has put there may be of any size.
    if not stat.S_ISREG(status.st_mode) or status.st_size != size:
        os.close(descriptor)
        raise KeyError(path.name)
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(size)
    if len(data) != size:
        raise KeyError(path.name)
    return data


def unlink(path: Path) -> None:
    """Remove a file if it is there; a failure is only logged."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        logger.warning("an upload cannot be removed: %s", error)


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock on a file."""
    try:
        descriptor = os.open(path, os.O_RDWR | _OPEN)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
