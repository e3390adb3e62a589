"""The trainable network: images -> backbone -> hybrid pooling -> embedding -> soft quantization.

In: pixels in [0, 1], (B, 3, H, W). Out: `RetrievalOutput` while training, embeddings for search.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from phpq.codes import Codebooks
from phpq.losses import phpq_loss
from phpq.model.method import EpochChange, Learned, Method, MethodSetup, TrainingSet
from phpq.model.pooling import PyramidHybridPooling
from phpq.model.quantizer import ProductQuantizer


@dataclass(frozen=True, slots=True)
class RetrievalOutput:
    """What one training batch yields."""

    embedding: Tensor  # (B, D) float32
    reconstruction: Tensor  # (B, D) float32, soft
    logits: Tensor  # (B, classes) of the reconstruction
    embedding_logits: Tensor  # (B, classes) of the unit sub-vectors, not quantized


class Network(Method):
    """PHPQ from pixels to soft reconstructions and class logits."""

    terms = ("classification", "contrastive")

    def __init__(self, setup: MethodSetup) -> None:
        super().__init__(setup)
        model = setup.model
        self.query_norm = setup.quantizer.query_norm
        self.embedding_dim = model.embedding_dim
        self.backbone = setup.build_backbone()
        self.pooling = PyramidHybridPooling(
            self.backbone.channels, model.rho, kind=model.pooling, mode=model.rho_mode
        )
        self.transform = nn.Linear(self.backbone.channels[-1], model.embedding_dim)
        # Centred embeddings use the whole sphere. Uncentred ones share one direction, and the
        # codebooks then collapse onto a handful of codewords.
        self.norm: nn.Module = (
            nn.BatchNorm1d(model.embedding_dim, affine=False)
            if model.embedding_norm == "batch"
            else nn.Identity()
        )
        self.quantizer = ProductQuantizer(setup.quantizer, model.embedding_dim)
        self.classifier = nn.Linear(model.embedding_dim, setup.num_classes)
        self.quantized = True  # False: learn on embeddings, before the codebooks start

    def embed(self, images: Tensor, *, mirrored: bool = False) -> Tensor:
        """Return the embeddings (B, D) float32 of pixels (B, 3, H, W) in [0, 1]."""
        embedding = self._embed(images)
        if not mirrored:
            return embedding
        # Unit sub-vectors, so that neither view outweighs the other.
        both = self.quantizer.split(embedding) + self.quantizer.split(self._embed(images.flip(-1)))
        return both.flatten(1) / 2

    def _embed(self, images: Tensor) -> Tensor:
        pyramid = self.backbone(images)
        # Small and sensitive: the head is computed in float32 whatever the backbone ran in.
        with torch.autocast(images.device.type, enabled=False):
            return cast(Tensor, self.norm(self.transform(self.pooling(pyramid))))

    def extract(self, images: Tensor) -> Tensor:
        """Return the embeddings (B, D), quantized or not yet."""
        return self._embed(images)

    def objective(self, extracted: Tensor, labels: Tensor, rows: Tensor) -> Learned:
        """Classify and contrast the soft reconstructions of a batch."""
        output = self.quantize(extracted, softly=self.quantized)
        terms = phpq_loss(output, labels, self.setup.loss, self.setup.quantizer.num_codebooks)
        codes = self.quantizer.encode(extracted.detach()).to(torch.uint8)
        return Learned(terms.total, (terms.classification, terms.contrastive), codes)

    def prepare_epoch(self, epoch: int, training: TrainingSet) -> EpochChange:
        """Start the codebooks when their epoch has come; before it, learn without them."""
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

    def export(self) -> Codebooks:
        """Return the codebooks for the numpy side."""
        return self.quantizer.export()

    def compiled_parts(self) -> tuple[nn.Module, ...]:
        """Return backbone and pooling."""
        return (self.backbone, self.pooling)

    def quantize(self, embedding: Tensor, *, softly: bool = True) -> RetrievalOutput:
        """Quantize (B, D) embeddings softly and classify both forms of them.

        Or, for training without codebooks, take the unit sub-vectors for their own reconstruction.
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
