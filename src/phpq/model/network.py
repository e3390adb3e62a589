"""The trainable network: images -> backbone -> hybrid pooling -> embedding -> soft quantization.

In: pixels in [0, 1], (B, 3, H, W). Out: `RetrievalOutput` while training, embeddings for search.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from phpq.config import ModelConfig, QuantizerConfig
from phpq.model.backbone import build_backbone
from phpq.model.pooling import PyramidHybridPooling
from phpq.model.quantizer import ProductQuantizer


@dataclass(frozen=True, slots=True)
class RetrievalOutput:
    """What one training batch yields."""

    embedding: Tensor  # (B, D) float32
    reconstruction: Tensor  # (B, D) float32, soft
    logits: Tensor  # (B, classes) of the reconstruction
    embedding_logits: Tensor  # (B, classes) of the unit sub-vectors, not quantized


class Network(nn.Module):
    """PHPQ from pixels to soft reconstructions and class logits."""

    def __init__(
        self,
        model: ModelConfig,
        quantizer: QuantizerConfig,
        num_classes: int,
        *,
        load_weights: bool = True,
    ) -> None:
        super().__init__()
        self.backbone = build_backbone(model, load_weights=load_weights)
        self.pooling = PyramidHybridPooling(self.backbone.channels, model.rho, kind=model.pooling)
        self.transform = nn.Linear(self.backbone.channels[-1], model.embedding_dim)
        # Centred embeddings use the whole sphere. Uncentred ones share one direction, and the
        # codebooks then collapse onto a handful of codewords.
        self.norm: nn.Module = (
            nn.BatchNorm1d(model.embedding_dim, affine=False)
            if model.embedding_norm == "batch"
            else nn.Identity()
        )
        self.quantizer = ProductQuantizer(quantizer, model.embedding_dim)
        self.classifier = nn.Linear(model.embedding_dim, num_classes)

    def embed(self, images: Tensor) -> Tensor:
        """Return the embeddings (B, D) float32 of pixels (B, 3, H, W) in [0, 1]."""
        pyramid = self.backbone(self.backbone.normalise(images))
        # Small and sensitive: the head is computed in float32 whatever the backbone ran in.
        with torch.autocast(images.device.type, enabled=False):
            return cast(Tensor, self.norm(self.transform(self.pooling(pyramid))))

    def quantize(self, embedding: Tensor) -> RetrievalOutput:
        """Quantize (B, D) embeddings softly and classify both forms of them."""
        with torch.autocast(embedding.device.type, enabled=False):
            return self._output(embedding, self.quantizer(embedding))

    def pass_through(self, embedding: Tensor) -> RetrievalOutput:
        """Take the unit sub-vectors for their own reconstruction: training without codebooks."""
        with torch.autocast(embedding.device.type, enabled=False):
            return self._output(embedding, self.quantizer.split(embedding).flatten(1))

    def _output(self, embedding: Tensor, reconstruction: Tensor) -> RetrievalOutput:
        return RetrievalOutput(
            embedding=embedding,
            reconstruction=reconstruction,
            logits=self.classifier(reconstruction),
            embedding_logits=self.classifier(self.quantizer.split(embedding).flatten(1)),
        )

    def forward(self, images: Tensor) -> RetrievalOutput:
        """Embed, quantize softly and classify one batch of pixels in [0, 1]."""
        return self.quantize(self.embed(images))

    def parameter_groups(self, rate: float, head_factor: float) -> list[dict[str, object]]:
        """Split the parameters: the backbone at `rate`, all that starts from nothing faster."""
        trunk = list(self.backbone.parameters())
        known = {id(p) for p in trunk}
        head = [p for p in self.parameters() if id(p) not in known]
        return [
            {"params": trunk, "base_rate": rate},
            {"params": head, "base_rate": rate * head_factor},
        ]
