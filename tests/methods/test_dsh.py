"""DSH: the contrast and the L1 term by loops."""

from __future__ import annotations

import pytest
import torch

from phpq.errors import ConfigError
from phpq.methods.dsh import DSH
from tiny_hashing import (
    BITS,
    mean_by_kind,
    random_batch,
    squared_distance,
    tiny_method,
)
from tiny_runs import CLASSES


def dsh(*assignments: str) -> DSH:
    method = tiny_method("dsh", *assignments)
    assert isinstance(method, DSH)
    return method


@pytest.mark.parametrize(
    ("alpha", "margin", "share"), [(0.1, 2.0, 0.25), (0.5, 3.0, 0.25), (0.1, 2.0, 0.6)]
)
def test_the_loss_is_that_of_loops(alpha: float, margin: float, share: float) -> None:
    outputs, labels = random_batch()
    losses = []
    for i, first in enumerate(outputs):
        row = []
        for j, second in enumerate(outputs):
            distance = squared_distance(first, second)
            similar = bool(labels[i] == labels[j])
            row.append(0.5 * (distance if similar else max(0, margin * BITS - distance)) / BITS)
        losses.append(row)
    contrast = mean_by_kind(losses, labels, similar_share=share)
    gap = sum(abs(abs(v) - 1) for v in outputs.flatten().tolist()) / outputs.numel()
    chosen = {"alpha": alpha, "margin": margin, "similar_share": share}
    method = dsh(*(f"method.options.{name}={value}" for name, value in chosen.items()))
    total, *parts = method.loss(outputs, labels, torch.arange(8))
    assert parts[0].item() == pytest.approx(contrast, rel=1e-4)
    assert parts[1].item() == pytest.approx(gap, rel=1e-4)
    # Every image stands on both sides of a pair: the L1 term counts twice.
    assert total.item() == pytest.approx(contrast + 2 * alpha * gap, rel=1e-4)


def test_codes_half_of_the_bits_apart_rest() -> None:
    corners = torch.tensor([[1.0, 1.0], [-1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]]).repeat(
        1, BITS // 2
    )
    labels = torch.arange(CLASSES).repeat(2)
    total, *_ = dsh().loss(corners.repeat(2, 1), labels, torch.arange(8))
    assert total.item() == 0


def test_a_collapse_is_no_rest() -> None:
    outputs = torch.ones(8, BITS, requires_grad=True)
    _, contrastive, _ = dsh().loss(outputs, random_batch()[1], torch.arange(8))
    assert contrastive.item() == pytest.approx(0.75)  # dissimilar pairs at distance zero


@pytest.mark.parametrize(
    ("option", "allowed"),
    [("alpha=-1", "0 or more"), ("margin=0", "above 0"), ("similar_share=1", r"in \(0, 1\)")],
)
def test_bad_options_are_refused(option: str, allowed: str) -> None:
    with pytest.raises(ConfigError, match=rf"options\.{option}.* must be {allowed}"):
        tiny_method("dsh", f"method.options.{option}")
