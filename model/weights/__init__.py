"""Checkpoint formats: how tensors on disk become parameters."""

from collections.abc import Callable
from typing import TypeAlias

Progress: TypeAlias = Callable[[int, int], None]
"""Called while a checkpoint is loaded, with the bytes read so far and all of them."""
