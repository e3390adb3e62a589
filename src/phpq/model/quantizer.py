"""Embeddings to codes: product quantization learned with partial codebook attention.

In: embeddings z (B, D). While training, out comes the soft reconstruction (B, D), differentiable in
z and in the codebooks; for encoding, the index of the nearest codeword of each codebook (B, M).
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from phpq.codes import Codebooks
from phpq.config import QuantizerConfig
from phpq.model.kmeans import spherical_kmeans


class ProductQuantizer(nn.Module):
    """M learnable codebooks of K unit codewords each."""

    def __init__(self, config: QuantizerConfig, embedding_dim: int) -> None:
        super().__init__()
        self.config = config
        self.kappa = config.kappa  # that takes part now; a schedule may change it between epochs
        books, size = config.num_codebooks, config.codebook_size
        self.codebooks = nn.Parameter(torch.empty(books, size, embedding_dim // books))
        for book in self.codebooks.data:
            nn.init.xavier_uniform_(book)
        self.codebooks.data = F.normalize(self.codebooks.data, dim=-1)

    def split(self, embeddings: Tensor) -> Tensor:
        """Cut (B, D) into M sub-vectors of unit length, (B, M, d) float32."""
        books, _, sub_dim = self.codebooks.shape
        return F.normalize(embeddings.float().reshape(-1, books, sub_dim), dim=-1)

    def codewords(self) -> Tensor:
        """Return the unit codewords (M, K, d); gradients flow to the codebooks' tangent."""
        return F.normalize(self.codebooks, dim=-1)

    def forward(self, embeddings: Tensor) -> Tensor:
        """Return the soft reconstructions (B, D) of (B, D) embeddings."""
        codewords = self.codewords()
        cosines = torch.einsum("bmd,mkd->bmk", self.split(embeddings), codewords)
        weights = self.attend(2 * self.config.alpha * cosines)  # (B, M, K)
        return torch.einsum("bmk,mkd->bmd", weights, codewords).flatten(1)

    def attend(self, logits: Tensor) -> Tensor:
        """Turn logits (..., K) into weights (..., K) by the attention that the config names."""
        if self.config.kappa_mode == "nucleus":
            return nucleus_attention(logits, self.kappa, mass=self.config.nucleus_mass)
        return partial_attention(logits, self.kappa)

    def kappa_at(self, progress: float) -> int:
        """Return how many codewords take part when a share of the epochs is over.

        "anneal" halves from K down to kappa, in equal times: few values, for each makes a new step.

        Args:
            progress: 0 before the first epoch with codebooks, 1 after the last.
        """
        size, least = self.config.codebook_size, self.config.kappa
        if self.config.kappa_mode != "anneal":
            return least
        falls = math.ceil(math.log2(size / least))  # the last one ends at kappa itself
        fallen = int(falls * min(1.0, progress / self.config.anneal_share))
        return max(least, size >> fallen)

    @torch.no_grad()
    def encode(self, embeddings: Tensor) -> Tensor:
        """Return the nearest codewords of (B, D) embeddings: (B, M) int64."""
        cosines = torch.einsum("bmd,mkd->bmk", self.split(embeddings), self.codewords())
        return cosines.argmax(-1)

    @torch.no_grad()
    def fit(self, embeddings: Tensor, *, seed: int) -> None:
        """Start the codebooks where the data is: spherical k-means of (N, D) embeddings."""
        parts = self.split(embeddings)
        for book in range(self.config.num_codebooks):
            centres = spherical_kmeans(
                parts[:, book], self.config.codebook_size, seed=seed * 1000 + book
            )
            self.codebooks[book] = centres

    @torch.no_grad()
    def export(self) -> Codebooks:
        """Return the codebooks for the numpy side."""
        return Codebooks(np.ascontiguousarray(self.codewords().float().cpu().numpy()))


def partial_attention(logits: Tensor, kappa: int) -> Tensor:
    """Softmax over the kappa largest logits of each row; the others get exactly zero.

    The same as softmax, mask, renormalise, but stable when the kept probabilities are tiny.

    Args:
        logits: (..., K) float32.
        kappa: How many take part; K is the plain softmax.

    Returns:
        (..., K) float32 whose rows sum to 1.
    """
    if kappa >= logits.shape[-1]:
        return logits.softmax(-1)
    # Indices, not a threshold: equal logits at the border must not let more than kappa in.
    kept = logits.detach().topk(kappa, dim=-1, sorted=False).indices
    mask = torch.ones_like(logits, dtype=torch.bool).scatter(-1, kept, False)
    return logits.masked_fill(mask, float("-inf")).softmax(-1)


def nucleus_attention(logits: Tensor, kappa: int, *, mass: float) -> Tensor:
    """Softmax over the fewest largest logits of each row that hold `mass` of the full softmax.

    A sure row keeps one codeword, a doubtful one more, but never more than kappa. Shapes do not
    depend on how many are kept.

    Args:
        logits: (..., K) float32.
        kappa: The most that may take part.
        mass: In (0, 1]; 1 keeps kappa.

    Returns:
        (..., K) float32 whose rows sum to 1.
    """
    if mass >= 1:
        return partial_attention(logits, kappa)
    fixed = logits.detach()
    top, order = fixed.topk(min(kappa, logits.shape[-1]), dim=-1)  # largest first
    shares = (top - fixed.logsumexp(-1, keepdim=True)).exp()
    # A codeword is left out if those before it hold the mass already: never the first.
    left_out = shares.cumsum(-1) - shares >= mass
    mask = torch.ones_like(logits, dtype=torch.bool).scatter(-1, order, left_out)
    return logits.masked_fill(mask, float("-inf")).softmax(-1)
