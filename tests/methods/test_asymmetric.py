"""Asymmetric hashing against plain loops: S, the loss of a batch, and the codes bit by bit."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
import torch
from torch import Tensor

from phpq.methods._asymmetric import (
    DESCRIPTOR_LENGTH,
    AsymmetricHashing,
    Similarity,
    update_codes,
)
from tiny_hashing import BITS, inner_product, part_of, random_batch, training_set
from tiny_runs import CLASSES

LABELS = torch.tensor([1, 2, 3, 0, 0, 3, 1, 0, 2, 1])
ROWS = torch.tensor([3, 0, 7, 1, 9, 4, 5, 8])  # of the random batch


def similarity_by_loops(labels: Tensor) -> list[list[float]]:
    same = [[bool(a == b) for b in labels] for a in labels]
    positive = sum(sum(row) for row in same)
    ratio = positive / (len(labels) ** 2 - positive)
    return [[1.0 if value else -ratio for value in row] for row in same]


def loss_by_loops(codes: Tensor, outputs: Tensor, labels: Tensor, gamma: float) -> float:
    """L of all images against all codes, as written in the head of the module."""
    wanted = similarity_by_loops(labels)
    count, bits = codes.shape
    error = sum(
        (inner_product(outputs[i], codes[j]) / bits - wanted[i][j]) ** 2
        for i, j in product(range(count), range(count))
    )
    energy = sum(value**2 for row in wanted for value in row)
    gap = sum((v - u) ** 2 for v, u in zip(codes.flatten(), outputs.flatten(), strict=True))
    return error / energy + gamma * float(gap) / (count * bits)


def random_codes(bits: int, *, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 2, (len(LABELS), bits), generator=generator) * 2.0 - 1


def started() -> AsymmetricHashing:
    torch.manual_seed(0)
    method = part_of(AsymmetricHashing, "adsh")
    method.gamma = 0.3
    method.start(training_set(LABELS))
    return method


def test_similarity_is_that_of_loops_and_sums_to_zero() -> None:
    similarity = Similarity(LABELS, CLASSES)
    rows = similarity.rows(LABELS)
    torch.testing.assert_close(rows, torch.tensor(similarity_by_loops(LABELS)))
    assert rows.sum().item() == pytest.approx(0, abs=1e-5)
    assert similarity.energy == pytest.approx(rows.square().sum(1).mean().item())


def test_class_sums_replace_the_product_with_all_pairs() -> None:
    values = torch.randn(len(LABELS), 5, generator=torch.Generator().manual_seed(3))
    similarity = Similarity(LABELS, CLASSES)
    torch.testing.assert_close(similarity.times(values), similarity.rows(LABELS) @ values)


def test_a_single_class_has_no_dissimilar_pairs() -> None:
    similarity = Similarity(torch.zeros(3, dtype=torch.long), 1)
    assert torch.equal(similarity.rows(torch.zeros(2, dtype=torch.long)), torch.ones(2, 3))


@pytest.mark.parametrize("gamma", [0.0, 0.5])
def test_each_bit_is_the_better_one_of_two(gamma: float) -> None:
    """A twin that tries both signs of every bit of every image."""
    bits = 4
    outputs = torch.randn(len(LABELS), bits, generator=torch.Generator().manual_seed(2)).tanh()
    codes = random_codes(bits)
    expected = codes.clone()
    for bit, image in product(range(bits), range(len(LABELS))):
        losses = {}
        for sign in (1.0, -1.0):
            expected[image, bit] = sign
            losses[sign] = loss_by_loops(expected, outputs, LABELS, gamma)
        expected[image, bit] = min(losses, key=losses.__getitem__)
    update_codes(codes, outputs, Similarity(LABELS, CLASSES), gamma=gamma)
    assert torch.equal(codes, expected)


def test_an_update_never_raises_the_loss_and_comes_to_rest() -> None:
    outputs = torch.randn(len(LABELS), BITS, generator=torch.Generator().manual_seed(5)).tanh()
    codes, similarity = random_codes(BITS), Similarity(LABELS, CLASSES)
    losses = [loss_by_loops(codes, outputs, LABELS, 0.2)]
    for _ in range(12):
        update_codes(codes, outputs, similarity, gamma=0.2)
        losses.append(loss_by_loops(codes, outputs, LABELS, 0.2))
    assert losses[1] < losses[0]
    assert all(after <= before + 1e-6 for before, after in pairwise(losses))
    assert losses[-1] == losses[-2]


def test_a_bit_without_evidence_is_positive() -> None:
    codes = -torch.ones(len(LABELS), 4)
    update_codes(codes, torch.zeros(len(LABELS), 4), Similarity(LABELS, CLASSES), gamma=1.0)
    assert torch.equal(codes, torch.ones(len(LABELS), 4))


def test_the_loss_of_a_batch_is_its_share_of_the_whole() -> None:
    method = started()
    outputs, labels = random_batch()
    outputs = outputs.detach()
    wanted = similarity_by_loops(LABELS)
    errors = [
        sum(
            (inner_product(u, v) / BITS - wanted[int(row)][j]) ** 2
            for j, v in enumerate(method.database)
        )
        for u, row in zip(outputs, ROWS, strict=True)
    ]
    energy = sum(value**2 for row in wanted for value in row) / len(LABELS)
    loss = method.similarity_loss(outputs, labels, ROWS)
    assert loss.item() == pytest.approx(sum(errors) / len(errors) / energy, rel=1e-5)


def test_outputs_of_nothing_cost_about_one() -> None:
    method = started()
    _, labels = random_batch()
    nothing = torch.zeros(len(labels), BITS)
    assert method.similarity_loss(nothing, labels, ROWS).item() == pytest.approx(1, rel=0.1)


def test_descriptors_are_centred_and_of_one_length() -> None:
    method = started().train()
    maps = 5 + torch.rand(64, method.backbone.channels[-1], 2, 2)
    centred = method.describe([maps])
    assert centred.mean(0).abs().max() < 1e-4
    assert centred.norm(dim=1).mean().item() == pytest.approx(DESCRIPTOR_LENGTH, rel=0.05)


def test_batches_fill_the_buffer_and_epochs_fit_the_codes() -> None:
    method = started()
    training = training_set(LABELS)
    first = method.database.clone()
    assert torch.equal(first[0], first[6])  # a pattern a class to start with
    outputs, labels = random_batch()
    method.similarity_loss(outputs, labels, ROWS)
    assert torch.equal(method.outputs[ROWS], outputs.detach())
    assert torch.equal(method.outputs[2], torch.zeros(BITS))  # not in the batch
    assert not method.outputs.requires_grad
    method.prepare_epoch(0, training)
    assert torch.equal(method.database, first)
    kept = method.memory()["database"]
    method.prepare_epoch(1, training)
    assert kept is method.database  # in place: a captured step reads it
    update_codes(first, method.outputs, method.similarity, gamma=0.3)
    assert torch.equal(method.database, first)


def test_the_learned_codes_are_the_packed_database() -> None:
    method = started()
    codes = method.learned_codes()
    assert codes is not None
    signs = method.export().decode(codes)  # codewords are signs
    np.testing.assert_array_equal(signs, method.database.numpy())


def test_there_are_none_before_learning_starts() -> None:
    assert part_of(AsymmetricHashing, "adsh").learned_codes() is None
