"""The objective against plain loops, pair by pair, and its edges."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from phpq.config import LossConfig
from phpq.model import RetrievalOutput
from phpq.model.network import EPSILON, classification_loss, contrastive_loss, phpq_loss
from reference import contrastive_loop, cross_entropy_loop

MeanKind = Literal["true", "paper"]


def random_points(count: int, dim: int = 6, seed: int = 0) -> Tensor:
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("tau", [0.25, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_classification_equals_its_twin(tau: float, smoothing: float) -> None:
    logits = 2 * random_points(7, 5)
    labels = [0, 4, 2, 2, 1, 3, 0]
    loss = classification_loss(logits, torch.tensor(labels), tau, smoothing)
    expected = cross_entropy_loop(logits.tolist(), labels, tau=tau, smoothing=smoothing)
    assert loss.item() == pytest.approx(expected, rel=1e-5)


def test_a_lower_temperature_sharpens_the_classes() -> None:
    logits = torch.tensor([[1.0, 0.0, 0.0]])
    right, wrong = torch.tensor([0]), torch.tensor([1])
    assert classification_loss(logits, right, 0.25) < classification_loss(logits, right, 0.5)
    assert classification_loss(logits, wrong, 0.25) > classification_loss(logits, wrong, 0.5)


def assert_equals_its_twin(
    points: torch.Tensor,
    labels: list[int],
    margins: tuple[float, float],
    positive_mean: MeanKind,
    *,
    error: float,
) -> None:
    loss = contrastive_loss(
        points,
        torch.tensor(labels),
        positive_margin=margins[0],
        negative_margin=margins[1],
        positive_mean=positive_mean,
    )
    expected = contrastive_loop(
        points.tolist(), labels, margins=margins, positive_mean=positive_mean, epsilon=EPSILON
    )
    assert loss.item() == pytest.approx(expected, rel=1e-4, abs=error)


@pytest.mark.parametrize("positive_mean", ["true", "paper"])
@pytest.mark.parametrize("margins", [(0.0, 0.0), (0.4, 2.0), (1.0, 9.0), (50.0, 0.1)])
@pytest.mark.parametrize("labels", [[0, 0, 1, 1, 2, 2], [0, 0, 0, 0, 1, 2], [5, 3, 5, 3, 5, 3]])
def test_contrastive_equals_its_twin(
    labels: list[int], margins: tuple[float, float], positive_mean: MeanKind
) -> None:
    points = random_points(6)
    assert_equals_its_twin(points, labels, margins, positive_mean, error=1e-5)


@settings(max_examples=40)
@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=12),
    margins=st.tuples(st.floats(0, 3), st.floats(0, 5)),
    positive_mean=st.sampled_from(["true", "paper"]),
    seed=st.integers(0, 99),
)
def test_contrastive_equals_its_twin_for_any_batch(
    labels: list[int], margins: tuple[float, float], positive_mean: MeanKind, seed: int
) -> None:
    points = random_points(len(labels), seed=seed)
    assert_equals_its_twin(points, labels, margins, positive_mean, error=1e-4)


@pytest.mark.parametrize(("size", "factor"), [(2, 0.5), (4, 0.75), (8, 0.875)])
def test_the_printed_mean_is_smaller_by_the_missing_pairs(size: int, factor: float) -> None:
    points, labels = random_points(size), torch.zeros(size, dtype=torch.long)
    true, paper = (
        contrastive_loss(
            points, labels, positive_margin=0.0, negative_margin=0.0, positive_mean=kind
        )
        for kind in ("true", "paper")
    )
    assert (paper / true).item() == pytest.approx(factor, rel=1e-5)


def test_a_class_of_one_image_only_pushes_and_one_class_only_pulls() -> None:
    points = random_points(4)
    alone = contrastive_loss(points, torch.arange(4), positive_margin=0.0, negative_margin=100.0)
    distances = torch.cdist(points, points)
    expected = (100 - distances.sum(1) / 3).mean()
    torch.testing.assert_close(alone, expected)
    together = contrastive_loss(
        points, torch.zeros(4, dtype=torch.long), positive_margin=0.0, negative_margin=100.0
    )
    torch.testing.assert_close(together, distances.sum() / 12)
    single = contrastive_loss(
        points[:1], torch.zeros(1, dtype=torch.long), positive_margin=0.0, negative_margin=9.0
    )
    assert single.item() == 0


def test_hinges_switch_off_beyond_their_margins() -> None:
    points = torch.tensor([[0.0, 0.0], [0.1, 0.0], [5.0, 0.0], [5.1, 0.0]], requires_grad=True)
    labels = torch.tensor([0, 0, 1, 1])
    loss = contrastive_loss(points, labels, positive_margin=0.2, negative_margin=1.0)
    assert loss.item() == 0
    (gradient,) = torch.autograd.grad(loss, points)
    assert torch.equal(gradient, torch.zeros_like(points))


@pytest.mark.parametrize("margin", [0.0, 1.0])
@pytest.mark.parametrize("row", [torch.ones(1, 4), random_points(1)], ids=["exact", "rounded"])
def test_equal_reconstructions_have_finite_gradients(row: Tensor, margin: float) -> None:
    # The slope of an unsquared norm is infinite at zero; hard codes make equal rows common.
    points = row.repeat(6, 1).requires_grad_()
    labels = torch.tensor([0, 0, 0, 1, 1, 1])
    loss = contrastive_loss(points, labels, positive_margin=margin, negative_margin=1.0)
    (gradient,) = torch.autograd.grad(loss, points)
    assert loss.isfinite()
    assert gradient.isfinite().all()


def test_the_root_never_reaches_zero() -> None:
    # Whether the slope of a clamp at its border is 0 or 1 differs between versions of torch, so
    # finite gradients must not depend on it.
    points = torch.ones(4, 3)
    loss = contrastive_loss(
        points, torch.zeros(4, dtype=torch.long), positive_margin=0.0, negative_margin=0.0
    )
    assert loss.item() == pytest.approx(EPSILON**0.5, rel=1e-4)
    assert EPSILON > 0


def test_descending_the_loss_gathers_classes_and_parts_them() -> None:
    points = random_points(8).requires_grad_()
    labels = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])

    def loss() -> Tensor:
        return contrastive_loss(points, labels, positive_margin=0.2, negative_margin=6.0)

    first = loss().item()
    optimizer = torch.optim.SGD([points], lr=0.2)
    for _ in range(100):
        optimizer.zero_grad()
        torch.autograd.backward(loss())
        optimizer.step()
    assert loss().item() < 0.1 * first


def make_output(classes: int = 3, count: int = 6) -> RetrievalOutput:
    return RetrievalOutput(
        embedding=random_points(count, 8),
        reconstruction=random_points(count, 8, seed=1),
        logits=random_points(count, classes, seed=2),
        embedding_logits=random_points(count, classes, seed=3),
    )


@pytest.mark.parametrize("gamma", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("embedding_weight", [0.0, 0.7])
def test_the_overall_loss_weighs_its_terms(gamma: float, embedding_weight: float) -> None:
    output, labels = make_output(), [0, 0, 1, 1, 2, 2]
    config = LossConfig(
        gamma=gamma,
        embedding_weight=embedding_weight,
        tau=0.5,
        label_smoothing=0.1,
        positive_margin=0.2,
        negative_margin=1.5,
        positive_mean="true",
    )
    terms = phpq_loss(output, torch.tensor(labels), config, 4)
    classification = cross_entropy_loop(output.logits.tolist(), labels, tau=0.5, smoothing=0.1)
    direct = cross_entropy_loop(output.embedding_logits.tolist(), labels, tau=0.5, smoothing=0.1)
    contrastive = contrastive_loop(  # margins are in units of sqrt(M) = 2
        output.reconstruction.tolist(), labels, margins=(0.4, 3.0), epsilon=EPSILON
    )
    assert terms.classification.item() == pytest.approx(classification, rel=1e-5)
    assert terms.contrastive.item() == pytest.approx(contrastive, rel=1e-4)
    assert terms.embedding.item() == pytest.approx(direct, rel=1e-5)
    total = classification + gamma * contrastive + embedding_weight * direct
    assert terms.total.item() == pytest.approx(total, rel=1e-4)
