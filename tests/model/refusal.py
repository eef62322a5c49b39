"""Breaking a checkpoint folder, and catching the sentence that says what is wrong with it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jev.model.checkpoint import load_checkpoint
from jev.model.errors import CheckpointError


def change_json(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def refusal(folder: Path) -> str:
    """Load, and return the one sentence that says why not."""
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(folder)
    message = str(caught.value)
    assert message
    assert "\n" not in message
    assert not re.search(r"[.!?] [A-Z]", message), "more than one sentence"
    return message
