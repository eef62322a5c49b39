"""Image -> patches, bit for bit as the PIL path of the reference's image processor does it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from jev.model.vision_config import SOFT_TOKENS, VisionConfig


@dataclass(frozen=True)
class Patches:
    """One image, ready for the tower.

    Attributes:
        values: [n, 3 * patch^2] fp32 in 0..1, row-major patches, pixels [y][x][channel].
        positions: [n, 2] int64, column and row of each patch.
        tokens: soft tokens it becomes, n / pooling^2.
    """

    values: Tensor
    positions: Tensor
    tokens: int


def target_size(height: int, width: int, config: VisionConfig, soft_tokens: int) -> tuple[int, int]:
    """Height and width, multiples of patch * pooling, that an image is resized to (up or down).

    The largest that keep the aspect ratio within `soft_tokens` tokens; an extreme ratio gets one
    row or column of tokens.

    Raises:
        ValueError: for an image so narrow that no size fits, or a budget the family does not know.
    """
    if soft_tokens not in SOFT_TOKENS:
        raise ValueError(f"soft tokens must be one of {SOFT_TOKENS}, not {soft_tokens}")
    side = config.patch_size * config.pooling_kernel_size
    budget = soft_tokens * side * side
    factor = math.sqrt(budget / (height * width))
    high = math.floor(factor * height / side) * side
    wide = math.floor(factor * width / side) * side
    if high == 0 and wide == 0:
        raise ValueError(f"an image of {width} x {height} pixels cannot be resized")
    if high == 0:
        high, wide = side, min(width // height * side, soft_tokens * side)
    elif wide == 0:
        high, wide = min(height // width * side, soft_tokens * side), side
    if high * wide > budget:
        raise ValueError(f"an image of {width} x {height} pixels does not fit {soft_tokens} soft tokens")
    return high, wide


def patches_of(image: Image.Image, config: VisionConfig, soft_tokens: int | None = None) -> Patches:
    """Resize (bicubic), scale to 0..1 and cut an image; transparency goes over white."""
    image = _on_white(image)
    high, wide = target_size(image.height, image.width, config, soft_tokens or config.soft_tokens)
    if (wide, high) != image.size:
        image = image.resize((wide, high), Image.Resampling.BICUBIC)
    # The product in float64 and one rounding, as the reference does.
    pixels = (np.asarray(image).astype(np.float64) * (1 / 255)).astype(np.float32)
    patch = config.patch_size
    rows, columns = high // patch, wide // patch
    grid = pixels.reshape(rows, patch, columns, patch, 3).transpose(0, 2, 1, 3, 4)
    x, y = np.meshgrid(np.arange(columns), np.arange(rows), indexing="xy")
    return Patches(
        values=torch.from_numpy(np.ascontiguousarray(grid).reshape(rows * columns, -1)),
        positions=torch.from_numpy(np.stack((x, y), axis=-1).reshape(-1, 2)),
        tokens=rows * columns // config.pooling_kernel_size**2,
    )


def _on_white(image: Image.Image) -> Image.Image:
    if "A" not in image.getbands() and image.info.get("transparency") is None:
        return image.convert("RGB")
    image = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", image.size, (255, 255, 255)), image).convert("RGB")
