"""SRLH (Zeng, Lai and Yin, 2019): codes of an image and of regions that it finds, no boxes given.

Our reconstruction from its abstract: region localisation and hashing are trained jointly, with
regions at several scales from several layers, and cross-entropy on the code. Ours: in stages 3 and
4 a 1 x 1 convolution gives a map; its softmax has a mean (the centre of a square) and a spread (its
half side is sqrt(3) deviations: a flat map is the whole image). Both squares are cut out at half
the side, described by the same trunk, and concatenated with the image. Sampling is differentiable,
so the code's loss moves the squares; the loss is that of `ClassifiedHashing`.
"""

from typing import cast

import torch
from torch import Tensor, nn

from phpq.config import option
from phpq.data.batches import cell_centres, cut_boxes
from phpq.methods._hashing import HEAD_DEVIATION, ClassifiedHashing
from phpq.model.backbone import Backbone
from phpq.model.method import MethodSetup

SCALES = 2  # stages that find a region each


class SRLH(ClassifiedHashing):
    """Simultaneous region localisation and hashing."""

    levels = SCALES
    sees_places = True
    views = 1 + SCALES  # the image and its regions
    needs_pixels = True
    smallest: float = option(0.35, "in (0, 1]")  # least side of a region, of the image's

    def __init__(self, setup: MethodSetup) -> None:
        super().__init__(setup)
        self.finders = nn.ModuleList(nn.Conv2d(c, 1, 1) for c in self.backbone.channels)
        for finder in self.finders:
            nn.init.normal_(cast(nn.Conv2d, finder).weight, std=HEAD_DEVIATION)

    def regions(self, pyramid: list[Tensor]) -> list[Tensor]:
        """Return a square (B, 3) for each stage: x, y and half side, the image being [-1, 1]^2."""
        # Detached: gradients through positions are noise for the trunk.
        stages = zip(self.finders, (stage.detach().float() for stage in pyramid), strict=True)
        return [square_of(finder(stage), self.smallest) for finder, stage in stages]

    def extract(self, images: Tensor) -> Tensor:
        """Return b (B, bits) float32."""
        pyramid = self.backbone(images)
        device = images.device.type
        with torch.autocast(device, enabled=False):
            crops = [cut_out(images.float(), square) for square in self.regions(pyramid)]
            views = [self.describe(pyramid)]
        regions = _with_running_statistics(self.backbone, torch.cat(crops))  # in one batch
        with torch.autocast(device, enabled=False):
            views += self.describe(regions).chunk(len(crops))
            return self.squash(self.hash(torch.cat(views, 1)))


def _with_running_statistics(backbone: Backbone, images: Tensor) -> list[Tensor]:
    """Apply the trunk to crops, with its batch norm statistics of whole images.

    Crops have other statistics: running averages over both would fit neither.
    """
    learning = backbone.training
    backbone.eval()
    pyramid: list[Tensor] = backbone(images)
    backbone.train(learning)
    return pyramid


def square_of(scores: Tensor, smallest: float) -> Tensor:
    """Return the square (B, 3) float32 that a map (B, 1, h, w) of scores points at: x, y, half.

    The softmax of scores is a distribution over the cells of [-1, 1]^2. Half sides are at least
    `smallest`, and the square always lies within the image.
    """
    height, width = scores.shape[2:]
    share = scores.flatten(1).softmax(1).view(-1, height, width)
    x, spread_x = _moments(share.sum(1))
    y, spread_y = _moments(share.sum(2))
    half = ((spread_x + spread_y) * (3 / 2)).sqrt().clamp(smallest, 1)
    room = 1 - half
    return torch.stack([x.clamp(-room, room), y.clamp(-room, room), half], 1)


def _moments(share: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance (B,) of (B, n) shares of the n equal cells of [-1, 1]."""
    cells = share.shape[1]
    centres = cell_centres(cells, share.device)
    mean = share @ centres
    # Mass is uniform in a cell, not at its centre: a flat map has variance 1/3 at any size.
    return mean, share @ centres.square() - mean.square() + 1 / (3 * cells**2)


def cut_out(images: Tensor, squares: Tensor) -> Tensor:
    """Sample squares (B, 3) from images (B, C, H, W): (B, C, H / 2, W / 2), bilinear."""
    x, y, half = squares.unbind(1)
    height, width = images.shape[2:]
    size = max(height // 2, 1), max(width // 2, 1)
    crops = cut_boxes(images, torch.stack([x, y, half, half], 1), size)
    return crops.contiguous(memory_format=torch.channels_last)
