"""The checkpoint that ships with the package, so that a fresh install answers without a download."""

from __future__ import annotations

from pathlib import Path

NAME = "jev-mini"


def path() -> Path:
    """The folder of the embedded checkpoint."""
    return Path(__file__).parent / NAME
