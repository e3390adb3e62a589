"""ExchNet: distances by loops, anchors as class means, swaps in the last epochs only."""

from __future__ import annotations

import math
from itertools import combinations

import pytest
import torch
from torch import Tensor

from phpq.errors import ConfigError
from phpq.methods.exchnet import PARTS, ExchNet, Parts, first_swap, hellinger
from tiny_hashing import BITS, tiny_method, training_set
from tiny_runs import CLASSES, SIDE

LABELS = torch.tensor([1, 2, 3, 0, 0, 1, 1, 0])
EPOCHS = 8


def exchnet(*assignments: str) -> ExchNet:
    method = tiny_method("exchnet", *assignments)
    assert isinstance(method, ExchNet)
    method.start(training_set(LABELS, epochs=EPOCHS))
    return method


def made_up(method: ExchNet, count: int, *, seed: int = 0) -> Parts:
    generator = torch.Generator().manual_seed(seed)
    dim = method.backbone.channels[-1]
    return Parts(
        torch.rand(count, dim, generator=generator),
        torch.rand(count, PARTS, dim, generator=generator),
        torch.rand(count, PARTS, 9, generator=generator),
    )


def softmax(values: list[float]) -> list[float]:
    powers = [math.exp(value) for value in values]
    return [power / sum(powers) for power in powers]


def hellinger_by_loops(values: Tensor) -> float:
    total, pairs = 0.0, 0
    for image in values:
        shares = [softmax(part.tolist()) for part in image]
        for p, q in combinations(shares, 2):
            affinity = sum(math.sqrt(a * b) for a, b in zip(p, q, strict=True))
            total += math.sqrt(max(1 - affinity, 0))
            pairs += 1
    return total / pairs


def test_the_distance_of_parts_is_that_of_loops() -> None:
    values = 3 * torch.randn(5, PARTS, 7, generator=torch.Generator().manual_seed(1))
    assert hellinger(values).item() == pytest.approx(hellinger_by_loops(values), rel=1e-3)


def test_equal_parts_are_near_and_disjoint_ones_far_and_both_have_slopes() -> None:
    equal = torch.zeros(2, PARTS, 8, requires_grad=True)
    disjoint = (100.0 * torch.eye(PARTS, 8).repeat(2, 1, 1)).requires_grad_()
    assert hellinger(equal).item() < 0.01
    assert hellinger(disjoint).item() == pytest.approx(1, abs=1e-3)
    for values in (equal, disjoint):
        (slope,) = torch.autograd.grad(hellinger(values), values)
        assert torch.isfinite(slope).all()


def test_the_terms_before_any_swap() -> None:
    method = exchnet("method.options.spatial=0.5", "method.options.channel=2")
    method.prepare_epoch(0, training_set(LABELS, epochs=EPOCHS))
    seen, rows = made_up(method, len(LABELS)), torch.arange(len(LABELS))
    learned = method.objective(seen, LABELS, rows)
    similarity, spatial, channel, anchor = (part.item() for part in learned.parts)
    code = method.code(seen.whole, seen.parts)
    assert similarity == pytest.approx(method.similarity_loss(code, LABELS, rows).item())
    assert spatial == pytest.approx(1 - hellinger_by_loops(seen.maps), rel=1e-3)
    assert channel == pytest.approx(max(0.4 - hellinger_by_loops(seen.parts), 0), rel=1e-3)
    assert anchor == 0
    # The published loss over what its first term is without any code.
    wanted = method.similarity.rows(LABELS)
    scale = 12 / BITS * (BITS * wanted).square().mean().item()
    assert learned.loss.item() == pytest.approx(similarity + (0.5 * spatial + 2 * channel) / scale)


@pytest.mark.parametrize(("epochs", "first"), [(1, 1), (2, 1), (8, 7), (25, 21), (70, 61)])
def test_the_last_eighth_of_the_epochs_swaps(epochs: int, first: int) -> None:
    assert first_swap(epochs, 0.125) == first


