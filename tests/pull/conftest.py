"""A hub on loopback, and an empty cache, for huggingface_hub in this process and in others."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # importlib mode does not

from fake_hub import Behaviour, Hub


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hub's cache of this test."""
    from huggingface_hub import constants

    home = tmp_path / "home"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 1)
    monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", 1)
    for name in [name for name in os.environ if name.startswith(("HF_", "JEV_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HF_HOME", str(home))
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
    return home / "hub"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with three files."""
    from huggingface_hub import constants
    from huggingface_hub.utils import close_session

    files = {
        "config.json": b'{"model_type": "diffusion_gemma"}',
        "model.safetensors": bytes(range(256)) * 400,
        "empty.txt": b"",
    }
    with Hub(files) as hub:
        for small in ("config.json", "empty.txt"):
            hub.behaviour[small] = Behaviour(large=False)
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub
        close_session()
