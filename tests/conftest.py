"""Checkpoints and engines that tests share, and how hypothesis runs here."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

import jev._openmp  # noqa: F401 - before torch

if TYPE_CHECKING:
    from jev.engine import Engine

# Derandomised: the same examples everywhere, so that a run says something about the change under
# test and not about luck. HYPOTHESIS_PROFILE=search looks for new ones.
_COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("jev", derandomize=True, **_COMMON)
settings.register_profile("search", max_examples=500, **_COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "jev"))


@pytest.fixture(scope="session")
def engine() -> Engine:
    """The embedded model, in fp32 on the CPU. Leave its settings as they are."""
    from jev.engine import Engine

    return Engine.load()


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny random checkpoint whose window is 8 tokens; do not write to it."""
    from jev.model.tiny import write_tiny_checkpoint

    return write_tiny_checkpoint(tmp_path_factory.mktemp("checkpoints") / "tiny")


@pytest.fixture(scope="session")
def smooth(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny checkpoint whose rows pass all experts.

    Choosing experts is a jump: where two are rated alike, rounding alone may swap them. Properties
    that are searched over many random rows are held against this model, which has no jumps.
    """
    from jev.model.tiny import write_tiny_checkpoint

    folder = tmp_path_factory.mktemp("checkpoints") / "smooth"
    return write_tiny_checkpoint(folder, layers=4, hidden=32, experts=4, top_k=4, vision=False)