def test_anchors_are_the_means_of_the_last_epoch() -> None:
    method = exchnet()
    training = training_set(LABELS, epochs=EPOCHS)
    method.prepare_epoch(0, training)
    early, late = made_up(method, 4, seed=1), made_up(method, 4, seed=2)
    method.objective(early, LABELS[:4], torch.arange(4))
    method.prepare_epoch(1, training)
    method.objective(late, LABELS[4:], torch.arange(4, 8))
    method.prepare_epoch(2, training)
    expected = {
        0: (late.parts[0] + late.parts[3]) / 2,
        1: (late.parts[1] + late.parts[2]) / 2,
        2: early.parts[1],  # not seen since
        3: early.parts[2],
    }
    for label, anchor in expected.items():
        torch.testing.assert_close(method.anchors[label], anchor)
    assert torch.equal(method.known, torch.ones(CLASSES))


def test_swapped_parts_are_the_anchors_of_the_class() -> None:
    method = exchnet("method.options.swap=1")
    training = training_set(LABELS, epochs=EPOCHS)
    method.prepare_epoch(EPOCHS - 2, training)
    rows = torch.arange(len(LABELS))
    before = made_up(method, len(LABELS), seed=1)
    method.objective(before, LABELS, rows)
    change = method.prepare_epoch(EPOCHS - 1, training)
    assert change.new_step
    seen = made_up(method, len(LABELS), seed=2)
    learned = method.objective(seen, LABELS, rows)
    swapped = method.code(seen.whole, method.anchors[LABELS])
    torch.testing.assert_close(method.outputs, swapped.detach())
    distances = [
        math.sqrt((part - anchor).square().mean().item())
        for image, label in zip(seen.parts, LABELS, strict=True)
        for part, anchor in zip(image, method.anchors[label], strict=True)
    ]
    wanted = sum(distances) / len(distances)
    assert learned.parts[3].item() == pytest.approx(wanted, rel=1e-4)


def test_a_class_without_anchors_keeps_its_parts() -> None:
    method = exchnet("method.options.swap=1")
    method.prepare_epoch(EPOCHS - 1, training_set(LABELS, epochs=EPOCHS))
    seen = made_up(method, len(LABELS))
    learned = method.objective(seen, LABELS, torch.arange(len(LABELS)))
    torch.testing.assert_close(method.outputs, method.code(seen.whole, seen.parts).detach())
    assert learned.parts[3].item() == 0


def test_swaps_depend_on_the_epoch_alone() -> None:
    training = training_set(torch.arange(200) % CLASSES, epochs=EPOCHS)
    drawn = []
    for epoch in (6, 7, 7):
        method = exchnet()
        method.start(training)
        method.prepare_epoch(epoch, training)
        drawn.append(method.swaps)
    assert torch.equal(drawn[1], drawn[2])
    assert not torch.equal(drawn[0], drawn[1])
    assert 0.4 < drawn[0].mean() < 0.6


def test_parts_look_at_their_own_maps() -> None:
    method = exchnet().eval()
    images = torch.rand(2, 3, SIDE, SIDE)
    norm = method.attention[1]
    assert isinstance(norm, torch.nn.BatchNorm2d)
    with torch.no_grad():
        norm.bias.fill_(1)  # no map is dark by chance
    seen = method.extract(images)
    dim = method.backbone.channels[-1]
    assert seen.whole.shape == (2, dim)
    assert seen.parts.shape == (2, PARTS, dim)
    assert seen.maps.shape[:2] == (2, PARTS)
    assert seen.maps.min() >= 0
    # Blinding one part's map changes that part only.
    with torch.no_grad():
        norm.weight[2], norm.bias[2] = 0, 0
    blinded = method.extract(images)
    changed = (blinded.parts - seen.parts).abs().amax((0, 2)) > 1e-6
    assert changed.tolist() == [False, False, True, False]


@pytest.mark.parametrize(
    ("option", "allowed"), [("anchor=-1", "0 or more"), ("swap=1.5", r"in \[0, 1\]")]
)
def test_bad_options_are_refused(option: str, allowed: str) -> None:
    with pytest.raises(ConfigError, match=f"{option}.* must be {allowed}"):
        tiny_method("exchnet", f"method.options.{option}")
