"""A tiny checkpoint whose rows are whole blocks of 256, and the same as GGUF files."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from jev.model import native
from jev.model.checkpoint import load_checkpoint
from jev.model.diffusion_gemma import DiffusionGemma
from jev.model.gguf.write import Stored, metadata_of, rope_freqs, stored_tensor, write_file
from jev.model.tiny import write_tiny_checkpoint


@dataclasses.dataclass
class Source:
    """A checkpoint folder, loaded, and GGUF files of it."""

    folder: Path
    model: DiffusionGemma

    @property
    def spec(self) -> dict[str, Any]:
        """Its `tokenizer.json`."""
        return json.loads((self.folder / "tokenizer.json").read_text())

    @property
    def metadata(self) -> dict[str, Any]:
        """What a file of it says of the model."""
        return metadata_of(self.model.config, self.spec)

    def tensors(self, type: str = "Q8_0") -> list[Stored]:
        """What a file of it holds."""
        named = self.model.text.state_dict().items()
        return [*(stored_tensor(name, value, type) for name, value in named), rope_freqs(self.model.config)]

    def write(
        self,
        path: Path,
        type: str = "Q8_0",
        *,
        metadata: Mapping[str, Any] | None = None,
        tensors: Sequence[Stored] | None = None,
    ) -> Path:
        """Write a file, with keys changed (None takes one away) or other tensors."""
        keys = {k: v for k, v in (self.metadata | dict(metadata or {})).items() if v is not None}
        write_file(path, keys, self.tensors(type) if tensors is None else tensors)
        return path


def _source(folder: Path, **options: Any) -> Source:
    folder = write_tiny_checkpoint(folder, hidden=256, layers=2, experts=4, **options)
    return Source(folder, load_checkpoint(folder))


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    return _source(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="session")
def smooth_source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    """A checkpoint whose rows pass all experts: rounding alone cannot swap them."""
    return _source(tmp_path_factory.mktemp("smooth"), top_k=4)


@pytest.fixture(scope="session")
def written(source: Source, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`written(type)`: a file with all matrices in a type; do not write to it."""
    folder = tmp_path_factory.mktemp("written")

    @cache
    def write(type: str) -> Path:
        return source.write(folder / f"{type}.gguf", type)

    return write


@pytest.fixture(params=["kernels", "torch"])
def route(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to compute with blocks, where there are both."""
    if request.param == "torch":
        monkeypatch.setattr(native, "available", lambda: False)
    elif not native.available():
        pytest.skip("the package was built without its kernels")
    return str(request.param)
