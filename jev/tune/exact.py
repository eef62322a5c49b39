"""Sums in the same order in every run, so that equal runs give equal bits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch


@contextmanager
def exact(device: torch.device) -> Iterator[None]:
    """Sums in the same order in every run: on CPUs some gradients are added by threads as they come."""
    if device.type != "cpu":
        yield
        return
    before, options = torch.are_deterministic_algorithms_enabled(), cast(Any, torch.utils.deterministic)
    filled = options.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    options.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
        options.fill_uninitialized_memory = filled
