"""What the tests of tuning share: rows of a small rule, and how a run is started."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from jev.engine import Engine

# pytest's importlib mode puts no test folder on the path; `tune_cases` lies here.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny checkpoint that trains in a moment; do not write to it."""
    from jev.model.tiny import write_tiny_checkpoint

    folder = tmp_path_factory.mktemp("checkpoints") / "small"
    return write_tiny_checkpoint(folder, layers=3, hidden=32, experts=4, top_k=2, vision=False)


@pytest.fixture
def fresh(small: Path) -> Engine:
    """An engine of its own, whose model may be trained."""
    return Engine.load(small)
