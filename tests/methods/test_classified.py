"""The loss of a classified code by loops, and the switches of its terms."""

from __future__ import annotations

import math

import pytest
import torch

from phpq.errors import ConfigError
from phpq.methods.classified import ClassifiedHashing
from tiny_hashing import BITS, part_of, random_batch, squared_distance, triplets
from tiny_runs import CLASSES, SIDE

ROWS = torch.arange(8)


def classified(*assignments: str, classes: int = CLASSES) -> ClassifiedHashing:
    return part_of(ClassifiedHashing, "fph", *assignments, classes=classes)


def test_the_loss_is_that_of_loops() -> None:
    outputs, labels = random_batch()
    outputs = outputs.detach().tanh()
    method = classified(
        "method.options.smoothing=0.2",
        "method.options.classification=2",
        "method.options.triplet=0.5",
        "method.options.quantization=3",
    )
    entropies = []
    for code, label in zip(outputs, labels.tolist(), strict=True):
        logits = method.classifier(code).tolist()
        total = math.log(sum(math.exp(value) for value in logits))
        target = [0.05 + (0.8 if label == c else 0) for c in range(CLASSES)]
        entropies.append(sum(t * (total - v) for t, v in zip(target, logits, strict=True)))
    hinges = [
        squared_distance(outputs[a], outputs[p]) - squared_distance(outputs[a], outputs[n]) + 8
        for a, p, n in triplets(labels)
    ]
    violating = [hinge for hinge in hinges if hinge > 0]
    gaps = [(abs(value) - 1) ** 2 for value in outputs.flatten().tolist()]
    expected = (
        sum(entropies) / len(entropies),
        sum(violating) / len(violating) / BITS,
        sum(gaps) / len(gaps),
    )
    loss, *parts = method.loss(outputs, labels, ROWS)
    assert [part.item() for part in parts] == pytest.approx(expected, rel=1e-4)
    wanted = 2 * expected[0] + 0.5 * expected[1] + 3 * expected[2]
    assert loss.item() == pytest.approx(wanted, rel=1e-4)


def test_sixteen_bits_can_tell_hundreds_of_classes_apart() -> None:
    """Signs alone bring the cross-entropy near zero, with the classifier free to be large."""
    classes = 200
    method = classified("method.options.smoothing=0", classes=classes)
    codes = torch.randint(0, 2, (classes, BITS)) * 2.0 - 1
    with torch.no_grad():
        method.classifier.weight.copy_(codes * 4)
        method.classifier.bias.zero_()
    distinct = len({tuple(code.tolist()) for code in codes})
    _, classification, *_ = method.loss(codes, torch.arange(classes), torch.arange(classes))
    assert distinct > 195
    assert classification.item() < 0.1


def test_every_bit_is_centred_and_none_starts_saturated() -> None:
    method = classified().train()
    torch.nn.init.normal_(method.hash.weight, std=10.0)
    torch.nn.init.normal_(method.hash.bias, std=10.0)
    outputs = method.extract(torch.rand(8, 3, SIDE, SIDE))
    assert outputs.mean(0).abs().max() < 0.35
    assert 0.4 < outputs.abs().mean() < 0.8
    assert outputs.abs().max() <= 1


@pytest.mark.parametrize("name", ["classification", "triplet", "quantization"])
def test_weights_are_not_negative(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}=-1.* must be 0 or more"):
        classified(f"method.options.{name}=-1")


def test_smoothing_is_a_share() -> None:
    with pytest.raises(ConfigError, match=r"smoothing=1\.0.* must be in \[0, 1\)"):
        classified("method.options.smoothing=1")
