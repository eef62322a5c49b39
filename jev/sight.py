"""Pictures through the vision tower, unless they were seen lately."""

from __future__ import annotations

import torch

from jev.lru import ByteLRU
from jev.model.diffusion_gemma import DiffusionGemma
from jev.model.packed import ImageSpan
from jev.plan import PlacedImage


def seen(model: DiffusionGemma, image: PlacedImage, cache: ByteLRU[torch.Tensor]) -> ImageSpan:
    """The soft tokens [n, hidden] of a picture, in its place in the prompt; what was computed is kept."""
    assert model.vision is not None  # pictures are refused without one
    key = image.sha256.encode()
    soft = cache.get(key)
    if soft is None:
        soft = model.vision(image.patches)
        cache.put(key, soft)
    return ImageSpan(image.start, soft)
