"""ADSH: its two terms, and codes and network that agree in the end."""

from __future__ import annotations

import pytest
import torch

from phpq.errors import ConfigError
from phpq.methods.adsh import ADSH
from tiny_hashing import BITS, random_batch, tiny_method, training_set
from tiny_runs import SIDE

LABELS = torch.tensor([1, 2, 3, 0, 0, 3, 1, 0, 2, 1])
ROWS = torch.tensor([3, 0, 7, 1, 9, 4, 5, 8])


def adsh(*assignments: str) -> ADSH:
    method = tiny_method("adsh", *assignments)
    assert isinstance(method, ADSH)
    method.start(training_set(LABELS))
    return method


def test_the_loss_adds_both_terms() -> None:
    method = adsh("method.options.gamma=0.7")
    outputs, labels = random_batch()
    total, similarity, distance = method.loss(outputs, labels, ROWS)
    assert similarity.item() == pytest.approx(method.similarity_loss(outputs, labels, ROWS).item())
    assert distance.item() == pytest.approx(
        (method.database[ROWS] - outputs).square().mean().item()
    )
    assert total.item() == pytest.approx(similarity.item() + 0.7 * distance.item())


def test_turns_of_network_and_codes_bring_them_together() -> None:
    """Free outputs stand for the network: codes of a class end close, equal to the signs."""
    method = adsh()
    training = training_set(LABELS)
    free = torch.randn(len(LABELS), BITS, generator=torch.Generator().manual_seed(4))
    free.requires_grad_()
    optimizer = torch.optim.Adam([free], lr=0.1)
    rows = torch.arange(len(LABELS))
    losses = []
    for epoch in range(12):
        method.prepare_epoch(epoch, training)
        for _ in range(10):
            total, *_ = method.loss(free.tanh(), LABELS, rows)
            optimizer.zero_grad()
            torch.autograd.backward(total)
            optimizer.step()
            losses.append(total.item())
    assert losses[-1] < 0.2 * losses[0]
    assert torch.equal(method.database, torch.where(free >= 0, 1.0, -1.0))
    products = method.database @ method.database.T
    similar = LABELS[:, None] == LABELS[None, :]
    assert products[similar].min() > products[~similar].max()


def test_outputs_are_bounded() -> None:
    method = adsh()
    torch.nn.init.normal_(method.hash.weight, std=5.0)
    outputs = method.extract(torch.rand(4, 3, SIDE, SIDE))
    assert 0.5 < outputs.abs().max() <= 1


def test_bad_options_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"options\.gamma=-1.* must be 0 or more"):
        tiny_method("adsh", "method.options.gamma=-1")
