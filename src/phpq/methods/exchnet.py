"""ExchNet (Cui et al., ECCV 2020): codes of the image and of four parts that may be exchanged.

    u = tanh(W norm([whole, part_1, ..., part_4])),   part_p = gap(own block of (A_p * stage 3))
    L = asymmetric loss to V (`phpq.methods._asymmetric`, without gamma)
        + (1 - Hellinger distance of the softmaxed maps A_p, over pairs of parts)
        + relu(0.4 - Hellinger distance of the softmaxed channels of parts, over pairs)

In the last eighth of the epochs each part is swapped, half of the time, for its anchor: the mean of
that part over the class; and |part - anchor| joins the loss. What differs from the public code:
ResNet-18 for ResNet-50; a part's own block is 1 x 1 convolution, norm and ReLU in place of a copy
of stage 4, four of which would double a step; anchors are means over the epoch before as its
batches passed, not over a pass of their own; a round is one epoch; swaps are drawn before the
epoch, so that resuming repeats them. |part - anchor| is per root of its length.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from phpq.config import option
from phpq.methods._asymmetric import AsymmetricHashing
from phpq.model.method import EpochChange, Learned, MethodSetup, TrainingSet, pack_bits

PARTS = 4
PUBLISHED = 12.0  # bits at which the published similarity term has weight 1
TINY = 1e-6  # under roots, whose slope is infinite at 0


@dataclass(frozen=True, slots=True)
class Parts:
    """What `ExchNet.extract` returns."""

    whole: Tensor  # (B, D) float32
    parts: Tensor  # (B, PARTS, D) float32
    maps: Tensor  # (B, PARTS, h * w) float32, 0 or more


class ExchNet(AsymmetricHashing):
    """Codes of parts that stand for their class."""

    terms = ("similarity", "spatial", "channel", "anchor")
    spatial: float = option(1.0, "0 or more")  # weight of the difference of the parts' places
    channel: float = option(1.0, "0 or more")  # weight of the difference of their features
    channel_margin: float = option(0.4, "in [0, 1]")  # Hellinger distance above which it is zero
    anchor: float = option(1.0, "0 or more")  # weight of the distance to the class's anchors
    swap: float = option(0.5, "in [0, 1]")  # how likely a part is swapped
    swap_share: float = option(0.125, "in [0, 1]")  # share of the epochs, the last, that swap
    levels = 2
    views = 1 + PARTS  # the image and its parts
    sees_places = True
    gamma = 0.0
    anchors: Tensor  # (classes, PARTS, D) float32
    known: Tensor  # (classes,) float32: 1 where there are anchors
    sums: Tensor  # (classes, PARTS, D) float32, of this epoch
    counts: Tensor  # (classes,) float32, of this epoch
    swaps: Tensor  # (N, PARTS) float32: 1 where a part is to be swapped in this epoch
    swapping = False

    def __init__(self, setup: MethodSetup) -> None:
        super().__init__(setup)
        third, fourth = self.backbone.channels
        self.attention = nn.Sequential(
            nn.Conv2d(third, PARTS, 1, bias=False), nn.BatchNorm2d(PARTS), nn.ReLU()
        )
        self.blocks = nn.Sequential(
            nn.Conv2d(PARTS * third, PARTS * fourth, 1, groups=PARTS, bias=False),
            nn.BatchNorm2d(PARTS * fourth),
            nn.ReLU(),
        )

    def start(self, training: TrainingSet) -> None:
        """Allocate anchors and swaps, besides u and V."""
        super().start(training)
        device, classes = training.labels.device, training.num_classes
        self.anchors = torch.zeros(classes, PARTS, self.backbone.channels[-1], device=device)
        self.sums = torch.zeros_like(self.anchors)
        self.known = torch.zeros(classes, device=device)
        self.counts = torch.zeros_like(self.known)
        self.swaps = torch.zeros(len(training.labels), PARTS, device=device)

    def memory(self) -> dict[str, Tensor]:
        """Return u, V, and the buffers of the anchors."""
        own = {name: getattr(self, name) for name in ("anchors", "known", "sums", "counts")}
        return super().memory() | own

    def prepare_epoch(self, epoch: int, training: TrainingSet) -> EpochChange:
        """Fit V, set the anchors to the means of the last epoch, and draw the swaps."""
        super().prepare_epoch(epoch, training)
        seen = self.counts > 0
        means = self.sums / self.counts.clamp(min=1)[:, None, None]
        self.anchors.copy_(torch.where(seen[:, None, None], means, self.anchors))
        self.known.copy_(torch.where(seen, 1.0, self.known))
        self.sums.zero_()
        self.counts.zero_()
        generator = torch.Generator().manual_seed(training.seed * 1_000_003 + epoch)
        self.swaps.copy_(torch.rand(self.swaps.shape, generator=generator) < self.swap)
        before = self.swapping
        self.swapping = epoch >= first_swap(training.epochs, self.swap_share)
        return EpochChange(new_step=before != self.swapping)

    def extract(self, images: Tensor) -> Any:
        """Return the `Parts` of pixels (B, 3, H, W) in [0, 1]."""
        shallow, deep = self.backbone(images)
        maps = self.attention(shallow)
        attended = (maps[:, :, None] * shallow[:, None]).flatten(1, 2)  # (B, PARTS * C, h, w)
        parts = self.blocks(attended).float().mean((2, 3)).unflatten(1, (PARTS, -1))
        return Parts(deep.float().mean((2, 3)), parts, maps.float().flatten(2))

    @property
    def published_scale(self) -> float:
        """What the published 12 / bits mean (bits S - <u, v>)^2 is at u = 0, where ours is 1.

        The other terms are divided by it, so that their weights are those of the paper: on CUB, 1
        at 16 bits and 3.9 at 64. With four classes it is 64, and weights of 1 would dominate the
        similarities.
        """
        return PUBLISHED * self.bits * self.similarity.energy / len(self.similarity.labels)

    def code(self, whole: Tensor, parts: Tensor) -> Tensor:
        """Return u (B, bits) of (B, D) and (B, PARTS, D)."""
        return self.squash(self.hash(self.standardise(torch.cat([whole, parts.flatten(1)], 1))))

    def objective(self, extracted: Any, labels: Tensor, rows: Tensor) -> Learned:
        """Return the loss; in the last epochs, of exchanged parts."""
        seen: Parts = extracted
        parts = seen.parts
        self.sums.index_add_(0, labels, parts.detach())
        self.counts.index_add_(0, labels, torch.ones_like(labels, dtype=torch.float32))
        anchor = parts.new_zeros(())
        if self.swapping:
            anchor = self._anchor_distance(parts, labels)
            swapped = (self.swaps[rows] * self.known[labels, None])[:, :, None]
            parts = torch.where(swapped > 0, self.anchors[labels], parts)
        outputs = self.code(seen.whole, parts)
        similarity = self.similarity_loss(outputs, labels, rows)
        spatial = 1 - hellinger(seen.maps)
        channel = F.relu(self.channel_margin - hellinger(seen.parts))
        others = self.spatial * spatial + self.channel * channel + self.anchor * anchor
        total = similarity + others / self.published_scale
        return Learned(total, (similarity, spatial, channel, anchor), pack_bits(outputs))

    def _anchor_distance(self, parts: Tensor, labels: Tensor) -> Tensor:
        """Return the mean of |part - anchor| / sqrt(D) over parts that have an anchor."""
        squares = (parts - self.anchors[labels]).square().mean(2)
        return ((squares + TINY).sqrt() * self.known[labels, None]).mean()

    def bit_values(self, images: Tensor) -> Tensor:
        """Return u (B, bits) of the image's own parts."""
        seen: Parts = self.extract(images)
        with torch.autocast(images.device.type, enabled=False):
            return self.code(seen.whole, seen.parts)


def first_swap(epochs: int, share: float) -> int:
    """Return the first epoch (from 0) that swaps: at least the last, and never epoch 0."""
    return max(1, epochs - max(1, math.ceil(share * epochs)))


def hellinger(values: Tensor) -> Tensor:
    """Return the mean Hellinger distance of softmaxed (B, P, n), over pairs of the P.

    0 for equal distributions, 1 for disjoint ones.
    """
    roots = (values.log_softmax(2) / 2).exp()  # the root of a softmax, with a slope at 0
    distances = (1 - roots @ roots.transpose(1, 2)).clamp(min=0).add(TINY).sqrt()
    parts = values.shape[1]
    pairs = 1 - torch.eye(parts, device=values.device)
    return (distances * pairs).sum() / (len(values) * parts * (parts - 1))
