"""The frame of all hashing methods, and the sums over pairs and triplets that they share."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from phpq.errors import ConfigError
from phpq.methods._hashing import (
    HEAD_DEVIATION,
    ClassifiedHashing,
    HashingMethod,
    balanced_mean,
    batch_triplet_loss,
    other_images,
    pair_likelihood,
    quantization_gap,
    similar_pairs,
    towards_signs,
)
from phpq.model.network import squared_distances
from tiny_hashing import (
    BITS,
    mean_by_kind,
    part_of,
    random_batch,
    squared_distance,
    triplets,
)
from tiny_runs import CLASSES, SIDE


class Plain(HashingMethod):
    """The frame with a loss that any output lowers."""

    terms = ("size",)

    def loss(self, outputs: Tensor, labels: Tensor, rows: Tensor) -> tuple[Tensor, ...]:
        size = outputs.square().mean()
        return 2 * size, size


@pytest.fixture(scope="module")
def method() -> Plain:
    torch.manual_seed(0)
    return part_of(Plain, "dth").eval()


@pytest.fixture(scope="module")
def pixels() -> Tensor:
    return torch.rand(6, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))


def test_codes_have_the_bits_of_the_config(method: Plain, pixels: Tensor) -> None:
    longer = part_of(Plain, "dth", "quantizer.num_codebooks=4")
    assert longer.bits == 32  # M log2 K, not M sqrt K
    assert method.bits == method.embedding_dim == BITS
    codebooks = method.export()
    assert codebooks.num_codebooks * 8 == BITS
    assert codebooks.encode(method.embed(pixels).detach().numpy()).shape == (6, 2)


def test_embeddings_are_signs_of_the_outputs(method: Plain, pixels: Tensor) -> None:
    signs = method.embed(pixels)
    assert signs.dtype == torch.float32
    for sign, output in zip(
        signs.flatten().tolist(), method.extract(pixels).flatten().tolist(), strict=True
    ):
        assert sign == (1.0 if output >= 0 else -1.0)


def test_both_views_count_the_same(method: Plain, pixels: Tensor) -> None:
    mirrored = method.embed(pixels, mirrored=True)
    assert torch.equal(mirrored, method.embed(pixels.flip(-1), mirrored=True))
    outputs = method.extract(pixels) + method.extract(pixels.flip(-1))
    assert torch.equal(mirrored, torch.where(outputs >= 0, 1.0, -1.0))


def test_the_batch_reports_loss_parts_and_packed_signs(method: Plain, pixels: Tensor) -> None:
    outputs = method.extract(pixels)
    learned = method.objective(outputs, torch.zeros(6, dtype=torch.long), torch.arange(6))
    assert len(learned.parts) == len(method.terms)
    assert learned.loss.item() == pytest.approx(2 * learned.parts[0].item())
    expected = method.export().encode(method.embed(pixels).detach().numpy())
    np.testing.assert_array_equal(learned.codes.numpy(), expected)


def test_the_head_is_pooled_last_stage_times_a_small_matrix(method: Plain, pixels: Tensor) -> None:
    (stage,) = method.backbone(pixels)
    pooled = stage.flatten(2).sum(2) / (stage.shape[2] * stage.shape[3])
    expected = pooled @ method.hash.weight.T + method.hash.bias
    torch.testing.assert_close(method.extract(pixels), expected)
    assert method.hash.weight.std().item() == pytest.approx(HEAD_DEVIATION, rel=0.1)
    assert not method.hash.bias.any()


@pytest.mark.parametrize(("norm", "centred"), [("batch", True), ("none", False)])
def test_bits_are_centred_over_the_batch_if_asked(norm: str, centred: bool, pixels: Tensor) -> None:
    torch.manual_seed(0)
    method = part_of(Plain, "dth", f"model.embedding_norm={norm}").train()
    torch.nn.init.constant_(method.hash.bias, 3.0)  # one direction that all images share
    means = method.extract(pixels).mean(0)
    assert bool((means.abs() < 1e-4).all()) == centred


def test_the_head_stays_in_float32_under_autocast(method: Plain, pixels: Tensor) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        outputs = method.extract(pixels)
    assert outputs.dtype == torch.float32
    assert not torch.equal(outputs, outputs.bfloat16().float())


def test_a_method_without_a_loss_says_so(pixels: Tensor) -> None:
    frame = part_of(HashingMethod, "dth")
    with pytest.raises(NotImplementedError):
        frame.objective(frame.extract(pixels), torch.arange(6), torch.arange(6))


def test_pairs_share_a_class_or_not() -> None:
    labels, others = torch.tensor([0, 1, 0]), torch.tensor([1, 0])
    assert similar_pairs(labels).tolist() == [[1, 0, 1], [0, 1, 0], [1, 0, 1]]
    assert similar_pairs(labels, others).tolist() == [[0, 1], [1, 0], [0, 1]]
    assert other_images(labels).tolist() == [[0, 1, 1], [1, 0, 1], [1, 1, 0]]


def test_both_kinds_of_pairs_weigh_the_same() -> None:
    _, labels = random_batch()
    values = torch.randn(8, 8, generator=torch.Generator().manual_seed(1))
    expected = mean_by_kind(values.tolist(), labels)
    mean = balanced_mean(values, similar_pairs(labels), other_images(labels))
    assert mean.item() == pytest.approx(expected, rel=1e-5)
    with_itself = balanced_mean(values, similar_pairs(labels))
    assert with_itself.item() == pytest.approx(
        mean_by_kind(values.tolist(), labels, labels), rel=1e-5
    )


def test_a_batch_of_one_kind_of_pairs_has_a_mean() -> None:
    alike, different = torch.zeros(3, dtype=torch.long), torch.arange(3)
    values = torch.ones(3, 3)
    for labels in (alike, different):
        mean = balanced_mean(values, similar_pairs(labels), other_images(labels))
        assert mean.item() == pytest.approx(0.5)


@pytest.mark.parametrize("product", [-3.0, 0.0, 0.4, 12.0])
def test_the_likelihood_is_that_of_the_formula(product: float) -> None:
    for similar in (0.0, 1.0):
        expected = math.log(1 + math.exp(product)) - similar * product
        loss = pair_likelihood(torch.tensor([[product]]), torch.tensor([[similar]]))
        assert loss.item() == pytest.approx(expected, rel=1e-4)


def test_the_gap_is_zero_at_signs_only() -> None:
    outputs, _ = random_batch()
    expected = sum((abs(v) - 1) ** 2 for v in outputs.flatten().tolist()) / outputs.numel()
    assert quantization_gap(outputs).item() == pytest.approx(expected, rel=1e-5)
    assert quantization_gap(torch.tensor([[1.0, -1.0]])).item() == 0


def test_distances_are_those_of_loops_and_never_negative() -> None:
    outputs, _ = random_batch(spread=30.0)
    outputs = torch.cat([outputs, outputs[:2]])  # equal rows
    distances = squared_distances(outputs)
    expected = [[squared_distance(a, b) for b in outputs] for a in outputs]
    torch.testing.assert_close(distances, torch.tensor(expected), rtol=1e-4, atol=0.05)
    assert distances.min() >= 0


@pytest.mark.parametrize("margin", [0.0, 4.0, 60.0])
def test_triplets_are_averaged_over_those_that_violate(margin: float) -> None:
    outputs, labels = random_batch()
    hinges = [
        squared_distance(outputs[a], outputs[p]) - squared_distance(outputs[a], outputs[n]) + margin
        for a, p, n in triplets(labels)
    ]
    assert len(hinges) == 3 * 2 * 5 + 2 * (2 * 1 * 6)
    violating = [hinge for hinge in hinges if hinge > 0]
    assert margin != 4.0 or 0 < len(violating) < len(hinges)
    expected = sum(violating) / len(violating)
    assert batch_triplet_loss(outputs, labels, margin).item() == pytest.approx(expected, rel=1e-4)


def test_triplets_at_rest_give_zero_and_no_gradient() -> None:
    outputs = torch.tensor([[1.0, 1.0], [1.0, 1.0], [-1.0, -1.0]], requires_grad=True)
    loss = batch_triplet_loss(outputs, torch.tensor([0, 0, 1]), 7.9)
    assert loss.item() == 0
    torch.autograd.backward(loss)
    assert outputs.grad is not None
    assert not outputs.grad.any()


def test_a_batch_without_triplets_gives_zero() -> None:
    outputs, _ = random_batch()
    for labels in (torch.zeros(8, dtype=torch.long), torch.arange(8)):
        assert batch_triplet_loss(outputs, labels, 4.0).item() == 0


def test_equal_outputs_have_finite_gradients() -> None:
    outputs = torch.zeros(4, BITS, requires_grad=True)
    torch.autograd.backward(batch_triplet_loss(outputs, torch.tensor([0, 0, 1, 1]), 4.0))
    assert outputs.grad is not None
    assert all(math.isfinite(v) for v in outputs.grad.flatten().tolist())


def classified(*assignments: str, classes: int = CLASSES) -> ClassifiedHashing:
    return part_of(ClassifiedHashing, "fph", *assignments, classes=classes)


def test_the_loss_of_classified_codes_is_that_of_loops() -> None:
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
    loss, *parts = method.loss(outputs, labels, torch.arange(8))
    assert [part.item() for part in parts] == pytest.approx(expected, rel=1e-4)
    wanted = 2 * expected[0] + 0.5 * expected[1] + 3 * expected[2]
    assert loss.item() == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_a_classifier_may_read_signs_and_learns_as_if_it_read_values(share: float) -> None:
    outputs = torch.tensor([[0.2, -0.7, 0.0]], requires_grad=True)
    moved = towards_signs(outputs, share)
    for value, seen in zip(outputs[0].tolist(), moved[0].tolist(), strict=True):
        sign = 1.0 if value >= 0 else -1.0
        assert seen == pytest.approx((1 - share) * value + share * sign)
    (moved * torch.tensor([[1.0, 2.0, 3.0]])).sum().backward()  # type: ignore[no-untyped-call]
    assert outputs.grad is not None
    assert outputs.grad.tolist() == [[1.0, 2.0, 3.0]]


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
def test_weights_of_classified_codes_are_not_negative(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}=-1.* must be 0 or more"):
        classified(f"method.options.{name}=-1")


def test_smoothing_is_a_share() -> None:
    with pytest.raises(ConfigError, match=r"smoothing=1\.0.* must be in \[0, 1\)"):
        classified("method.options.smoothing=1")
