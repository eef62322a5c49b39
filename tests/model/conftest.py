"""Tiny checkpoints, loaded by this package and by transformers, each made once a session."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

from jev.model.checkpoint import load_checkpoint
from jev.model.diffusion_gemma import DiffusionGemma
from jev.model.tiny import write_tiny_checkpoint

# pytest's importlib mode puts no test folder on the path; `reference` and `refusal` lie here.
sys.path.insert(0, str(Path(__file__).parent))

if TYPE_CHECKING:
    from reference import Reference


@dataclass(frozen=True)
class Pair:
    """One checkpoint, loaded twice."""

    folder: Path
    model: DiffusionGemma
    reference: Reference

    def ids(self, count: int, seed: int = 0) -> Tensor:
        """Random token ids [count] over the whole vocabulary, int64."""
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(0, self.model.config.text.vocab_size, (count,), generator=generator)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`tiny(**options)`: the folder of a tiny checkpoint, shared by tests; do not write to it."""

    @cache
    def make(**options: Hashable) -> Path:
        arguments: Any = options
        return write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"), **arguments)

    return make


@pytest.fixture
def folder(tiny: Callable[..., Path], tmp_path: Path) -> Path:
    """A checkpoint that the test may break."""
    return Path(shutil.copytree(tiny(), tmp_path / "checkpoint"))


@pytest.fixture(scope="session")
def pair(tiny: Callable[..., Path]) -> Callable[..., Pair]:
    """`pair(**options)`: a tiny checkpoint as this package and as transformers load it."""

    @cache
    def make(**options: Hashable) -> Pair:
        return load_pair(tiny(**options))

    return make


def load_pair(folder: Path) -> Pair:
    """Load a checkpoint folder on both sides."""
    from reference import Reference

    return Pair(folder, load_checkpoint(folder), Reference(folder))


@pytest.fixture(scope="session")
def pair_of() -> Callable[[Path], Pair]:
    """`pair_of(folder)`: any checkpoint folder as this package and as transformers load it."""
    return load_pair


@pytest.fixture(scope="session")
def settled(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """A checkpoint whose canvases become final after a few of 48 steps."""
    from generating import settle

    folder = write_tiny_checkpoint(tmp_path_factory.mktemp("settled") / "tiny", vision=False)
    return load_pair(settle(folder, post=0.5, final=6, conditioning=0.3))
