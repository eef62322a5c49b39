"""What the tests of backends share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from jev.engine import Engine

# pytest's importlib mode puts no test folder on the path; `backend_cases` lies here.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def small(tiny: Path) -> Engine:
    """The tiny random checkpoint in fp32."""
    return Engine.load(tiny)
