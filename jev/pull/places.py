"""Where pulled files lie: the hub's cache (HF_HOME), shared with everything else that uses it."""

from __future__ import annotations

from pathlib import Path

from jev.pull.source import Source


def repository(source: Source) -> Path:
    """The cache's folder of a repository."""
    from huggingface_hub import constants  # noqa: PLC0415 - only where something is pulled

    parts = ("models", *source.repo.split("/"))
    return Path(constants.HF_HUB_CACHE) / constants.REPO_ID_SEPARATOR.join(parts)


def snapshot(source: Source) -> Path:
    """The folder of a revision's files; for a branch of the commit that it was when last pulled."""
    folder = repository(source)
    reference = folder / "refs" / source.revision
    try:
        commit = reference.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        commit = ""
    return folder / "snapshots" / (commit or source.revision)


def place(source: Source) -> Path:
    """What the model or the vision tower is loaded from: the folder, or the file if it is only one GGUF."""
    (first, *others) = source.files
    folder = snapshot(source)
    return folder / first if not others and first.endswith(".gguf") else folder


def missing_files(source: Source) -> list[str]:
    """The files that are not here, or not of the size that is pinned; no digest is looked at."""
    folder = snapshot(source)
    return [
        name
        for name, pin in source.files.items()
        if not (folder / name).is_file() or pin.size not in (None, (folder / name).stat().st_size)
    ]


def missing_names(source: Source) -> str | None:
    """What is missing of a repository, in words; None if nothing is."""
    missing = missing_files(source)
    if not missing:
        return None
    more = len(missing) - 1
    others = f" and {more} more file{'s' if more > 1 else ''}" if more else ""
    return f"{missing[0]}{others} of {source.repo}"


def missing_sentence(source: Source) -> str | None:
    """Says what is missing and how to get it; None if nothing is."""
    names = missing_names(source)
    return names and f"not on this machine: {names}; run `jev pull {source.config or 'CONFIG.toml'}`"
