"""PQN (Yu et al., ECCV 2018): product quantization learned by asymmetric triplets.

Soft assignment is PHPQ's with full attention (every codeword takes part). The anchor stays x, its
partners are soft reconstructions s: L = mean over the triplets of a batch of
log(1 + exp(scale (<x, s-> - <x, s+>))), <.,.> being the mean over codebooks of the cosines. No
classifier, unless the option `classification` adds one of x and s, as in public code. Ours: the
paper's 1 / (1 + exp(<x, s+> - <x, s->)) is replaced by softplus as in public code; the scale is
ours (the plain sum over codebooks would be scale = M, and larger ones did better on pooled ImageNet
features of CUB, with queries held out of the training split); embeddings are centred by batch norm
and codebooks start by k-means, as PHPQ's do.
"""

from dataclasses import replace
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from phpq.config import option
from phpq.methods._hashing import triplet_mask
from phpq.model.method import EpochChange, Learned, MethodSetup, TrainingSet
from phpq.model.network import QuantizedMethod
from phpq.model.pooling import average_cells
from phpq.model.quantizer import ProductQuantizer


class PQN(QuantizedMethod):
    """A product quantizer whose triplets compare embeddings with reconstructions."""

    terms = ("triplets", "classification")
    scale: float = option(40.0, "above 0")  # inverse temperature of a difference of mean cosines
    classification: float = option(0.0, "0 or more")  # weight of the cross-entropy of x and s

    def __init__(self, setup: MethodSetup) -> None:
        super().__init__(setup)
        self.query_norm = setup.quantizer.query_norm
        dim = self.embedding_dim = setup.model.embedding_dim
        self.backbone = setup.build_backbone(levels=1)
        self.transform = nn.Linear(self.backbone.channels[-1], dim)
        centred = setup.model.embedding_norm == "batch"
        self.norm = nn.BatchNorm1d(dim, affine=False) if centred else nn.Identity()
        full = replace(setup.quantizer, kappa=setup.quantizer.codebook_size)
        self.quantizer = ProductQuantizer(full, dim)
        if self.classification:
            self.classifier = nn.Linear(dim, setup.num_classes)

    def compress(self, pyramid: list[Tensor]) -> list[Tensor]:
        """Average each level to one cell."""
        return average_cells(pyramid)

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
        scale = self.scale / self.quantizer.config.num_codebooks
        triplets = asymmetric_triplet_loss(anchors, soft, labels, scale)
        codes = self.quantizer.encode(extracted.detach()).to(torch.uint8)
        classification = torch.zeros_like(triplets)
        if self.classification:
            for vectors in (anchors, soft):
                logits = self.classifier(vectors) / self.setup.loss.tau
                classification = classification + F.cross_entropy(logits, labels)
        total = triplets + self.classification * classification
        return Learned(total, (triplets, classification), codes)

    def prepare_epoch(self, epoch: int, training: TrainingSet) -> EpochChange:
        """Initialise the codebooks before the first epoch."""
        if epoch or self.setup.quantizer.init != "kmeans":
            return EpochChange()
        training.message("starting the codebooks by k-means")
        self.quantizer.fit(training.embed(), seed=training.seed)
        return EpochChange(adopt=("quantizer",))


def asymmetric_triplet_loss(
    anchors: Tensor, reconstructions: Tensor, labels: Tensor, scale: float
) -> Tensor:
    """Average log(1 + exp(scale (<x, s-> - <x, s+>))) of x and s (B, D) over all triplets."""
    products = scale * (anchors @ reconstructions.T)  # (B, B): image against reconstruction
    triplets = triplet_mask(labels)
    losses = F.softplus(products[:, None, :] - products[:, :, None])
    return (losses * triplets).sum() / triplets.sum().clamp(min=1)
