"""Stored squares to what the network sees, in torch, on whatever device the pixels are.

Training: random resized crop, mirror and colour, from parameters drawn beforehand, so that a batch
is a pure function of (pixels, parameters). Encoding: the fixed centre view; no randomness anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from phpq.config import DataConfig

PARAMETERS = 8  # centre x, centre y, width, height, mirror, brightness, contrast, saturation


def draw_augmentations(
    generator: np.random.Generator, count: int, config: DataConfig
) -> NDArray[np.float32]:
    """Draw the parameters of training crops: (count, 8) float32.

    Centre x, y and size w, h as shares of the side; mirror +1 or -1; factors of brightness,
    contrast and saturation.
    """
    limit = np.log(config.crop_ratio)
    width = height = np.full(count, np.inf)
    for _ in range(10):  # until the crop fits, as torchvision does; then it is clipped
        again = (width > 1) | (height > 1)
        area = generator.uniform(config.crop_scale, 1, count)
        ratio = np.exp(generator.uniform(-limit, limit, count))
        width = np.where(again, np.sqrt(area * ratio), width)
        height = np.where(again, np.sqrt(area / ratio), height)
    width, height = np.minimum(width, 1), np.minimum(height, 1)
    centre_x = generator.uniform(width / 2, 1 - width / 2)
    centre_y = generator.uniform(height / 2, 1 - height / 2)
    mirror = np.where(generator.random(count) < 0.5, -1.0, 1.0) if config.flip else np.ones(count)
    colour = generator.uniform(1 - config.jitter, 1 + config.jitter, (3, count))
    drawn = np.stack([centre_x, centre_y, width, height, mirror, *colour], axis=1)
    return drawn.astype(np.float32)


@dataclass(frozen=True, slots=True)
class Views:
    """Turns stored squares into training and encoding views as the config says."""

    config: DataConfig

    def train(self, pixels: Tensor, parameters: Tensor) -> Tensor:
        """Crop, mirror and colour squares (B, 3, S, S) uint8 by (B, 8) of `draw_augmentations`.

        Returns (B, 3, crop_size, crop_size) float32 in [0, 1].
        """
        x, y, width, height, mirror = parameters[:, :5].unbind(1)
        # The stored square is [-1, 1]^2; a negative half width turns x around.
        boxes = torch.stack([2 * x - 1, 2 * y - 1, width * mirror, height], 1)
        size = self.config.crop_size
        images = cut_boxes(pixels.float(), boxes, (size, size)) / 255
        return _colour(images, parameters[:, 5:]) if self.config.jitter else images

    def encode(self, pixels: Tensor) -> Tensor:
        """Take the fixed centre view of stored squares: (B, 3, E, E) float32 in [0, 1]."""
        side = pixels.shape[-1]
        kept = max(1, round(side * self.config.eval_crop))
        start = (side - kept) // 2
        images = pixels[..., start : start + kept, start : start + kept].float() / 255
        size = self.config.eval_size
        if kept == size:
            return images
        return F.interpolate(
            images, size=(size, size), mode="bilinear", align_corners=False, antialias=True
        ).clamp(0, 1)


def cut_boxes(images: Tensor, boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """Sample a box from each of (B, C, H, W) float images, bilinear; border pixels go on beyond.

    Boxes (B, 4) are centre x, y and half the width and height, the image being [-1, 1]^2; a
    negative half mirrors. Differentiable in them. Returns (B, C, *size) for a height and a width.
    """
    height, width = size
    x, y, half_width, half_height = boxes.unbind(1)
    columns = x[:, None] + half_width[:, None] * cell_centres(width, boxes.device)
    rows = y[:, None] + half_height[:, None] * cell_centres(height, boxes.device)
    # Not `affine_grid`: it multiplies matrices, which takes longer than the sampling itself.
    places = (columns[:, None, :].expand(-1, height, -1), rows[:, :, None].expand(-1, -1, width))
    grid = torch.stack(places, 3)
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False)


def cell_centres(count: int, device: torch.device) -> Tensor:
    """Return the centres (count,) float32 of the equal cells of [-1, 1]."""
    return (2 * torch.arange(count, device=device) + 1) / count - 1


def _colour(images: Tensor, factors: Tensor) -> Tensor:
    """Scale brightness, contrast about the mean, and saturation about the grey image."""
    brightness, contrast, saturation = (f.view(-1, 1, 1, 1) for f in factors.unbind(1))
    images = images * brightness
    mean = images.mean(dim=(1, 2, 3), keepdim=True)
    images = mean + (images - mean) * contrast
    # Spelt out: a tensor of weights would be a copy to the device, which a CUDA graph cannot hold.
    red, green, blue = images[:, 0:1], images[:, 1:2], images[:, 2:3]
    grey = 0.299 * red + 0.587 * green + 0.114 * blue
    return (grey + (images - grey) * saturation).clamp(0, 1)
