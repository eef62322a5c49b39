"""The built-in set: a few dozen typed decisions of several domains, some about attached files."""

from __future__ import annotations

from pathlib import Path

from jev.quality.data import LabelledRow, read_rows

NAME = "built-in smoke set"


def smoke_path() -> Path:
    """The set's file; its attachments lie in `files` beside it."""
    return Path(__file__).with_name("smoke_set") / "rows.jsonl"


def read_smoke(limit: int | None = None) -> list[LabelledRow]:
    """Read the set, or its first rows."""
    return read_rows(smoke_path(), limit=limit)
