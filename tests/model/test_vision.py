"""Proves that pictures reach the model as in transformers: patches bit for bit, logits within 1e-4."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import DiffusionGemmaForBlockDiffusion, DynamicCache
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil

from jev.model.checkpoint import load_checkpoint
from jev.model.diffusion_gemma import DiffusionGemma
from jev.model.packed import ImageSpan
from jev.model.pixels import Patches, patches_of, target_size
from jev.model.tiny import write_tiny_checkpoint

SIZES = [("RGB", (640, 480)), ("RGBA", (300, 500)), ("L", (100, 50)), ("P", (64, 900)), ("LA", (2000, 30))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("vision") / "tiny")


@pytest.fixture(scope="module")
def model(folder: Path) -> DiffusionGemma:
    return load_checkpoint(folder)


@pytest.fixture(scope="module")
def reference(folder: Path) -> Any:
    return DiffusionGemmaForBlockDiffusion.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager"
    ).eval()


def picture(mode: str, size: tuple[int, int]) -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 4), dtype=np.uint8)
    return Image.fromarray(pixels, "RGBA").convert(mode)


def processed(image: Image.Image, soft_tokens: int) -> Any:
    return Gemma4ImageProcessorPil()(images=[image], return_tensors="pt", max_soft_tokens=soft_tokens)


def patches(model: DiffusionGemma, image: Image.Image, soft_tokens: int = 70) -> Patches:
    assert model.vision is not None
    return patches_of(image, model.vision.config, soft_tokens)


@pytest.mark.parametrize("soft_tokens", [70, 140, 280, 560, 1120])
@pytest.mark.parametrize(("mode", "size"), SIZES)
def test_patches_are_bit_exact(
    model: DiffusionGemma, mode: str, size: tuple[int, int], soft_tokens: int
) -> None:
    image = picture(mode, size)
    theirs, ours = processed(image, soft_tokens), patches(model, image, soft_tokens)
    count = len(ours.values)
    assert torch.equal(theirs["pixel_values"][0][:count], ours.values)
    assert torch.equal(theirs["image_position_ids"][0][:count], ours.positions)
    assert bool((theirs["image_position_ids"][0][count:] == -1).all())
    assert int(theirs["num_soft_tokens_per_image"][0]) == ours.tokens


@pytest.mark.parametrize(
    ("high", "wide", "expected"),
    [
        (480, 640, (672, 912)),
        (768, 1024, (672, 912)),
        (1080, 1920, (576, 1056)),
        (224, 224, (768, 768)),
        (672, 960, (672, 960)),
        (100, 5000, (96, 5664)),
    ],
)
def test_published_sizes(model: DiffusionGemma, high: int, wide: int, expected: tuple[int, int]) -> None:
    assert model.vision is not None
    assert target_size(high, wide, model.vision.config, 280) == expected


def test_a_picture_too_narrow_is_refused(model: DiffusionGemma) -> None:
    assert model.vision is not None
    with pytest.raises(ValueError, match="soft tokens must be one of"):
        target_size(10, 10, model.vision.config, 100)


@pytest.mark.parametrize(("mode", "size"), SIZES)
def test_tower_and_projector(model: DiffusionGemma, reference: Any, mode: str, size: tuple[int, int]) -> None:
    assert model.vision is not None
    image = picture(mode, size)
    theirs = processed(image, 70)
    with torch.no_grad():
        features = reference.model.encoder.get_image_features(
            theirs["pixel_values"], theirs["image_position_ids"], return_dict=True
        )
    ours = patches(model, image)
    assert (model.vision(ours) - features.pooler_output).abs().max() <= 1e-4
    assert (model.vision.pooled(ours) - features.last_hidden_state).abs().max() <= 1e-4


def prompt(model: DiffusionGemma, images: list[Patches]) -> tuple[list[int], list[ImageSpan]]:
    """Text, then each image between its brackets, then text."""
    assert model.vision is not None
    raw = model.config.raw
    ids, spans = [2, *range(300, 310)], []
    for one in images:
        ids.append(raw["boi_token_id"])
        spans.append(ImageSpan(len(ids), model.vision(one)))
        ids += [*[raw["image_token_id"]] * one.tokens, raw["eoi_token_id"], *range(310, 325)]
    return ids, spans


def expected_logits(reference: Any, ids: list[int], pictures: list[Image.Image], canvas: list[int]) -> Any:
    """The first step's logits behind a prompt with pictures, with the masks that generate() uses."""
    encoder, config = reference.model.encoder, reference.config
    rows = torch.tensor([ids])
    kinds = (rows == config.image_token_id).long()
    positions = torch.arange(len(ids))[None]
    cache = DynamicCache(config=config.text_config)
    theirs = [processed(one, 70) for one in pictures]
    with torch.no_grad():
        masks = encoder.create_masks_for_generate(
            config=config,
            inputs_embeds=torch.empty(1, len(ids), 0),
            attention_mask=None,
            cache=cache,
            position_ids=positions,
            mm_token_type_ids=kinds,
        )
        encoder(
            input_ids=rows,
            attention_mask=masks,
            cache=cache,
            position_ids=positions,
            pixel_values=torch.cat([one["pixel_values"] for one in theirs]),
            image_position_ids=torch.cat([one["image_position_ids"] for one in theirs]),
            mm_token_type_ids=kinds,
        )
        return reference(decoder_input_ids=torch.tensor([canvas]), cache=cache).logits[0]


@pytest.mark.parametrize("chunk", [None, 5, 40])
@pytest.mark.parametrize("count", [1, 2])
def test_logits_behind_pictures(model: DiffusionGemma, reference: Any, count: int, chunk: int | None) -> None:
    pictures = [picture(*SIZES[0]), picture(*SIZES[1])][:count]
    ids, spans = prompt(model, [patches(model, one) for one in pictures])
    canvas = list(range(400, 416))
    expected = expected_logits(reference, ids, pictures, canvas)
    ours = model.decode(canvas, model.prefill(ids, images=spans, chunk=chunk))
    assert (ours - expected).abs().max() <= 1e-4


def test_the_other_rule_is_another_model(folder: Path, model: DiffusionGemma) -> None:
    ids, spans = prompt(model, [patches(model, picture(*SIZES[0]))])
    other = load_checkpoint(folder, image_rule="gemma4")
    canvas = list(range(400, 416))
    ours, theirs = (one.decode(canvas, one.prefill(ids, images=spans)) for one in (model, other))
    assert (ours - theirs).abs().max() > 1e-2


def test_the_tower_may_come_from_another_folder(folder: Path, model: DiffusionGemma, tmp_path: Path) -> None:
    text = write_tiny_checkpoint(tmp_path / "text", vision=False)
    assert load_checkpoint(text).vision is None
    paired = load_checkpoint(text, vision=folder)
    assert paired.vision is not None
    assert model.vision is not None
    one = patches(model, picture(*SIZES[0]))
    assert torch.equal(paired.vision(one), model.vision(one))
