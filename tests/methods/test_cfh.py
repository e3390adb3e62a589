"""CFH: attention of classes by loops, labels while learning, the likeliest class in search."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from phpq.errors import ConfigError
from phpq.methods.cfh import CFH
from tiny_hashing import random_batch, tiny_method
from tiny_runs import SIDE

ROWS = torch.arange(8)


def cfh(*assignments: str) -> CFH:
    method = tiny_method("cfh", *assignments)
    assert isinstance(method, CFH)
    torch.nn.init.normal_(method.hash.weight, std=0.3)
    return method


def made_up_features(method: CFH, count: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(count, method.backbone.channels[-1], 6, generator=generator)


def cosine(first: list[float], second: list[float]) -> float:
    product = sum(a * b for a, b in zip(first, second, strict=True))
    return product / math.sqrt(sum(a * a for a in first) * sum(b * b for b in second))


def test_attention_is_that_of_loops() -> None:
    method = cfh("method.options.focus=5")
    features = made_up_features(method, 2)
    attention = method.attention(features, torch.tensor([3, 1]))
    for image, label, found in zip(features, (3, 1), attention, strict=True):
        embedding = method.semantics.weight[label].tolist()
        powers = [math.exp(5 * cosine(embedding, place.tolist())) for place in image.T]
        wanted = [power / sum(powers) for power in powers]
        assert found.tolist() == pytest.approx(wanted, rel=1e-4)


def test_a_code_sees_the_region_and_the_image() -> None:
    method = cfh().eval()
    features = made_up_features(method, 3)
    classes = torch.tensor([0, 1, 2])
    shares = method.attention(features, classes)
    region = torch.stack([(f * a).sum(1) for f, a in zip(features, shares, strict=True)])
    wanted = method.squash(method.hash(torch.cat([region, features.mean(2)], 1)))
    torch.testing.assert_close(method.code(features, classes), wanted)


def test_another_class_looks_elsewhere() -> None:
    method = cfh().eval()
    features = made_up_features(method, 1)
    codes = [method.code(features, torch.tensor([c])) for c in (0, 1)]
    assert not torch.allclose(codes[0], codes[1])


def test_learning_looks_as_the_label_and_adds_its_classification() -> None:
    method = cfh("method.options.semantics=0.5")
    _, labels = random_batch()
    features = made_up_features(method, 8)
    learned = method.objective(features, labels, ROWS)
    total, *parts = method.loss(method.code(features, labels), labels, ROWS)
    semantics = torch.nn.functional.cross_entropy(
        method.semantics(features.mean(2)), labels, label_smoothing=0.1
    )
    for found, wanted in zip(learned.parts, [*parts, semantics], strict=True):
        torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(learned.loss, total + 0.5 * semantics)


def test_search_looks_as_the_likeliest_class() -> None:
    method = cfh().eval()
    images = torch.rand(4, 3, SIDE, SIDE)
    with torch.no_grad():
        features = method.extract(images)
        likeliest = method.class_scores(features).argmax(1)
        wanted = torch.where(method.code(features, likeliest) >= 0, 1.0, -1.0)
        assert torch.equal(method.embed(images), wanted)
        # A bias that favours a class makes all images be seen as that class.
        method.semantics.bias[2] = 1e6
        as_two = method.code(features, torch.full((4,), 2))
        assert torch.equal(method.embed(images), torch.where(as_two >= 0, 1.0, -1.0))


@pytest.mark.parametrize("option", ["focus", "semantics", "triplet"])
def test_bad_options_are_refused(option: str) -> None:
    with pytest.raises(ConfigError, match=rf"{option}=-1.* of 'cfh' must be 0 or more"):
        tiny_method("cfh", f"method.options.{option}=-1")
