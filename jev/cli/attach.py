"""Attachments on the command line: files from disk, and what was noted while they were read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from jev._attachments import LoadedFile, load
from jev.cli.console import one_line
from jev.cli.errors import UsageError
from jev.results import Decision
from jev.schemas import ATTACHMENT_FIELDS, SystemOneRequest
from jev.settings import Settings, evidence_limits


def load_attachments(paths: Sequence[str]) -> list[LoadedFile]:
    """Read the files of `--attach`.

    Raises:
        UsageError: naming one that cannot be read.
    """
    return [_load(path, number) for number, path in enumerate(paths, 1)]


def check_attachments(request: SystemOneRequest, settings: Settings) -> None:
    """Check the sizes of all attachments, and the assets, before a model is loaded, which takes longer.

    Raises:
        InvalidRequestError: naming the attachment and what is wrong with it.
        UsageError: for settings by which attachments cannot be read.
    """
    if not request.assets and not any(getattr(request, field) for field in ATTACHMENT_FIELDS):
        return
    from jev.attachments import NoFiles, options_of, sources_of  # noqa: PLC0415 - it loads torch

    try:
        options_of(settings, has_vision=False)
    except ValueError as error:
        raise UsageError(str(error)) from None
    sources_of(request, {}, NoFiles(), evidence_limits(settings.limits))


def coverage_lines(decision: Decision) -> Iterator[str]:
    """What the diagnostics note about each attachment, a line for each note."""
    for entry in _list((decision.diagnostics or {}).get("evidence")):
        if not isinstance(entry, Mapping):
            continue
        one = cast("Mapping[str, Any]", entry)
        about = f"{one.get('name', 'attachment')} ({one.get('kind', 'unknown')})"
        for note in _list(one.get("notes")) or ["read"]:
            yield one_line(f"{about}: {note}")


def _load(path: str, number: int) -> LoadedFile:
    try:
        return load(Path(path), number=number)
    except OSError as error:
        raise UsageError(f"--attach {path}: cannot be read ({error.strerror or error})") from None


def _list(value: object) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []
