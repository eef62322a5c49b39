"""What a path names: a checkpoint folder or a GGUF file, and the config and tokenizer in it."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jev.model.config import ModelConfig, read_json
from jev.model.errors import CheckpointError

if TYPE_CHECKING:
    from jev.model.tokenizer import Tokenizer


def gguf_path(path: str | Path) -> Path | None:
    """The GGUF file that a path names: itself, or the only one in a folder that has no `config.json`.

    None stands for a checkpoint folder.

    Raises:
        CheckpointError: the path is neither or cannot be read, or the folder has several GGUF files.
    """
    path = Path(path)
    try:
        return _found(path)
    except OSError as error:  # a folder that may not be entered, a name that is too long for any file
        raise CheckpointError(f"{str(path)[:500]} cannot be read: {error.strerror}") from None


def _found(path: Path) -> Path | None:
    if path.is_file() and path.suffix == ".gguf":
        return path
    if not path.exists():
        raise CheckpointError(f"{path} does not exist")
    if not path.is_dir():
        raise CheckpointError(f"{path} is not a checkpoint folder or .gguf file")
    if (path / "config.json").exists():
        return None
    found = sorted(path.glob("*.gguf"))
    if len(found) > 1:
        raise CheckpointError(
            f"{path} has {len(found)} GGUF files, name one: {', '.join(f.name for f in found)[:500]}"
        )
    return found[0] if found else None


def read_card(path: str | Path) -> dict[str, Any]:
    """What `jev.json` says of a checkpoint, with its `name` in any case, and when it was `modified`.

    Raises:
        CheckpointError: the file cannot be read.
    """
    file = gguf_path(path)
    folder = Path(path)
    card = read_json(folder / "jev.json") if file is None and (folder / "jev.json").exists() else {}
    if not isinstance(card, dict):
        raise CheckpointError(f"{folder / 'jev.json'} is not an object")
    name = folder.resolve().name if file is None else file.stem
    changed = (file or folder / "config.json").stat().st_mtime
    modified = datetime.date.fromtimestamp(changed).isoformat()
    return {**card, "name": card.get("name") or name, "modified": modified}


def read_config(path: str | Path) -> ModelConfig:
    """The config of a checkpoint folder or a GGUF file.

    Raises:
        CheckpointError: one sentence naming the file and the key that is missing or wrong.
    """
    file = gguf_path(path)
    if file is None:
        return ModelConfig.from_folder(Path(path))
    from jev.model.gguf import GGUFFile  # noqa: PLC0415 - torch, which a folder's config does without
    from jev.model.gguf.config import config_of  # noqa: PLC0415

    return config_of(GGUFFile(file))


def read_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer of a checkpoint folder or a GGUF file.

    Raises:
        CheckpointError: one sentence naming what is missing or wrong.
    """
    from jev.model.tokenizer import Tokenizer  # noqa: PLC0415 - `tokenizers`, which a config does without

    file = gguf_path(path)
    if file is None:
        return Tokenizer.from_folder(Path(path))
    from jev.model.gguf import GGUFFile  # noqa: PLC0415 - as above
    from jev.model.gguf.tokenizer import tokenizer_of  # noqa: PLC0415

    return tokenizer_of(GGUFFile(file))
