"""Proves that bytes counted from a config or a header are those that a loaded model holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from jev.model.checkpoint import load_checkpoint
from jev.model.config import ModelConfig
from jev.model.diffusion_gemma import DiffusionGemma
from jev.model.gguf.write import save_gguf
from jev.model.memory import Precision, Sizes, Weights, kv_bytes, workspace_bytes
from jev.model.quant import Bits, PackedExperts, PackedLinear
from jev.model.quant.int4 import tiled
from jev.model.tiny import write_tiny_checkpoint

PUBLISHED = Path(__file__).parent / "data" / "diffusiongemma-26b-a4b" / "config.json"
"""The published 26B-A4B checkpoint's."""


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the config and an index of the published checkpoint, and no weights."""
    folder = tmp_path_factory.mktemp("published")
    (folder / "config.json").write_text(PUBLISHED.read_text())
    index = {"weight_map": {"model.encoder.vision_tower.std_bias": "model-00011-of-00011.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


class TestPublished:
    def test_weights_in_bf16_are_those_of_its_files(self, published: Path) -> None:
        weights = weights_of(published, "bfloat16", "bfloat16")
        assert weights.total == 51_647_562_456
        # The published count leaves out buffers: 60 layer scalars and 2 x 1152 standardisation values.
        assert weights.parameters == 25_823_778_864 + 60 + 2 * 1152
        # A layer's own scalar and its encoder's: the published totals have one of them.
        assert weights.layers[0] == 2 * (814_094_977 + 1)
        assert weights.layers[5] == 2 * (828_513_409 + 1)
        assert weights.vision == 2 * (569_550_384 + 3_244_032)

    @pytest.mark.parametrize(
        ("precision", "arithmetic", "low", "high"),
        [
            ("float32", "float32", 103.2e9, 103.4e9),
            ("float8", "bfloat16", 27.1e9, 27.3e9),
            ("int8", "bfloat16", 27.9e9, 28.1e9),
            ("int4", "bfloat16", 17.2e9, 17.4e9),
        ],
    )
    def test_smaller_precisions(
        self, published: Path, precision: Precision, arithmetic: str, low: float, high: float
    ) -> None:
        assert low < weights_of(published, precision, arithmetic).total < high

    @pytest.mark.parametrize(("item", "factor"), [(2, 1), (4, 2)])
    def test_keys_and_values(self, item: int, factor: int) -> None:
        text = ModelConfig.from_folder(PUBLISHED.parent).text
        # A sliding layer has 8 KiB a token for at most 1023 tokens; the five full ones 20 KiB for each token.
        assert kv_bytes(text, 1, item) == factor * (25 * 8192 + 5 * 4096)
        assert kv_bytes(text, 1023, item) == factor * 1023 * (25 * 8192 + 5 * 4096)
        assert kv_bytes(text, 100_000, item) == factor * (1023 * 25 * 8192 + 100_000 * 5 * 4096)
        assert kv_bytes(text, 1023, 2) - 1023 * 5 * 4096 < 210e6

    def test_the_workspace_grows_with_rows_and_with_keys_up_to_a_bound(self) -> None:
        text = ModelConfig.from_folder(PUBLISHED.parent).text
        assert workspace_bytes(text, 64, 1024, 4) < workspace_bytes(text, 512, 1024, 4) < 0.6e9
        assert workspace_bytes(text, 128, 262_144, 2) < 1e9
        assert workspace_bytes(text, 64, 1024, 4, canvas=256) > 3 * 256 * 262_144 * 4


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small checkpoint with a vision tower, some of whose rows 256 divides."""
    return write_tiny_checkpoint(tmp_path_factory.mktemp("checkpoint"), layers=3, hidden=256)


def weights_of(path: Path, precision: Precision, arithmetic: str, vision: Path | None = None) -> Weights:
    return Sizes.of(path, vision).weights(precision, arithmetic)


def held(model: DiffusionGemma) -> int:
    """Bytes of every parameter and buffer, once each, but for the rotary tables, which are computed."""
    tensors = {id(one): one for one in (*model.parameters(), *model.buffers())}
    return sum(one.nbytes for one in tensors.values())


@pytest.mark.parametrize(
    ("precision", "arithmetic", "dtype", "bits"),
    [
        ("float32", "float32", torch.float32, None),
        ("bfloat16", "bfloat16", torch.bfloat16, None),
        ("int8", "float32", torch.float32, 8),
        ("int4", "bfloat16", torch.bfloat16, 4),
    ],
)
def test_a_folder_takes_what_was_counted(
    checkpoint: Path, precision: Precision, arithmetic: str, dtype: torch.dtype, bits: Bits | None
) -> None:
    model = load_checkpoint(checkpoint, dtype=dtype, bits=bits)
    assert weights_of(checkpoint, precision, arithmetic).total == held(model)
    text_only = load_checkpoint(checkpoint, dtype=dtype, bits=bits, vision=False)
    counted = weights_of(checkpoint, precision, arithmetic)
    assert counted.total - counted.vision == held(text_only)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K", "F16"])
@pytest.mark.parametrize("arithmetic", ["float32", "bfloat16"])
def test_a_gguf_file_takes_what_was_counted(
    checkpoint: Path, tmp_path: Path, kind: str, arithmetic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The kernels hold the blocks elsewhere, in as many bytes.
    monkeypatch.setattr("jev.model.native.available", lambda: False)
    model = load_checkpoint(checkpoint, vision=False)
    tokenizer = json.loads((checkpoint / "tokenizer.json").read_text())
    path = tmp_path / "tiny.gguf"
    save_gguf(model.text.state_dict(), path, model.config, tokenizer, type=kind)
    loaded = load_checkpoint(path, dtype=getattr(torch, arithmetic), vision=checkpoint)
    assert weights_of(path, "float32", arithmetic, checkpoint).total == held(loaded)


def test_a_gguf_file_takes_what_was_counted_on_a_gpu(checkpoint: Path, tmp_path: Path) -> None:
    model = load_checkpoint(checkpoint, vision=False)
    tokenizer = json.loads((checkpoint / "tokenizer.json").read_text())
    path = tmp_path / "tiny.gguf"
    save_gguf(model.text.state_dict(), path, model.config, tokenizer, type="Q4_K")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jev.model.native.available", lambda: False)
        loaded = load_checkpoint(path, dtype=torch.bfloat16)
    found = 0
    for name, module in list(loaded.text.named_modules()):
        if isinstance(module, (PackedLinear, PackedExperts)):
            parent, _, last = name.rpartition(".")
            made = tiled(module)
            found += made is not module
            setattr(loaded.text.get_submodule(parent), last, made)
    assert found > 10
    sizes = Sizes.of(path)
    counted = sizes.weights("bfloat16", "bfloat16", gpu=True).total
    assert counted == held(loaded) > sizes.weights("bfloat16", "bfloat16").total
