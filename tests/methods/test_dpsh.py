"""DPSH: the likelihood by loops, and the buffer of all training images."""

from __future__ import annotations

import math

import pytest
import torch

from phpq.errors import ConfigError
from phpq.methods.dpsh import DPSH
from tiny_hashing import (
    BITS,
    inner_product,
    mean_by_kind,
    random_batch,
    tiny_method,
    training_set,
)

ROWS = torch.tensor([3, 0, 7, 1, 9, 4, 5, 8])  # of the batch in a training set of ten
ALL_LABELS = torch.tensor([1, 2, 3, 0, 0, 3, 1, 0, 2, 1])  # agree with the batch at ROWS


def dpsh(*assignments: str) -> DPSH:
    method = tiny_method("dpsh", *assignments)
    assert isinstance(method, DPSH)
    method.start(training_set(ALL_LABELS))
    return method


def pair_loss(first: torch.Tensor, second: torch.Tensor, *, similar: bool) -> float:
    theta = inner_product(first, second) / 2  # at 16 bits
    return math.log(1 + math.exp(theta)) - (theta if similar else 0)


def test_the_rows_of_the_batch_have_its_labels() -> None:
    assert torch.equal(ALL_LABELS[ROWS], random_batch()[1])


def test_the_first_batch_is_compared_with_itself() -> None:
    outputs, labels = random_batch()
    losses = [
        [
            pair_loss(a, b, similar=bool(labels[i] == labels[j])) if i != j else math.nan
            for j, b in enumerate(outputs)
        ]
        for i, a in enumerate(outputs)
    ]
    gap = sum((abs(v) - 1) ** 2 for v in outputs.flatten().tolist()) / outputs.numel()
    total, *parts = dpsh("method.options.quantization=0.3").loss(outputs, labels, ROWS)
    # Rows 2 and 6 were never filled: their zeros do not count.
    assert parts[0].item() == pytest.approx(mean_by_kind(losses, labels), rel=1e-4)
    assert parts[1].item() == pytest.approx(gap, rel=1e-4)
    assert total.item() == pytest.approx(mean_by_kind(losses, labels) + 0.3 * gap, rel=1e-4)


def test_later_batches_are_compared_with_all_that_passed() -> None:
    method = dpsh()
    before, labels = random_batch(seed=0)
    method.loss(before, labels, ROWS)
    outputs, rows = random_batch(seed=1)[0][:2], torch.tensor([2, 0])
    _, likelihood, _ = method.loss(outputs, ALL_LABELS[rows], rows)
    last = {int(row): before[i] for i, row in enumerate(ROWS)} | {2: outputs[0], 0: outputs[1]}
    kinds: dict[bool, list[float]] = {True: [], False: []}
    for output, row in zip(outputs, rows.tolist(), strict=True):
        for other in last:
            similar = bool(ALL_LABELS[row] == ALL_LABELS[other])
            if other != row:
                kinds[similar].append(pair_loss(output, last[other], similar=similar))
    expected = sum(sum(kind) / len(kind) for kind in kinds.values()) / 2
    assert likelihood.item() == pytest.approx(expected, rel=1e-4)


def test_the_buffer_holds_the_last_outputs_in_place_and_without_gradients() -> None:
    method = dpsh()
    buffer = method.memory()["outputs"]
    assert buffer.shape == (10, BITS)
    outputs, labels = random_batch()
    for factor in (1.0, 2.0):
        total, *_ = method.loss(factor * outputs, labels, ROWS)
        torch.autograd.backward(total)  # the buffer was written before it was read
        torch.testing.assert_close(buffer[ROWS], factor * outputs.detach())
    assert method.memory()["outputs"] is buffer
    assert not buffer.requires_grad
    assert not buffer[[2, 6]].any()


def test_the_buffer_is_not_part_of_the_model() -> None:
    assert not any("outputs" in name for name in dpsh().state_dict())


def test_large_outputs_stay_finite() -> None:
    outputs, labels = random_batch(spread=1e3)
    total, *_ = dpsh().loss(outputs, labels, ROWS)
    torch.autograd.backward(total)
    assert total.isfinite()
    assert outputs.grad is not None
    assert outputs.grad.isfinite().all()


def test_theta_of_equal_codes_does_not_depend_on_the_bits() -> None:
    losses = []
    for books in (2, 8):
        method = dpsh(f"quantizer.num_codebooks={books}", "method.options.scale=3")
        codes = torch.ones(2, 8 * books)
        _, likelihood, _ = method.loss(codes, ALL_LABELS[[3, 4]], torch.tensor([3, 4]))
        losses.append(likelihood.item())
    assert losses == pytest.approx([0.5 * math.log(1 + math.exp(-3))] * 2, rel=1e-4)


@pytest.mark.parametrize(
    ("option", "allowed"), [("quantization=-1", "0 or more"), ("scale=0", "above 0")]
)
def test_bad_options_are_refused(option: str, allowed: str) -> None:
    with pytest.raises(ConfigError, match=rf"options\.{option}.* must be {allowed}"):
        tiny_method("dpsh", f"method.options.{option}")
