"""Spherical k-means in torch, on the device where the data is; deterministic by seed."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


@torch.no_grad()
def spherical_kmeans(
    points: Tensor, num_clusters: int, *, seed: int, iterations: int = 25
) -> Tensor:
    """Cluster unit vectors by cosine.

    A cluster that loses all its points moves to the point that is worst served; one whose points
    cancel out stays where it was. With fewer points than clusters, the surplus centres are points
    with a little noise, so that no two are equal.

    Args:
        points: (N, d) float32 of unit length; a dead sub-vector may be zero.
        num_clusters: K.
        seed: Fixes the starting points.
        iterations: Lloyd steps.

    Returns:
        (K, d) float32 of unit length.
    """
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(points), generator=generator)
    picks = order.repeat(-(-num_clusters // len(points)))[:num_clusters]
    centres = points[picks.to(points.device)].clone()
    if num_clusters > len(points):
        noise = torch.randn(centres.shape, generator=generator).to(centres)
        return F.normalize(centres + 0.05 * F.normalize(noise, dim=-1), dim=-1)
    anywhere = F.normalize(torch.randn(centres.shape, generator=generator), dim=-1).to(centres)
    centres = torch.where(_directed(centres), centres, anywhere)
    for _ in range(iterations):
        cosines, nearest = (points @ centres.T).max(1)
        sums = torch.zeros_like(centres).index_add_(0, nearest, points)
        counts = torch.bincount(nearest, minlength=num_clusters)
        empty = (counts == 0).nonzero().flatten()
        if len(empty):
            worst = cosines.topk(len(empty), largest=False).indices
            sums[empty] = points[worst]
        centres = torch.where(_directed(sums), F.normalize(sums, dim=-1), centres)
    return centres


def _directed(vectors: Tensor) -> Tensor:
    """Tell which rows of (K, d) have a direction: (K, 1) bool."""
    lengths: Tensor = vectors.norm(dim=-1, keepdim=True)
    return lengths > 1e-6
