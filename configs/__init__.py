"""Settings of models that can be deployed, one TOML file each; they install with the package."""

from __future__ import annotations

from pathlib import Path


def path(name: str) -> Path | None:
    """The file of a shipped configuration, by its name without `.toml`; None = there is no such."""
    return Path(__file__).parent / f"{name}.toml" if name in names() else None


def shown(file: str | Path) -> str:
    """What to call a settings file on a command line: a shipped one by its name."""
    name = Path(file).stem
    return name if path(name) == Path(file) else str(file)


def names() -> list[str]:
    """The names of all that ship."""
    return sorted(file.stem for file in Path(__file__).parent.glob("*.toml"))
