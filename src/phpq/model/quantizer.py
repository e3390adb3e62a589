"""Embeddings to codes: product quantization learned with partial codebook attention.

In: embeddings z (B, D). Out: the soft reconstruction (B, D) while training, differentiable in z and
in the codebooks; for search, the index of the nearest codeword of each codebook (B, M).
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from phpq.codes import Codebooks
from phpq.config import QuantizerConfig


class ProductQuantizer(nn.Module):
    """M learnable codebooks of K unit codewords each."""

    def __init__(self, config: QuantizerConfig, embedding_dim: int) -> None:
        super().__init__()
        self.config = config
        self.kappa = config.kappa  # of the current epoch; `kappa_at` is its schedule
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
        """Return kappa after a share of the epochs with codebooks.

        "anneal" halves it from K to kappa in equal intervals. Each value costs a new captured step.
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
        """Initialise the codebooks by spherical k-means of (N, D) embeddings."""
        parts = self.split(embeddings)
        size = self.config.codebook_size
        for book in range(self.config.num_codebooks):
            self.codebooks[book] = spherical_kmeans(parts[:, book], size, seed=seed * 1000 + book)

    @torch.no_grad()
    def export(self) -> Codebooks:
        """Return the codebooks for the numpy side."""
        return Codebooks(np.ascontiguousarray(self.codewords().float().cpu().numpy()))


def partial_attention(logits: Tensor, kappa: int) -> Tensor:
    """Softmax over the kappa largest logits of each row (..., K); the others get exactly zero.

    The same as softmax, mask, renormalise, but stable when the kept probabilities are tiny.
    """
    if kappa >= logits.shape[-1]:
        return logits.softmax(-1)
    # Indices, not a threshold: equal logits at the border must not let more than kappa in.
    kept = logits.detach().topk(kappa, dim=-1, sorted=False).indices
    mask = torch.ones_like(logits, dtype=torch.bool).scatter(-1, kept, False)
    return logits.masked_fill(mask, float("-inf")).softmax(-1)


def nucleus_attention(logits: Tensor, kappa: int, *, mass: float) -> Tensor:
    """Softmax over the fewest largest logits of each row that hold `mass` of the full softmax.

    A confident row of (..., K) keeps one codeword, others more, at most kappa; a mass of 1 keeps
    kappa. Shapes do not depend on how many are kept.
    """
    if mass >= 1:
        return partial_attention(logits, kappa)
    fixed = logits.detach()
    top, order = fixed.topk(min(kappa, logits.shape[-1]), dim=-1)  # largest first
    shares = (top - fixed.logsumexp(-1, keepdim=True)).exp()
    # A codeword is left out if larger ones hold the mass already; the first never is.
    left_out = shares.cumsum(-1) - shares >= mass
    mask = torch.ones_like(logits, dtype=torch.bool).scatter(-1, order, left_out)
    return logits.masked_fill(mask, float("-inf")).softmax(-1)


@torch.no_grad()
def spherical_kmeans(
    points: Tensor, num_clusters: int, *, seed: int, iterations: int = 25
) -> Tensor:
    """Cluster unit vectors by cosine.

    An empty cluster moves to the point with the lowest cosine to its centre; a cluster whose points
    cancel out stays. With fewer points than clusters, the surplus centres are points with a little
    noise, so that no two are equal. Takes (N, d) float32 of unit length, or zero for a dead
    sub-vector, and returns (K, d) float32 of unit length.
    """
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(points), generator=generator)
    picks = order.repeat(-(-num_clusters // len(points)))[:num_clusters]
    centres = points[picks.to(points.device)].clone()
    if num_clusters > len(points):
        noise = torch.randn(centres.shape, generator=generator).to(centres)
        return F.normalize(centres + 0.05 * F.normalize(noise, dim=-1), dim=-1)
    anywhere = F.normalize(torch.randn(centres.shape, generator=generator), dim=-1).to(centres)
    centres = torch.where(_not_zero(centres), centres, anywhere)
    for _ in range(iterations):
        cosines, nearest = (points @ centres.T).max(1)
        sums = torch.zeros_like(centres).index_add_(0, nearest, points)
        counts = torch.bincount(nearest, minlength=num_clusters)
        empty = (counts == 0).nonzero().flatten()
        if len(empty):
            worst = cosines.topk(len(empty), largest=False).indices
            sums[empty] = points[worst]
        centres = torch.where(_not_zero(sums), F.normalize(sums, dim=-1), centres)
    return centres


def _not_zero(vectors: Tensor) -> Tensor:
    """Tell which rows of (K, d) are not zero, up to rounding: (K, 1) bool."""
    lengths: Tensor = vectors.norm(dim=-1, keepdim=True)
    return lengths > 1e-6
