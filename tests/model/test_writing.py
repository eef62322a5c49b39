"""Proves that options default to the checkpoint's, and that bad ones are named with their limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jev.model.config import ModelConfig
from jev.model.errors import CheckpointError
from jev.model.writing import Options

WIDTH = 16


@pytest.fixture
def config(tiny: Callable[..., Path]) -> ModelConfig:
    return ModelConfig.from_folder(tiny())


def test_defaults_are_the_checkpoints(config: ModelConfig) -> None:
    generation = {
        "max_new_tokens": 7,
        "max_denoising_steps": 9,
        "t_min": 0.1,
        "t_max": 2,
        "stability_threshold": 3,
        "confidence_threshold": 0.5,
        "sampler_config": {"_cls_name": "EntropyBoundSamplerConfig", "entropy_bound": 0.7},
    }
    config = replace(config, generation=generation)
    expected = Options(
        max_tokens=7, max_denoising_steps=9, t_min=0.1, t_max=2, stability=3, confidence=0.5,
        entropy_bound=0.7, max_canvas=WIDTH,
    )  # fmt: skip
    assert Options.of(config) == Options.of(config, max_tokens=None, seed=None) == expected
    assert Options.of(config, max_tokens=5, seed=4) == replace(expected, max_tokens=5, seed=4)
    nulls = dict.fromkeys(generation)
    assert Options.of(replace(config, generation=nulls)) == Options(max_canvas=WIDTH)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"max_tokens": 0}, "max_tokens must be a whole number of at least 1, not 0"),
        ({"max_tokens": 2.5}, "max_tokens must be a whole number"),
        ({"max_denoising_steps": 1001}, "max_denoising_steps .* at least 1 and at most 1000, not 1001"),
        ({"sampler": "greedy"}, "sampler must be entropy-bound or confidence-threshold, not 'greedy'"),
        ({"threshold": 1.01}, "threshold must be a number of at least 0 and at most 1, not 1.01"),
        ({"threshold": float("nan")}, "threshold must be"),
        ({"entropy_bound": 0}, "entropy_bound must be a number over 0, not 0"),
        ({"t_min": -1}, "t_min must be a number of at least 0"),
        ({"t_max": 0.4}, r"t_max must be a number over t_min \(0.4\), not 0.4"),
        ({"stability": -1}, "stability must be"),
        ({"stability": True}, "stability must be"),
        ({"confidence": float("inf")}, "confidence must be a number over 0"),
        ({"max_canvas": 17}, r"max_canvas .* at most the checkpoint's canvas \(16\), not 17"),
        ({"min_canvas": 0}, "min_canvas must be"),
        ({"blocks": 0}, "blocks must be"),
        ({"seed": -1}, "seed must be a whole number of at least 0"),
        ({"seed": 2**63}, "seed must be"),
        ({"full_canvas": 1}, "full_canvas must be true or false, not 1"),
    ],
)
def test_bad_values_are_named_with_their_limits(
    config: ModelConfig, given: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        Options.of(config, **given)


@pytest.mark.parametrize(
    ("generation", "sentence"),
    [
        ({"t_max": "hot"}, "generation_config.json: t_max must be a number"),
        ({"sampler_config": []}, None),
        ({"sampler_config": 3}, "generation_config.json: sampler_config must be an object, not 3"),
        ({"sampler_config": {"_cls_name": "Other"}}, "the sampler 'Other' is not supported"),
    ],
)
def test_bad_defaults_are_the_checkpoints_fault(
    config: ModelConfig, generation: dict[str, Any], sentence: str | None
) -> None:
    config = replace(config, generation=generation)
    if sentence is None:
        assert Options.of(config) == Options(max_canvas=WIDTH)
        return
    with pytest.raises(CheckpointError, match=sentence):
        Options.of(config)
