"""Soft quantization, attention and encoding against plain loops; the laws of k-means centres."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from phpq.config import QuantizerConfig
from phpq.model.quantizer import (
    ProductQuantizer,
    nucleus_attention,
    partial_attention,
    spherical_kmeans,
)
from reference import attention_loop, encode_loop, reconstruct_loop, unit_loop


def make_quantizer(
    *, books: int = 3, size: int = 8, dim: int = 12, alpha: float = 2.0, kappa: int = 3
) -> ProductQuantizer:
    torch.manual_seed(0)
    config = QuantizerConfig(num_codebooks=books, codebook_size=size, alpha=alpha, kappa=kappa)
    return ProductQuantizer(config, dim)


def embeddings(count: int = 5, dim: int = 12, seed: int = 1) -> torch.Tensor:
    return 3 * torch.randn(count, dim, generator=torch.Generator().manual_seed(seed))


def test_split_gives_unit_sub_vectors_for_each_codebook() -> None:
    # A published implementation normalises over the wrong axis, across the codebooks.
    quantizer, points = make_quantizer(), embeddings()
    parts = quantizer.split(points)
    assert parts.shape == (5, 3, 4)
    torch.testing.assert_close(parts.norm(dim=2), torch.ones(5, 3))
    for row, point in zip(parts, points.tolist(), strict=True):
        for m in range(3):
            expected = unit_loop(point[4 * m : 4 * m + 4])
            torch.testing.assert_close(row[m], torch.tensor(expected), rtol=1e-5, atol=1e-6)


def test_codewords_start_and_stay_unit_whatever_the_parameters_become() -> None:
    quantizer = make_quantizer()
    torch.testing.assert_close(quantizer.codebooks.norm(dim=2), torch.ones(3, 8))
    with torch.no_grad():
        quantizer.codebooks.mul_(torch.rand(3, 8, 1) + 0.5)
    torch.testing.assert_close(quantizer.codewords().norm(dim=2), torch.ones(3, 8))
    np.testing.assert_allclose(np.linalg.norm(quantizer.export().codewords, axis=2), 1.0, rtol=1e-6)


@pytest.mark.parametrize("kappa", [1, 3, 8])
@pytest.mark.parametrize("alpha", [0.5, 4.0, 16.0])
def test_reconstruction_equals_its_twin(alpha: float, kappa: int) -> None:
    quantizer, points = make_quantizer(alpha=alpha, kappa=kappa), embeddings()
    with torch.no_grad():
        quantizer.codebooks.mul_(1.7)  # the twin normalises too
        soft = quantizer(points)
    assert soft.shape == points.shape
    for row, point in zip(soft, points.tolist(), strict=True):
        expected = reconstruct_loop(point, quantizer.codebooks.tolist(), alpha=alpha, kappa=kappa)
        torch.testing.assert_close(row, torch.tensor(expected), rtol=1e-4, atol=1e-5)


def test_reconstruction_ignores_the_length_of_sub_vectors() -> None:
    quantizer, points = make_quantizer(), embeddings()
    torch.testing.assert_close(quantizer(points), quantizer(0.01 * points))


@pytest.mark.parametrize("kappa", [1, 2, 5, 8])
def test_partial_attention_equals_softmax_mask_renormalise(kappa: int) -> None:
    cosines = 2 * torch.rand(6, 8, generator=torch.Generator().manual_seed(0)) - 1
    weights = partial_attention(2 * 4.0 * cosines, kappa)
    for row, cosine in zip(weights, cosines.tolist(), strict=True):
        expected = attention_loop(cosine, alpha=4.0, kappa=kappa)
        torch.testing.assert_close(row, torch.tensor(expected), rtol=1e-4, atol=1e-7)


@settings(max_examples=60)
@given(
    logits=st.lists(st.sampled_from([-40.0, -1.0, 0.0, 0.5, 1.0, 60.0]), min_size=2, max_size=9),
    kappa=st.integers(1, 9),
)
def test_never_more_than_kappa_take_part_and_weights_sum_to_one(
    logits: list[float], kappa: int
) -> None:
    row = torch.tensor(logits)
    weights = partial_attention(row, kappa)
    assert weights.sum().item() == pytest.approx(1, abs=1e-5)
    assert (weights > 0).sum() <= kappa  # ties at the border are frequent here
    outside = row[weights == 0]
    inside = row[weights > 0]
    if len(outside) and kappa < len(logits):
        assert inside.max() == row.max()


def test_ties_at_the_border_admit_no_more_than_kappa() -> None:
    weights = partial_attention(torch.zeros(4, 8), 3)
    assert (weights > 0).sum(1).tolist() == [3] * 4
    torch.testing.assert_close(weights[weights > 0], torch.full((12,), 1 / 3))


def test_all_codewords_is_the_plain_softmax() -> None:
    logits = torch.randn(4, 3, 8, generator=torch.Generator().manual_seed(0))
    for kappa in (8, 9):
        assert torch.equal(partial_attention(logits, kappa), logits.softmax(-1))


def test_one_codeword_is_hard_assignment() -> None:
    quantizer, points = make_quantizer(kappa=1), embeddings()
    words = quantizer.codewords()
    chosen = quantizer.encode(points)
    expected = torch.stack([words[m, chosen[:, m]] for m in range(3)], 1).flatten(1)
    torch.testing.assert_close(quantizer(points), expected)


def test_tiny_kept_probabilities_stay_finite() -> None:
    # Softmax first would give 0 / 0 here.
    logits = torch.tensor([[0.0, -200.0, -300.0]], requires_grad=True)
    weights = partial_attention(logits, 2)
    assert torch.equal(weights.detach(), torch.tensor([[1.0, 0.0, 0.0]]))
    (gradient,) = torch.autograd.grad(weights.square().sum(), logits)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("kappa", [1, 3, 8])
def test_codebooks_receive_a_gradient_and_move(kappa: int) -> None:
    # A published sibling implementation never trains its codebook.
    quantizer, points = make_quantizer(kappa=kappa), embeddings(16)
    assert quantizer.codebooks.requires_grad
    optimizer = torch.optim.SGD(quantizer.parameters(), lr=0.1)
    before = quantizer.codebooks.detach().clone()
    target = embeddings(16, seed=9)
    used = torch.tensor([len(set(book)) for book in quantizer.encode(points).T.tolist()])
    torch.autograd.backward((quantizer(points) - target).square().sum())
    gradient = quantizer.codebooks.grad
    assert gradient is not None
    optimizer.step()
    touched = (gradient.abs().amax(2) > 0).sum(1)
    if kappa == 1:  # only the chosen codewords hear of it
        assert torch.equal(touched, used)
    else:
        assert (touched >= used).all()
    assert not torch.equal(quantizer.codebooks.detach(), before)
    # Along the codeword itself nothing changes: the length is free, only the direction counts.
    radial = (gradient * before).sum(2).abs().max()
    assert radial < 1e-4 * gradient.abs().max()


def test_embeddings_receive_a_gradient() -> None:
    quantizer, points = make_quantizer(), embeddings().requires_grad_()
    (gradient,) = torch.autograd.grad(quantizer(points).square().sum(), points)
    assert gradient.abs().max() > 0


def test_encoding_is_the_argmax_and_equals_the_numpy_side() -> None:
    quantizer, points = make_quantizer(size=16, dim=24), embeddings(200, 24)
    codes = quantizer.encode(points)
    assert codes.shape == (200, 3)
    books = quantizer.export()
    np.testing.assert_array_equal(codes.numpy(), books.encode(points.numpy()))
    assert codes[:20].tolist() == encode_loop(books.codewords, points[:20].numpy())


@pytest.mark.parametrize(("books", "size"), [(2, 256), (4, 16), (6, 8), (3, 2)])
def test_bits_are_books_times_log2_of_their_size(books: int, size: int) -> None:
    quantizer = make_quantizer(books=books, size=size, dim=12, kappa=1)
    assert quantizer.config.bits == books * math.log2(size) == quantizer.export().bits


def test_fit_puts_codewords_among_the_data() -> None:
    quantizer = make_quantizer(size=8, dim=12)
    centres = F.normalize(embeddings(8, 4, seed=3), dim=1)
    rows = torch.randint(0, 8, (300, 3), generator=torch.Generator().manual_seed(0))
    noise = 0.02 * embeddings(300, 12)
    points = centres[rows].flatten(1) + noise

    def closeness() -> float:
        cosines = torch.einsum("bmd,mkd->bmk", quantizer.split(points), quantizer.codewords())
        return cosines.max(2).values.mean().item()

    before = closeness()
    quantizer.fit(points, seed=0)
    assert closeness() > max(before, 0.95)
    assert quantizer.codebooks.requires_grad
    first = quantizer.codebooks.detach().clone()
    quantizer.fit(points, seed=0)
    assert torch.equal(first, quantizer.codebooks.detach())


def test_no_rows_give_no_codes() -> None:
    assert make_quantizer().encode(torch.empty(0, 12)).shape == (0, 3)


def test_half_precision_embeddings_are_quantized_in_float32() -> None:
    assert make_quantizer()(embeddings().bfloat16()).dtype == torch.float32


def nucleus_loop(logits: list[float], kappa: int, mass: float) -> list[float]:
    """Take codewords, likeliest first, until they hold the mass or are kappa."""
    total = sum(math.exp(value) for value in logits)
    order = sorted(range(len(logits)), key=lambda k: -logits[k])
    kept: list[int] = []
    held = 0.0
    for k in order:
        if len(kept) == kappa or (kept and held >= mass):
            break
        kept.append(k)
        held += math.exp(logits[k]) / total
    inside = sum(math.exp(logits[k]) for k in kept)
    return [math.exp(v) / inside if k in kept else 0.0 for k, v in enumerate(logits)]


@pytest.mark.parametrize("mass", [0.05, 0.5, 0.8, 0.97])
@pytest.mark.parametrize("kappa", [1, 3, 8, 9])
def test_nucleus_attention_equals_its_twin(kappa: int, mass: float) -> None:
    logits = 3 * torch.randn(40, 2, 8, generator=torch.Generator().manual_seed(0))
    weights = nucleus_attention(logits, kappa, mass=mass)
    assert weights.shape == logits.shape
    for row, given_row in zip(weights.flatten(0, 1), logits.flatten(0, 1).tolist(), strict=True):
        expected = nucleus_loop(given_row, kappa, mass)
        torch.testing.assert_close(row, torch.tensor(expected), rtol=1e-4, atol=1e-7)


def test_a_sure_row_keeps_one_codeword_and_a_doubtful_one_keeps_kappa() -> None:
    logits = torch.zeros(2, 8)
    logits[0, 5] = 20.0
    kept = (nucleus_attention(logits, 4, mass=0.9) > 0).sum(1)
    assert kept.tolist() == [1, 4]
    assert (nucleus_attention(logits, 8, mass=0.9) > 0).sum(1).tolist() == [1, 8]
    assert (nucleus_attention(logits, 8, mass=0.45) > 0).sum(1).tolist() == [1, 4]


@pytest.mark.parametrize("kappa", [1, 3, 8])
def test_the_whole_mass_is_partial_attention(kappa: int) -> None:
    logits = 9 * torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(nucleus_attention(logits, kappa, mass=1.0), partial_attention(logits, kappa))


def test_nucleus_attention_passes_gradients_to_kept_codewords_only() -> None:
    logits = torch.tensor([[4.0, 3.9, 0.0, -200.0]], requires_grad=True)
    weights = nucleus_attention(logits, 4, mass=0.9)
    (gradient,) = torch.autograd.grad(weights[0, 0], logits)
    assert (gradient != 0).tolist() == [[True, True, False, False]]
    assert gradient.isfinite().all()


def test_the_config_chooses_the_attention() -> None:
    points = embeddings()
    made = {}
    for mode in ("fixed", "anneal", "nucleus"):
        torch.manual_seed(0)
        config = QuantizerConfig(
            num_codebooks=3, codebook_size=8, alpha=2.0, kappa=6, kappa_mode=mode, nucleus_mass=0.4
        )
        made[mode] = ProductQuantizer(config, 12)
    assert torch.equal(made["fixed"](points), made["anneal"](points))  # a schedule ends at kappa
    nucleus = made["nucleus"]
    cosines = torch.einsum("bmd,mkd->bmk", nucleus.split(points), nucleus.codewords())
    weights = nucleus_attention(4.0 * cosines, 6, mass=0.4)
    expected = torch.einsum("bmk,mkd->bmd", weights, nucleus.codewords()).flatten(1)
    torch.testing.assert_close(nucleus(points), expected)
    assert not torch.equal(nucleus(points), made["fixed"](points))
    assert all(torch.equal(q.encode(points), nucleus.encode(points)) for q in made.values())


@pytest.mark.parametrize(
    ("size", "kappa", "expected"),
    [
        (256, 5, [256, 128, 64, 32, 16, 8, 5]),
        (256, 1, [256, 128, 64, 32, 16, 8, 4, 2, 1]),
        (8, 3, [8, 4, 3]),
        (8, 8, [8]),
    ],
)
def test_annealing_halves_from_all_codewords_to_kappa(
    size: int, kappa: int, expected: list[int]
) -> None:
    config = QuantizerConfig(codebook_size=size, kappa=kappa, kappa_mode="anneal", anneal_share=0.5)
    quantizer = ProductQuantizer(config, 16)
    epochs = 40
    seen = [quantizer.kappa_at(epoch / epochs) for epoch in range(epochs)]
    assert list(dict.fromkeys(seen)) == expected
    assert seen == sorted(seen, reverse=True)
    assert seen[epochs // 2 :] == [kappa] * (epochs // 2)
    fixed = ProductQuantizer(QuantizerConfig(codebook_size=size, kappa=kappa), 16)
    assert {fixed.kappa_at(epoch / epochs) for epoch in range(epochs)} == {kappa}


def unit_points(count: int, dim: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(count, dim, generator=generator), dim=-1)


def objective(points: torch.Tensor, centres: torch.Tensor) -> float:
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
