"""The adapters of a deployment: their names, and reading them for a checkpoint (docs/adapters.md)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from jev.model import embedded

if TYPE_CHECKING:
    from jev.model.lora import Adapter

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


def check_adapter_name(name: str) -> None:
    """Refuse what could not stand behind the plus sign of a model name.

    Raises:
        ValueError: one sentence.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"the adapter name {name[:200]!r} must be 1 to 64 characters of letters, digits, '.', '_' and '-'"
        )


def load_adapters(paths: Mapping[str, str | Path], model: str | Path | None) -> dict[str, Adapter]:
    """Read adapters and check each against the checkpoint that they are for.

    Args:
        paths: folders by the name that requests give.
        model: the checkpoint's folder or GGUF file; None = the embedded model.

    Raises:
        CheckpointError: one sentence that names the file and the key or tensor that is wrong.
        ValueError: for a name that cannot be used.
    """
    for name in paths:
        check_adapter_name(name)
    if not paths:
        return {}
    from jev.model.lora import load_adapter  # noqa: PLC0415 - torch, which who has no adapters may do without
    from jev.model.source import read_config  # noqa: PLC0415
    from jev.model.weights.identity import weights_digest  # noqa: PLC0415

    folder = embedded.path() if model is None else Path(model)
    config, digest = read_config(folder), weights_digest(folder)
    return {name: load_adapter(path, config.text, base_fingerprint=digest) for name, path in paths.items()}
