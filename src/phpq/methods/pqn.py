"""PQN (Yu et al., ECCV 2018): product quantization learned by asymmetric triplets.

Soft assignment is PHPQ's with full attention (every codeword takes part). The anchor stays x, its
partners are soft reconstructions s: L = mean over the triplets of a batch of
log(1 + exp(scale (<x, s-> - <x, s+>))), <.,.> being the mean over codebooks of the cosines. No
classifier, unless one of x and s is asked for, as public code offers. Our reconstruction: the
paper's 1 / (1 + exp(<x, s+> - <x, s->)) is replaced by softplus as in public code; the scale is
ours (the plain sum over codebooks would be scale = M, and larger ones did better on pooled ImageNet
features of CUB, with queries held out of the training split); embeddings are centred by batch norm
and codebooks start by k-means, as PHPQ's do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from phpq.codes import Codebooks
from phpq.config import RunConfig
from phpq.methods.hashing import other_images, similar_pairs
from phpq.model.backbone import build_backbone
from phpq.model.method import (
    EpochChange,
    Learned,
    Method,
    TrainingSet,
    check_option,
    read_options,
)
from phpq.model.quantizer import ProductQuantizer


@dataclass(frozen=True, slots=True)
class PQNOptions:
    """Numbers of the method.

    Attributes:
        scale: Inverse temperature of the difference of two mean cosines.
        classification: Weight of the cross-entropy of x and of s, by one classifier.
    """

    scale: float = 40.0
    classification: float = 0.0

    def __post_init__(self) -> None:
        check_option("pqn", f"scale={self.scale}", "above 0", good=self.scale > 0)
        weight = self.classification
        check_option("pqn", f"classification={weight}", "0 or more", good=weight >= 0)


class PQN(Method):
    """A product quantizer whose triplets compare embeddings with reconstructions."""

    terms = ("triplets", "classification")

    def __init__(self, config: RunConfig, num_classes: int, *, load_weights: bool = True) -> None:
        super().__init__()
        self.options = read_options(PQNOptions, config.method)
        self.config = config
        self.query_norm = config.quantizer.query_norm
        dim = self.embedding_dim = config.model.embedding_dim
        self.backbone = build_backbone(
            replace(config.model, levels=1, rho=(1.0,)), load_weights=load_weights
        )
        self.transform = nn.Linear(self.backbone.channels[-1], dim)
        centred = config.model.embedding_norm == "batch"
        self.norm = nn.BatchNorm1d(dim, affine=False) if centred else nn.Identity()
        full = replace(config.quantizer, kappa=config.quantizer.codebook_size)
        self.quantizer = ProductQuantizer(full, dim)
        if self.options.classification:
            self.classifier = nn.Linear(dim, num_classes)

    def extract(self, images: Tensor) -> Tensor:
        """Return the embeddings (B, D) float32."""
        pyramid = self.backbone(images)
        with torch.autocast(images.device.type, enabled=False):
            pooled = pyramid[-1].float().mean((2, 3))
            return cast(Tensor, self.norm(self.transform(pooled)))

    def objective(self, extracted: Tensor, labels: Tensor, rows: Tensor) -> Learned:
        """Compare each embedding with the soft reconstructions of the others."""
        anchors = self.quantizer.split(extracted).flatten(1)
        soft = cast(Tensor, self.quantizer(extracted))
        scale = self.options.scale / self.quantizer.config.num_codebooks
        triplets = asymmetric_triplet_loss(anchors, soft, labels, scale)
        codes = self.quantizer.encode(extracted.detach()).to(torch.uint8)
        classification = torch.zeros_like(triplets)
        if self.options.classification:
            for vectors in (anchors, soft):
                logits = self.classifier(vectors) / self.config.loss.tau
                classification = classification + F.cross_entropy(logits, labels)
        total = triplets + self.options.classification * classification
        return Learned(total, (triplets, classification), codes)

    def embed(self, images: Tensor, *, mirrored: bool = False) -> Tensor:
        """Return the embeddings (B, D) float32 of pixels (B, 3, H, W) in [0, 1]."""
        embedding = self.extract(images)
        if not mirrored:
            return embedding
        # Unit sub-vectors, so that neither view outweighs the other.
        mirror = self.quantizer.split(self.extract(images.flip(-1)))
        return (self.quantizer.split(embedding) + mirror).flatten(1) / 2

    def prepare_epoch(self, epoch: int, training: TrainingSet) -> EpochChange:
        """Start the codebooks before the first epoch."""
        if epoch or self.config.quantizer.init != "kmeans":
            return EpochChange()
        training.message("starting the codebooks by k-means")
        self.quantizer.fit(training.embed(), seed=training.seed)
        return EpochChange(adopt=("quantizer",))

    def export(self) -> Codebooks:
        """Return the codebooks for the numpy side."""
        return self.quantizer.export()


def asymmetric_triplet_loss(
    anchors: Tensor, reconstructions: Tensor, labels: Tensor, scale: float
) -> Tensor:
    """Average log(1 + exp(scale (<x, s-> - <x, s+>))) over all triplets of a batch.

    Args:
        anchors: x (B, D).
        reconstructions: s (B, D).
        labels: (B,) int64.
        scale: Of the inner products.
    """
    products = scale * (anchors @ reconstructions.T)  # (B, B): image against reconstruction
    similar = similar_pairs(labels)
    positive = (similar * other_images(labels))[:, :, None]  # (B, P, 1)
    triplets = positive * (1 - similar)[:, None, :]  # (B, P, N)
    losses = F.softplus(products[:, None, :] - products[:, :, None])
    return (losses * triplets).sum() / triplets.sum().clamp(min=1)
