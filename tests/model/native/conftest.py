"""The kernels of every instruction set, and the number of threads put back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from jev.model import native

PATHS = ("avx512", "avxvnni", "avx2", "neon", "generic")


@pytest.fixture(params=PATHS)
def path(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each instruction set that this machine has."""
    try:
        native.use(request.param)
    except ValueError:
        pytest.skip("not on this machine")
    yield request.param
    native.use(None)


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """A test may change it."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
