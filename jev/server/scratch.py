"""Temporary folders of a server, which are removed with it, or by the next one if it was killed."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path

from jev.server.file_folder import create, is_locked

_LOCK = "alive.lock"


class TemporaryFolder:
    """A folder for its owner alone; what servers that were killed left under the same prefix is removed.

    Args:
        prefix: of its name, such as "jev-files-".

    Attributes:
        path: an empty folder in it.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, prefix: str) -> None:
        _sweep(prefix)
        folder = Path(tempfile.mkdtemp(prefix=prefix))
        # Locked before it has its name: a folder with the lock and nobody who holds it is abandoned.
        making = folder / f"{_LOCK}.new"
        lock = create(making)
        fcntl.flock(lock, fcntl.LOCK_EX)
        making.rename(folder / _LOCK)
        self.path = folder / "store"
        self.path.mkdir(mode=0o700)
        self._finalize = weakref.finalize(self, _remove, folder, lock)

    def cleanup(self) -> None:
        """Remove it with all that is in it."""
        self._finalize()


def _remove(folder: Path, lock: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)


def _sweep(prefix: str) -> None:
    with suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if not entry.name.startswith(prefix) or not entry.is_dir(follow_symlinks=False):
                continue
            lock = Path(entry, _LOCK)
            # `is_locked` says no of a file that is not there, as in a folder that is being made.
            ours = entry.stat(follow_symlinks=False).st_uid == os.getuid()
            if ours and lock.is_file() and not is_locked(lock):
                shutil.rmtree(entry, ignore_errors=True)
