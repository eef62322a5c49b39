"""Proves that the forms a configuration comes in mean the same model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jev.model import embedded
from jev.model.config import LayerConfig, ModelConfig, RopeConfig

MakeTiny = Callable[..., Path]


@pytest.fixture
def raw(tiny: MakeTiny) -> dict[str, Any]:
    """The tiny checkpoint's config.json in the published form, to be changed."""
    return json.loads((tiny() / "config.json").read_text(encoding="utf-8"))


SLIDING, FULL = LayerConfig("sliding_attention", 16, 4), LayerConfig("full_attention", 32, 2)


def test_published_form(raw: dict[str, Any]) -> None:
    config = ModelConfig.from_dict(raw)
    assert config.text.layers == (*[SLIDING] * 5, FULL)
    assert [layer.sliding for layer in config.text.layers] == [True] * 5 + [False]
    assert config.text.rope == {
        "full_attention": RopeConfig(1_000_000.0, 0.25),
        "sliding_attention": RopeConfig(10_000.0, 1.0),
    }
    assert (config.text.vocab_size, config.text.hidden_size, config.text.sliding_window) == (1024, 64, 8)
    assert (config.text.num_experts, config.text.top_k_experts, config.text.moe_intermediate_size) == (
        8,
        2,
        24,
    )
    assert (config.canvas_length, config.image_token_id) == (16, 1022)
    assert config.raw is raw


@pytest.mark.parametrize("layers", [1, 5, 6, 7, 12])
def test_layer_by_layer_form_is_the_same_model(tiny: MakeTiny, layers: int) -> None:
    one, other = (
        ModelConfig.from_folder(tiny(layers=layers, config_form=form)) for form in ("global", "per_layer")
    )
    assert one.text == other.text
    assert one.text.layers[-1] == FULL


def test_layer_types_that_are_left_out_are_every_sixth(raw: dict[str, Any]) -> None:
    given = ModelConfig.from_dict(raw)
    del raw["text_config"]["layer_types"]
    assert ModelConfig.from_dict(raw) == given
    raw["text_config"]["num_hidden_layers"] = 8
    kinds = [layer.kind[:4] for layer in ModelConfig.from_dict(raw).text.layers]
    assert kinds == ["slid"] * 5 + ["full", "slid", "full"]


def test_last_layer_is_full_whatever_the_file_says(raw: dict[str, Any]) -> None:
    given = ModelConfig.from_dict(raw)
    raw["text_config"]["layer_types"] = ["sliding_attention"] * 6
    assert ModelConfig.from_dict(raw) == given


def test_what_may_be_left_out(raw: dict[str, Any]) -> None:
    given = ModelConfig.from_dict(raw)
    for key in (
        "rms_norm_eps",
        "final_logit_softcapping",
        "rope_parameters",
        "hidden_activation",
        "attention_bias",
    ):
        del raw["text_config"][key]
    assert ModelConfig.from_dict(raw) == given
    del raw["text_config"]["num_global_key_value_heads"]
    assert ModelConfig.from_dict(raw).text.layers[-1] == LayerConfig("full_attention", 32, 4)


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [
        ([1, 106], None, (1, 106)),
        (1, None, (1,)),
        (None, None, (1,)),
        ([1, 106], {}, (1, 106)),
        ([1, 106], {"eos_token_id": [1, 106, 50]}, (1, 106, 50)),
        ([1, 106], {"eos_token_id": 7}, (7,)),
        ([1, 106], {"eos_token_id": None}, (1, 106)),
    ],
)
def test_end_of_sequence_set_of_the_generation_config_wins(
    raw: dict[str, Any], config: Any, generation: Any, expected: tuple[int, ...]
) -> None:
    raw["eos_token_id"] = config
    assert ModelConfig.from_dict(raw, generation).eos_token_ids == expected


def test_text_model_has_no_image_token(raw: dict[str, Any]) -> None:
    del raw["image_token_id"]
    assert ModelConfig.from_dict(raw).image_token_id is None


def test_embedded_checkpoint() -> None:
    config = ModelConfig.from_folder(embedded.path())
    assert (config.text.vocab_size, config.text.sliding_window, config.canvas_length) == (22003, 1024, 64)
    assert [layer.sliding for layer in config.text.layers] == [True] * 8 + [False]
    assert config.text.max_position_embeddings == 32768
