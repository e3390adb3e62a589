"""Spherical k-means: the laws of its centres."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from phpq.model.kmeans import spherical_kmeans


def unit_points(count: int, dim: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(count, dim, generator=generator), dim=-1)


def objective(points: Tensor, centres: Tensor) -> float:
    """Mean cosine of each point to its centre, one pair after another."""
    best = [max(float(point @ centre) for centre in centres) for point in points]
    return sum(best) / len(best)


@pytest.mark.parametrize(("count", "clusters"), [(60, 8), (64, 64), (5, 16), (1, 4), (7, 1)])
def test_centres_are_unit_rows(count: int, clusters: int) -> None:
    centres = spherical_kmeans(unit_points(count, 6), clusters, seed=0)
    assert centres.shape == (clusters, 6)
    assert centres.dtype == torch.float32
    torch.testing.assert_close(centres.norm(dim=1), torch.ones(clusters))


@pytest.mark.parametrize("seed", range(5))
def test_no_cluster_is_empty(seed: int) -> None:
    points = unit_points(120, 4, seed)
    centres = spherical_kmeans(points, 32, seed=seed)
    assert torch.bincount((points @ centres.T).argmax(1), minlength=32).min() >= 1


def test_clusters_that_start_on_equal_points_are_moved_to_others() -> None:
    # Most points are one and the same, so most starting picks are equal and lose all their points.
    points = torch.cat([unit_points(1, 5).expand(90, 5), unit_points(10, 5, seed=1)])
    centres = spherical_kmeans(points, 8, seed=0)
    used = torch.bincount((points @ centres.T).argmax(1), minlength=8)
    assert (used > 0).sum() == 8


@pytest.mark.parametrize("seed", range(3))
def test_objective_beats_random_picks_and_never_falls(seed: int) -> None:
    points = unit_points(80, 5, seed)
    picks = points[torch.randperm(80, generator=torch.Generator().manual_seed(seed))[:8]]
    values = [
        objective(points, spherical_kmeans(points, 8, seed=seed, iterations=n))
        for n in (1, 2, 4, 8, 25)
    ]
    assert values[0] > objective(points, picks)
    assert all(later >= earlier - 1e-6 for earlier, later in itertools.pairwise(values))


def test_separate_clusters_are_found() -> None:
    axes = torch.eye(6)
    noise = 0.05 * unit_points(60, 6)
    points = F.normalize(axes.repeat(10, 1) + noise, dim=-1)
    centres = spherical_kmeans(points, 6, seed=3)
    assert sorted((centres @ axes.T).argmax(1).tolist()) == list(range(6))


def test_fewer_points_than_clusters_keeps_each_point_and_repeats_none() -> None:
    points = unit_points(5, 8)
    centres = spherical_kmeans(points, 16, seed=0)
    assert ((points @ centres.T).max(1).values > 0.99).all()
    assert len({tuple(row) for row in centres.tolist()}) == 16


def test_equal_seeds_give_equal_centres_and_others_do_not() -> None:
    points = unit_points(50, 4)
    first, again = (spherical_kmeans(points, 8, seed=5) for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(first, spherical_kmeans(points, 8, seed=6))


def test_points_that_cancel_out_or_are_zero_still_give_unit_centres() -> None:
    opposite = torch.tensor([[1.0, 0.0], [-1.0, 0.0]]).repeat(4, 1)
    dead = torch.zeros(20, 3)
    for points, clusters in ((opposite, 1), (dead, 4)):
        centres = spherical_kmeans(points, clusters, seed=0)
        torch.testing.assert_close(centres.norm(dim=1), torch.ones(clusters))


def test_the_callers_points_are_left_alone() -> None:
    points = unit_points(30, 4)
    before = points.clone()
    spherical_kmeans(points, 8, seed=0)
    assert torch.equal(points, before)
