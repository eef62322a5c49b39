"""Proves that the model's fp32 logits are those of transformers, step by step and at every edge."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor

from jev.model import embedded
from jev.model.checkpoint import load_checkpoint
from jev.model.weights.safetensors import SINGLE, save_checkpoint

if TYPE_CHECKING:
    from conftest import Pair

# Logits here reach about 6 and were seen to differ by at most 2e-5 (3e-6 on the embedded
# checkpoint, and 3e-5 in a chain of three steps). A wrong rule moves them by 0.1 or more.
TOLERANCE = 5e-5
CHAIN_TOLERANCE = 1e-4
WINDOW = 8
TEMPERATURE = 0.8

MakePair = Callable[..., "Pair"]


def difference(ours: Tensor, theirs: Tensor) -> float:
    assert ours.shape == theirs.shape
    assert ours.dtype == theirs.dtype == torch.float32
    return float((ours - theirs).abs().max())


def agree(pair: Pair, prompt: Tensor, canvas: Tensor) -> None:
    """Check a first and a self-conditioned step behind a prompt."""
    kv, cache = pair.model.prefill(prompt), pair.reference.prefill(prompt)
    ours, theirs = pair.model.decode(canvas, kv), pair.reference.decode(canvas, cache)
    assert difference(ours, theirs) <= TOLERANCE
    previous = theirs / TEMPERATURE
    ours = pair.model.decode(canvas, kv, previous=previous)
    theirs = pair.reference.decode(canvas, cache, previous=previous)
    assert difference(ours, theirs) <= TOLERANCE


@pytest.mark.parametrize("length", [1, 2, WINDOW - 2, WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW, 100])
def test_prefix_of_any_length_around_the_window(pair: MakePair, length: int) -> None:
    one = pair(window=WINDOW)
    agree(one, one.ids(length, seed=1), one.ids(16, seed=2))


@pytest.mark.parametrize("width", [1, 2, 6, 15, 16, 17, 64])
@pytest.mark.parametrize("length", [3, 30])
def test_canvas_of_any_length(pair: MakePair, width: int, length: int) -> None:
    one = pair(canvas=16)
    agree(one, one.ids(length, seed=3), one.ids(width, seed=4))


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"config_form": "per_layer"}, id="per-layer config"),
        pytest.param({"config_form": "per_layer", "layers": 12, "seed": 7}, id="per-layer config, 12 layers"),
        pytest.param({"layers": 12}, id="two full layers"),
        pytest.param({"layers": 8, "seed": 8}, id="last layer full out of turn"),
        pytest.param({"layers": 1}, id="one layer"),
        pytest.param({"dtype": torch.bfloat16}, id="bf16 on disk"),
        pytest.param({"dtype": torch.float16}, id="fp16 on disk"),
        pytest.param({"shards": 3}, id="sharded"),
        pytest.param({"vision": False}, id="no vision tower"),
        pytest.param({"experts": 5, "top_k": 3}, id="three of five experts"),
        pytest.param({"experts": 4, "top_k": 4}, id="all experts"),
        pytest.param({"experts": 1, "top_k": 1}, id="one expert"),
        pytest.param({"hidden": 96, "window": 5, "vocab": 1500}, id="other sizes"),
        pytest.param({"window": 2}, id="smallest window"),
        pytest.param({"window": 1024}, id="window never reached"),
        *(pytest.param({"seed": seed}, id=f"seed {seed}") for seed in (1, 2, 3)),
    ],
)
def test_checkpoint_of_any_make(pair: MakePair, options: dict[str, object]) -> None:
    one = pair(**options)
    agree(one, one.ids(30, seed=5), one.ids(16, seed=6))


def test_checkpoint_saved_again_by_transformers(pair: MakePair, tmp_path: Path) -> None:
    one = pair(layers=7)
    one.reference.model.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())["text_config"]
    assert "global_head_dim" not in saved
    assert saved["per_layer_config"]
    again = replace(one, model=load_checkpoint(tmp_path))
    assert again.model.config.text == one.model.config.text
    agree(again, again.ids(30, seed=5), again.ids(16, seed=6))


@pytest.mark.parametrize("chunk", [1, 2, 5, WINDOW - 1, WINDOW, WINDOW + 1, 29, 30, 1000])
def test_chunked_prefill_is_the_whole_prefill(pair: MakePair, chunk: int) -> None:
    one = pair(window=WINDOW)
    prompt, canvas = one.ids(30, seed=7), one.ids(16, seed=8)
    theirs = one.reference.decode(canvas, one.reference.prefill(prompt))
    kv = one.model.prefill(prompt, chunk=chunk)
    assert kv.length == 30
    assert difference(one.model.decode(canvas, kv), theirs) <= TOLERANCE


@pytest.mark.parametrize("cuts", [(4, 30), (7, 8, 30), (8, 9, 30), (1, 20, 29, 30)])
def test_prefill_in_several_calls_is_the_whole_prefill(pair: MakePair, cuts: tuple[int, ...]) -> None:
    one = pair(window=WINDOW)
    prompt, canvas = one.ids(30, seed=9), one.ids(16, seed=10)
    kv, start = None, 0
    for end in cuts:
        kv = one.model.prefill(prompt[start:end], kv, chunk=3)
        start = end
    assert kv is not None
    theirs = one.reference.decode(canvas, one.reference.prefill(prompt))
    assert difference(one.model.decode(canvas, kv), theirs) <= TOLERANCE


def test_chunked_prefill_past_two_full_layers(pair: MakePair) -> None:
    one = pair(layers=12)
    prompt, canvas = one.ids(60, seed=11), one.ids(16, seed=12)
    theirs = one.reference.decode(canvas, one.reference.prefill(prompt))
    assert difference(one.model.decode(canvas, one.model.prefill(prompt, chunk=7)), theirs) <= TOLERANCE


@pytest.mark.parametrize("length", [5, 30])
def test_three_steps_each_conditioned_on_the_last(pair: MakePair, length: int) -> None:
    one = pair()
    prompt = one.ids(length, seed=13)
    kv, cache = one.model.prefill(prompt), one.reference.prefill(prompt)
    ours_before = theirs_before = None
    for step, temperature in enumerate((0.8, 0.6, 0.41)):
        # The canvas changes from step to step, as a sampler changes it.
        canvas = one.ids(16, seed=20 + step)
        ours = one.model.decode(canvas, kv, previous=ours_before)
        theirs = one.reference.decode(canvas, cache, previous=theirs_before)
        assert difference(ours, theirs) <= CHAIN_TOLERANCE
        ours_before, theirs_before = ours / temperature, theirs / temperature


def test_all_zero_logits_are_not_the_same_as_none(pair: MakePair) -> None:
    one = pair()
    prompt, canvas = one.ids(12, seed=14), one.ids(16, seed=15)
    zero = torch.zeros(16, one.model.config.text.vocab_size)
    kv, cache = one.model.prefill(prompt), one.reference.prefill(prompt)
    ours = one.model.decode(canvas, kv, previous=zero)
    assert difference(ours, one.reference.decode(canvas, cache, previous=zero)) <= TOLERANCE
    assert difference(ours, one.model.decode(canvas, kv)) > 0.1


@pytest.mark.parametrize("length", [2, WINDOW - 1, 30])
def test_second_and_third_block_behind_committed_canvases(pair: MakePair, length: int) -> None:
    one = pair(window=WINDOW)
    prompt = one.ids(length, seed=16)
    kv, cache = one.model.prefill(prompt), one.reference.prefill(prompt)
    for block in range(3):
        canvas = one.ids(16, seed=30 + block)
        ours, theirs = one.model.decode(canvas, kv), one.reference.decode(canvas, cache)
        assert difference(ours, theirs) <= TOLERANCE
        finished = theirs.argmax(-1)
        assert torch.equal(ours.argmax(-1), finished)
        kv, cache = one.model.prefill(finished, kv), one.reference.prefill(finished, cache)


def test_readers_and_longer_prefixes_leave_a_prefix_as_it_was(pair: MakePair) -> None:
    one = pair()
    canvas = one.ids(16, seed=17)
    kv = one.model.prefill(one.ids(20, seed=18))
    before = one.model.decode(canvas, kv)
    one.model.prefill(one.ids(9, seed=19), kv)
    one.model.decode(canvas, kv, previous=before)
    assert kv.length == 20
    assert torch.equal(one.model.decode(canvas, kv), before)


@pytest.fixture
def swapped(pair: MakePair) -> Iterator[Pair]:
    one = pair()
    one.reference.swap_layer_scalars()
    yield one
    one.reference.swap_layer_scalars()


def test_swapped_layer_scalars_would_be_noticed(swapped: Pair) -> None:
    prompt, canvas = swapped.ids(30, seed=5), swapped.ids(16, seed=6)
    ours = swapped.model.decode(canvas, swapped.model.prefill(prompt))
    theirs = swapped.reference.decode(canvas, swapped.reference.prefill(prompt))
    assert difference(ours, theirs) > 0.1


def test_every_weight_moves_the_logits(tiny: Callable[..., Path]) -> None:
    """So a weight that was loaded wrongly or not used could not have passed the tests above."""
    model = load_checkpoint(tiny())
    generator = torch.Generator().manual_seed(0)
    vocab = model.config.text.vocab_size
    prompt = torch.randint(0, vocab, (20,), generator=generator)
    canvas = torch.randint(0, vocab, (16,), generator=generator)
    previous = torch.randn(16, vocab, generator=generator)

    def logits() -> Tensor:
        return model.decode(canvas, model.prefill(prompt), previous=previous)

    before = logits()
    idle = set()
    for name, weight in model.text.state_dict().items():
        kept = weight.clone()
        weight += 0.3 * torch.randn(kept.shape, generator=generator).sign()
        if difference(logits(), before) < 0.01:
            idle.add(name)
        weight.copy_(kept)
    # Norms undo what these three do: the final norm, and the one before the last layer's keys and
    # values, which are all that the encoder leaves behind.
    assert idle == {
        "layers.5.layer_scalar",
        "layers.5.encoder_layer_scalar",
        "layers.4.encoder_layer_scalar",
    }


@pytest.fixture(scope="module")
def embedded_pair(pair_of: Callable[[Path], Pair], tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """The embedded checkpoint; its int8 rows are decoded here, for transformers to read as fp32."""
    folder = tmp_path_factory.mktemp("embedded")
    model = load_checkpoint(embedded.path())
    config = {key: value for key, value in model.config.raw.items() if key != "vision_config"}
    (folder / "config.json").write_text(json.dumps(config))
    save_checkpoint(model.text.state_dict(), folder / SINGLE)
    return replace(pair_of(folder), model=model)


@pytest.mark.parametrize("length", [1, 60, 300])
def test_embedded_checkpoint(embedded_pair: Pair, length: int) -> None:
    agree(embedded_pair, embedded_pair.ids(length, seed=21), embedded_pair.ids(6, seed=22))


def test_embedded_checkpoint_past_its_window(embedded_pair: Pair) -> None:
    window = embedded_pair.model.config.text.sliding_window
    prompt, canvas = embedded_pair.ids(window + 76, seed=23), embedded_pair.ids(6, seed=24)
    theirs = embedded_pair.reference.decode(canvas, embedded_pair.reference.prefill(prompt))
    ours = embedded_pair.model.decode(canvas, embedded_pair.model.prefill(prompt, chunk=512))
    assert difference(ours, theirs) <= TOLERANCE


@pytest.mark.skipif(
    "JEV_SEED_CHECKPOINT" not in os.environ,
    reason="JEV_SEED_CHECKPOINT names no folder with the original bf16 checkpoint",
)
@pytest.mark.parametrize("length", [1, 60, 300])
def test_original_checkpoint(pair_of: Callable[[Path], Pair], length: int) -> None:
    one = pair_of(Path(os.environ["JEV_SEED_CHECKPOINT"]))
    agree(one, one.ids(length, seed=25), one.ids(6, seed=26))
