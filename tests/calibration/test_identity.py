"""A calibration's model is known by its tensors and its prompts: no change of either goes unnoticed."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

import jev.joint
import jev.wording
from jev.calibration.identity import prompt_digest
from jev.engine import Engine
from jev.model.errors import CheckpointError
from jev.model.tiny import write_tiny_checkpoint
from jev.model.weights.identity import SAMPLE_BYTES, weights_digest


@pytest.fixture
def copy(tiny: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny, tmp_path / "copy"))


def test_a_copy_is_the_same_model(tiny: Path, copy: Path) -> None:
    assert weights_digest(copy) == weights_digest(tiny)


def test_how_tensors_are_spread_over_files_does_not_matter(tmp_path: Path) -> None:
    one, three = (write_tiny_checkpoint(tmp_path / str(n), shards=n) for n in (1, 3))
    assert weights_digest(one) == weights_digest(three)


def test_other_weights_are_another_model(tiny: Path, tmp_path: Path) -> None:
    assert weights_digest(write_tiny_checkpoint(tmp_path / "other", seed=1)) != weights_digest(tiny)


def test_training_of_any_one_tensor_is_seen(copy: Path) -> None:
    """A step of training moves every number of a tensor, also of those larger than the samples."""
    file = copy / "model.safetensors"
    tensors = load_file(file)
    before = weights_digest(copy)
    chosen = [name for name in tensors if tensors[name].numel() * 4 > 8 * SAMPLE_BYTES][:2]
    chosen += [name for name in tensors if tensors[name].numel() < 100][:2]
    assert len(chosen) == 4
    for name in chosen:
        save_file({**tensors, name: tensors[name] * 1.001}, file)
        assert weights_digest(copy) != before, name


def test_the_config_counts(copy: Path) -> None:
    before = weights_digest(copy)
    config = copy / "config.json"
    config.write_text(config.read_text(encoding="utf-8") + " ", encoding="utf-8")
    assert weights_digest(copy) != before


def test_a_damaged_file_is_one_sentence(copy: Path) -> None:
    (copy / "model.safetensors").write_bytes(b"\xff" * 100)
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        weights_digest(copy)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (jev.wording, "SYSTEM"),
        (jev.wording, "EVIDENCE"),
        (jev.joint, "_TASK"),
        (jev.joint, "_LINES"),
        (jev.joint, "_INDEXED"),
        (jev.joint, "_PARTIAL"),
    ],
)
def test_every_piece_of_wording_counts(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, module: object, name: str
) -> None:
    before = prompt_digest(engine.context)
    monkeypatch.setattr(module, name, getattr(module, name) + " Please.")
    assert prompt_digest(engine.context) != before


def test_limits_of_a_deployment_do_not_count(small: Engine) -> None:
    context = dataclasses.replace(small.context, max_context=20, max_request_tokens=20)
    assert prompt_digest(context) == prompt_digest(small.context)


def test_tokenizers_are_told_apart(small: Engine, engine: Engine) -> None:
    assert small.identity.prompt != engine.identity.prompt
    assert small.identity.weights == small.fingerprint != engine.fingerprint
