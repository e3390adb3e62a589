"""OrthoHash: the loss by loops, centres that no run changes, balanced bits."""

from __future__ import annotations

import math

import pytest
import torch

from phpq.errors import ConfigError
from phpq.methods.orthohash import OrthoHash
from tiny_hashing import BITS, inner_product, random_batch, tiny_method
from tiny_runs import CLASSES, SIDE


def orthohash(*assignments: str, seed: int = 0) -> OrthoHash:
    method = tiny_method("orthohash", *assignments, seed=seed)
    assert isinstance(method, OrthoHash)
    return method


def centres_of(method: OrthoHash) -> torch.Tensor:
    return method.get_buffer("centres")


@pytest.mark.parametrize(("scale", "margin"), [(8.0, 0.2), (3.0, 0.0)])
def test_the_loss_is_that_of_loops(scale: float, margin: float) -> None:
    method = orthohash(f"method.options.scale={scale}", f"method.options.margin={margin}")
    outputs, labels = random_batch()
    losses = []
    for output, label in zip(outputs, labels.tolist(), strict=True):
        logits = []
        for number, centre in enumerate(centres_of(method)):
            lengths = inner_product(output, output) * inner_product(centre, centre)
            cosine = inner_product(output, centre) / math.sqrt(lengths)
            logits.append(scale * (cosine - (margin if number == label else 0)))
        losses.append(math.log(sum(math.exp(x) for x in logits)) - logits[label])
    (loss,) = method.loss(outputs, labels, torch.arange(8))
    assert loss.item() == pytest.approx(sum(losses) / 8, rel=1e-4)


def test_an_output_at_its_centre_loses_least() -> None:
    method = orthohash()
    labels, rows = torch.arange(CLASSES), torch.arange(CLASSES)
    (best,) = method.loss(3 * centres_of(method), labels, rows)
    (other,) = method.loss(3 * centres_of(method).roll(1, 0), labels, rows)
    assert best < other


def test_centres_are_signs_that_no_run_changes() -> None:
    first, second = centres_of(orthohash(seed=0)), centres_of(orthohash(seed=1))
    assert torch.equal(first, second)
    assert first.shape == (CLASSES, BITS)
    assert set(first.flatten().tolist()) == {-1, 1}
    assert len({tuple(centre) for centre in first.tolist()}) == CLASSES


def test_centres_do_not_learn() -> None:
    assert "centres" not in dict(orthohash().named_parameters())


def test_bits_are_balanced_over_a_batch() -> None:
    pixels = torch.rand(16, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    outputs = orthohash().train().extract(pixels)
    torch.testing.assert_close(outputs.mean(0), torch.zeros(BITS), rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("scale=0", r"options\.scale=0.* must be above 0"),
        ("margin=2", r"options\.margin=2.* must be in \[0, 2\)"),
        ("margn=0.1", "no option 'margn'.*'margin'"),
    ],
)
def test_bad_options_are_refused(option: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tiny_method("orthohash", f"method.options.{option}")
