"""Errors of the model room."""

from __future__ import annotations


class CheckpointError(ValueError):
    """A checkpoint folder that cannot be loaded; the message names the file, key or tensor."""
