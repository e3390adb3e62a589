"""The trainable network: images -> backbone -> hybrid pooling -> embedding -> soft quantization.

In: pixels in [0, 1], (B, 3, H, W). Out: `RetrievalOutput` while training, embeddings for search.
The terms of the objective follow: tensors in, a scalar out; no data-dependent shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from phpq.codes import Codebooks
from phpq.config import LossConfig, ModelConfig
from phpq.model.method import EpochChange, Learned, Method, MethodSetup, TrainingSet
from phpq.model.pooling import PyramidHybridPooling
from phpq.model.quantizer import ProductQuantizer

# Keeps the gradient of the root finite where two reconstructions are equal, which is common.
EPSILON = 1e-8


@dataclass(frozen=True, slots=True)
class RetrievalOutput:
    """What one training batch yields."""

    embedding: Tensor  # (B, D) float32
    reconstruction: Tensor  # (B, D) float32, soft
    logits: Tensor  # (B, classes) of the reconstruction
    embedding_logits: Tensor  # (B, classes) of the unit sub-vectors, not quantized


class QuantizedMethod(Method):
    """A method whose embeddings are encoded by its `quantizer`."""

    quantizer: ProductQuantizer

    def embed(self, images: Tensor, *, mirrored: bool = False) -> Tensor:
        """Return the embeddings (B, D) float32 of pixels (B, 3, H, W) in [0, 1]."""
        embedding: Tensor = self.extract(images)
        if not mirrored:
            return embedding
        # Unit sub-vectors, so that neither view outweighs the other.
        both = self.quantizer.split(embedding) + self.quantizer.split(self.extract(images.flip(-1)))
        return both.flatten(1) / 2

    def export(self) -> Codebooks:
        """Return the codebooks for the numpy side."""
        return self.quantizer.export()


class Network(QuantizedMethod):
    """PHPQ from pixels to soft reconstructions and class logits."""

    terms = ("classification", "contrastive", "embedding")

    def __init__(self, setup: MethodSetup) -> None:
        super().__init__(setup)
        model = setup.model
        self.query_norm = setup.quantizer.query_norm
        dim = self.embedding_dim = model.embedding_dim
        self.backbone = setup.build_backbone()
        self.pooling, self.transform, self.norm = embedding_layers(self.backbone.channels, model)
        self.quantizer = ProductQuantizer(setup.quantizer, dim)
        self.classifier = nn.Linear(dim, setup.num_classes)
        self.quantized = True  # False: learn on embeddings, before the codebooks start

    def extract(self, images: Tensor) -> Tensor:
        """Return the embeddings (B, D)."""
        pyramid = self.backbone(images)
        # The head is small and sensitive: it is computed in float32.
        with torch.autocast(images.device.type, enabled=False):
            return cast(Tensor, self.norm(self.transform(self.pooling(pyramid))))

    def compress(self, pyramid: list[Tensor]) -> list[Tensor]:
        """Pool each level to one cell, which pooling keeps, unless the focus is learned."""
        if self.pooling.focus is not None:
            return pyramid
        return [pooled[..., None, None] for pooled in self.pooling.pool(pyramid)]

    def objective(self, extracted: Tensor, labels: Tensor, rows: Tensor) -> Learned:
        """Classify and contrast the soft reconstructions of a batch."""
        output = self.quantize(extracted, softly=self.quantized)
        terms = phpq_loss(output, labels, self.setup.loss, self.setup.quantizer.num_codebooks)
        codes = self.quantizer.encode(extracted.detach()).to(torch.uint8)
        parts = terms.classification, terms.contrastive, terms.embedding
        return Learned(terms.total, parts, codes)

    def prepare_epoch(self, epoch: int, training: TrainingSet) -> EpochChange:
        """Initialise the codebooks before their first epoch; until then, learn without them."""
        first = self.setup.codebook_epoch
        before = self.quantized, self.quantizer.kappa
        self.quantized = epoch >= first
        progress = max(0, epoch - first) / max(1, training.epochs - first)
        self.quantizer.kappa = self.quantizer.kappa_at(progress)
        if epoch == first and self.setup.quantizer.init == "kmeans":
            training.message("starting the codebooks by k-means")
            self.quantizer.fit(training.embed(), seed=training.seed)
        adopt = ("quantizer",) if epoch == first else ()
        now = self.quantized, self.quantizer.kappa
        return EpochChange(adopt=adopt, new_step=before != now)

    def compiled_parts(self) -> tuple[nn.Module, ...]:
        """Return backbone and pooling."""
        return (self.backbone, self.pooling)

    def quantize(self, embedding: Tensor, *, softly: bool = True) -> RetrievalOutput:
        """Quantize (B, D) embeddings softly and classify both forms of them.

        If not `softly`, the unit sub-vectors are their own reconstruction.
        """
        split = self.quantizer.split
        with torch.autocast(embedding.device.type, enabled=False):
            reconstruction = self.quantizer(embedding) if softly else split(embedding).flatten(1)
            return RetrievalOutput(
                embedding=embedding,
                reconstruction=reconstruction,
                logits=self.classifier(reconstruction),
                embedding_logits=self.classifier(split(embedding).flatten(1)),
            )

    def forward(self, images: Tensor) -> RetrievalOutput:
        """Embed, quantize softly and classify one batch of pixels in [0, 1]."""
        return self.quantize(self.embed(images))


def embedding_layers(
    channels: Sequence[int], model: ModelConfig
) -> tuple[PyramidHybridPooling, nn.Linear, nn.Module]:
    """Create what makes the embedding of a pyramid: pooling, transformation and norm."""
    dim = model.embedding_dim
    pooling = PyramidHybridPooling(channels, model.rho, kind=model.pooling, mode=model.rho_mode)
    # Centred embeddings use the whole sphere. Uncentred ones share one direction, and the
    # codebooks then collapse onto a handful of codewords.
    centred = model.embedding_norm == "batch"
    norm = nn.BatchNorm1d(dim, affine=False) if centred else nn.Identity()
    return pooling, nn.Linear(channels[-1], dim), norm


class LossTerms(NamedTuple):
    """The objective and its parts, each a scalar tensor."""

    total: Tensor
    classification: Tensor  # of reconstructions
    contrastive: Tensor
    embedding: Tensor  # the same classification of z, before it is quantized; not in the paper


def phpq_loss(
    output: RetrievalOutput, labels: Tensor, config: LossConfig, num_codebooks: int
) -> LossTerms:
    """Combine the terms of a batch with labels (B,) int64 by the weights of the config.

    Margins of the config are in units of sqrt(M), M the number of codebooks.
    """
    classification = classification_loss(output.logits, labels, config.tau, config.label_smoothing)
    contrastive = contrastive_loss(
        output.reconstruction,
        labels,
        positive_margin=config.positive_margin * num_codebooks**0.5,
        negative_margin=config.negative_margin * num_codebooks**0.5,
        positive_mean=config.positive_mean,
    )
    embedding = classification_loss(
        output.embedding_logits, labels, config.tau, config.label_smoothing
    )
    total = classification + config.gamma * contrastive + config.embedding_weight * embedding
    return LossTerms(total, classification, contrastive, embedding)


def classification_loss(
    logits: Tensor, labels: Tensor, tau: float, smoothing: float = 0.0
) -> Tensor:
    """Cross-entropy of (B, classes) logits divided by the temperature tau."""
    return F.cross_entropy(logits / tau, labels, label_smoothing=smoothing)


def contrastive_loss(
    reconstructions: Tensor,
    labels: Tensor,
    *,
    positive_margin: float,
    negative_margin: float,
    positive_mean: Literal["true", "paper"] = "true",
) -> Tensor:
    """Pull each class together and push it from the rest of the batch, by mean distances.

    For each class c of the batch: max(d+ - m+, 0) + max(m- - d-, 0), where d+ is the mean distance
    inside the class and d- that from the class to all others; then the mean over the classes.

    A class with one image has no d+; a batch of one class has no d-. The mean "true" divides d+ by
    the n(n-1) terms that it sums, "paper" by n^2. Takes (B, D) float32 and (B,) int64.
    """
    same = (labels[:, None] == labels[None, :]).float()  # (B, B)
    distances = _pairwise_distances(reconstructions)
    size = same.sum(1)  # images of the class of each row
    others = len(labels) - size
    # Row sums, summed over the rows of a class: every row holds the total of its class.
    inside = same @ (same * distances).sum(1)
    outside = same @ ((1 - same) * distances).sum(1)
    pairs = size * (size - 1) if positive_mean == "true" else size * size
    positive = inside / pairs.clamp(min=1)
    negative = outside / (size * others).clamp(min=1)
    hinge = F.relu(positive - positive_margin) * (size > 1)
    hinge = hinge + F.relu(negative_margin - negative) * (others > 0)
    weight = 1 / size  # each class has weight one
    return (weight * hinge).sum() / weight.sum()


def _pairwise_distances(points: Tensor) -> Tensor:
    """Euclidean distances (B, B) with zeros on the diagonal and a finite gradient everywhere."""
    off_diagonal = 1 - torch.eye(len(points), device=points.device)
    return (squared_distances(points) + EPSILON).sqrt() * off_diagonal


def squared_distances(points: Tensor) -> Tensor:
    """Return the squared distances (B, B) between all rows of (B, D)."""
    square = points.square().sum(1)
    return (square[:, None] + square[None, :] - 2 * points @ points.T).clamp(min=0)
