"""Proves that a configuration this model cannot run is refused in one sentence that names the key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from refusal import change_json, refusal


def test_missing_config(folder: Path) -> None:
    (folder / "config.json").unlink()
    assert "config.json is missing" in refusal(folder)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"text"', "\x00"])
def test_config_that_is_none(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    assert "config.json" in refusal(folder)


@pytest.mark.parametrize("model_type", ["gemma4", "", None, 7])
def test_wrong_model_type(folder: Path, model_type: object) -> None:
    change_json(folder / "config.json", lambda config: config.update(model_type=model_type))
    message = refusal(folder)
    assert "model_type" in message
    assert repr(model_type) in message
    assert "diffusion_gemma" in message


@pytest.mark.parametrize("key", ["model_type", "text_config", "canvas_length"])
def test_missing_key(folder: Path, key: str) -> None:
    change_json(folder / "config.json", lambda config: config.pop(key))
    assert key in refusal(folder)


@pytest.mark.parametrize(
    "key",
    [
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "sliding_window",
        "num_experts",
        "top_k_experts",
        "moe_intermediate_size",
    ],
)
@pytest.mark.parametrize("value", [None, 0, -1, "8", 1.5, True, []])
def test_missing_or_impossible_size(folder: Path, key: str, value: object) -> None:
    def change(config: dict[str, Any]) -> None:
        if value is None:
            del config["text_config"][key]
        else:
            config["text_config"][key] = value

    change_json(folder / "config.json", change)
    assert key in refusal(folder)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_activation", "silu"),
        ("attention_bias", True),
        ("use_bidirectional_attention", "all"),
        ("tie_word_embeddings", False),
        ("layer_types", ["sliding_attention"] * 5),
        ("layer_types", ["chunked_attention"] * 6),
        ("layer_types", 6),
        ("layer_types", [[]] * 6),
        ("top_k_experts", 9),
        ("num_key_value_heads", 3),
        ("head_dim", "16"),
        ("global_head_dim", 0),
        ("num_global_key_value_heads", "2"),
        ("rms_norm_eps", "small"),
        ("final_logit_softcapping", [30]),
        ("rope_parameters", 10000.0),
        ("rope_parameters", {"full_attention": {"rope_theta": 1e6, "rope_type": "default"}}),
        ("rope_parameters", {"full_attention": {}, "sliding_attention": {"rope_theta": 1e4}}),
        ("per_layer_config", [32]),
        ("per_layer_config", {"5": 32}),
        ("per_layer_config", {"5": {"head_dim": "32"}}),
    ],
)
def test_value_that_this_model_cannot_run(folder: Path, key: str, value: object) -> None:
    change_json(folder / "config.json", lambda config: config["text_config"].update({key: value}))
    message = refusal(folder)
    assert message.startswith("config.json: ")


@pytest.mark.parametrize("value", ["none", ["<eos>"], {}])
def test_end_of_sequence_set_that_is_none(folder: Path, value: object) -> None:
    change_json(folder / "generation_config.json", lambda config: config.update(eos_token_id=value))
    assert "eos_token_id" in refusal(folder)
