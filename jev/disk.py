"""Files that survive a loss of power."""

from __future__ import annotations

import os
from pathlib import Path


def sync_folder(folder: Path) -> None:
    """Make new and renamed files of a folder survive, by name too.

    Raises:
        OSError: the folder is gone, or the disk fails.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
