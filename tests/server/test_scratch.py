"""Temporary folders end with their server; those of servers that were killed end with the next one."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from jev.server.scratch import TemporaryFolder

KILLED = """
import os, signal
from jev.server.scratch import TemporaryFolder
folder = TemporaryFolder("jev-test-")
(folder.path / "upload").write_bytes(b"private")
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's temporary folder, for this test."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_it_is_private_and_ends(temporary: Path) -> None:
    folder = TemporaryFolder("jev-test-")
    assert (
        stat.S_IMODE(folder.path.stat().st_mode) == stat.S_IMODE(folder.path.parent.stat().st_mode) == 0o700
    )
    (folder.path / "upload").write_bytes(b"private")
    folder.cleanup()
    assert list(temporary.iterdir()) == []
    folder.cleanup()


def test_only_what_a_killed_server_left_is_removed(temporary: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(temporary)}
    subprocess.run([sys.executable, "-c", KILLED], env=environment, timeout=60)
    (left,) = temporary.iterdir()
    shutil.copytree(left, temporary / "other-folder")
    (temporary / "jev-test-link").symlink_to(temporary / "other-folder")
    (temporary / "jev-test-without-lock").mkdir()
    alive = TemporaryFolder("jev-test-")
    again = TemporaryFolder("jev-test-")
    kept = {"other-folder", "jev-test-link", "jev-test-without-lock"}
    assert {one.name for one in temporary.iterdir()} == kept | {
        alive.path.parent.name,
        again.path.parent.name,
    }
    alive.cleanup()
    again.cleanup()
