"""DTH: margins that follow the published ones, tanh outputs, a loss a bit."""

from __future__ import annotations

import pytest
import torch

from phpq.errors import ConfigError
from phpq.methods.dth import DTH
from tiny_hashing import (
    BITS,
    random_batch,
    squared_distance,
    tiny_method,
    triplets,
)
from tiny_runs import CLASSES, SIDE


def dth(*assignments: str) -> DTH:
    method = tiny_method("dth", *assignments)
    assert isinstance(method, DTH)
    return method


def test_the_loss_is_that_of_loops() -> None:
    outputs, labels = random_batch()
    outputs = outputs.tanh()
    method = dth("method.options.margin_base=1", "method.options.margin_share=0.5")
    hinges = [
        squared_distance(outputs[a], outputs[p]) - squared_distance(outputs[a], outputs[n]) + 9
        for a, p, n in triplets(labels)
    ]
    violating = [hinge for hinge in hinges if hinge > 0]
    (loss,) = method.loss(outputs, labels, torch.arange(8))
    assert loss.item() == pytest.approx(sum(violating) / len(violating) / BITS, rel=1e-4)


@pytest.mark.parametrize(("books", "margin"), [(2, 8), (4, 12), (8, 20)])
def test_margins_are_the_published_ones(books: int, margin: int) -> None:
    outputs, labels = torch.zeros(8, 8 * books), random_batch()[1]  # the margin is all that is left
    (loss,) = dth(f"quantizer.num_codebooks={books}").loss(outputs, labels, torch.arange(8))
    assert loss.item() * 8 * books == pytest.approx(margin)


def test_outputs_lie_between_the_signs() -> None:
    method = dth()
    torch.nn.init.normal_(method.hash.weight, std=1.0)
    outputs = method.extract(torch.rand(4, 3, SIDE, SIDE))
    assert outputs.abs().max() <= 1
    assert outputs.abs().max() > 0.1


def test_codes_that_tell_classes_apart_rest() -> None:
    corners = torch.tensor([[1.0, 1.0], [-1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]]).repeat(
        1, BITS // 2
    )
    labels = torch.arange(CLASSES).repeat(2)
    (loss,) = dth().loss(corners.repeat(2, 1), labels, torch.arange(8))
    assert loss.item() == 0


@pytest.mark.parametrize("option", ["margin_base", "margin_share"])
def test_bad_options_are_refused(option: str) -> None:
    with pytest.raises(ConfigError, match=rf"options\.{option}=-1.* must be 0 or more"):
        tiny_method("dth", f"method.options.{option}=-1")
