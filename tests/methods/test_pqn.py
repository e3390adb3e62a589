"""PQN: asymmetric triplets by loops, full attention, codebooks that start and move."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from phpq.errors import ConfigError
from phpq.methods.pqn import PQN, asymmetric_triplet_loss
from phpq.model.quantizer import partial_attention
from reference import reconstruct_loop
from tiny_hashing import (
    inner_product,
    random_batch,
    tiny_method,
    training_set,
    triplets,
)
from tiny_runs import SIDE


def pqn(*assignments: str) -> PQN:
    method = tiny_method("pqn", *assignments)
    assert isinstance(method, PQN)
    return method


@pytest.fixture(scope="module")
def pixels() -> torch.Tensor:
    return torch.rand(8, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))


def test_triplets_compare_anchors_with_reconstructions() -> None:
    anchors, labels = random_batch(seed=0)
    soft, _ = random_batch(seed=1)
    losses = []
    for a, p, n in triplets(labels):
        difference = inner_product(anchors[a], soft[n]) - inner_product(anchors[a], soft[p])
        losses.append(math.log(1 + math.exp(0.7 * difference)))
    loss = asymmetric_triplet_loss(anchors, soft, labels, 0.7)
    assert loss.item() == pytest.approx(sum(losses) / len(losses), rel=1e-4)


def test_the_objective_uses_unit_sub_vectors_and_every_codeword(pixels: torch.Tensor) -> None:
    method = pqn("quantizer.kappa=3", "method.options.scale=4").eval()
    embedding = method.extract(pixels).detach()
    _, labels = random_batch()
    unit, soft = [], []
    for row in embedding.tolist():
        halves = [row[:16], row[16:]]
        lengths = [math.sqrt(sum(v * v for v in half)) for half in halves]
        unit.append([v / s for half, s in zip(halves, lengths, strict=True) for v in half])
        books = method.quantizer.codebooks.tolist()
        soft.append(reconstruct_loop(row, books, alpha=4.0, kappa=256))
    anchors, others = torch.tensor(unit), torch.tensor(soft)
    expected = asymmetric_triplet_loss(anchors, others, labels, 4 / 2)
    learned = method.objective(embedding, labels, torch.arange(8))
    assert learned.loss.item() == pytest.approx(expected.item(), rel=1e-4)
    assert [part.item() for part in learned.parts] == [learned.loss.item(), 0]


def test_a_classifier_of_both_forms_can_be_asked_for(pixels: torch.Tensor) -> None:
    method = pqn("method.options.classification=0.3", "loss.tau=0.5").eval()
    plain = pqn().eval()
    plain.load_state_dict(method.state_dict(), strict=False)
    embedding = method.extract(pixels).detach()
    _, labels = random_batch()
    soft = method.quantizer(embedding)
    assert isinstance(soft, torch.Tensor)
    expected = 0.0
    for vectors in (method.quantizer.split(embedding).flatten(1), soft):
        logits = (2 * (vectors @ method.classifier.weight.T + method.classifier.bias)).tolist()
        for row, label in zip(logits, labels.tolist(), strict=True):
            expected += (math.log(sum(map(math.exp, row))) - row[label]) / len(logits)
    learned = method.objective(embedding, labels, torch.arange(8))
    triplets_alone = plain.objective(embedding, labels, torch.arange(8)).loss.item()
    assert learned.parts[1].item() == pytest.approx(expected, rel=1e-4)
    assert learned.loss.item() == pytest.approx(triplets_alone + 0.3 * expected, rel=1e-4)


def test_full_attention_is_the_plain_softmax() -> None:
    logits = torch.randn(3, 2, 256, generator=torch.Generator().manual_seed(0))
    weights = partial_attention(logits, pqn("quantizer.kappa=1").quantizer.config.kappa)
    torch.testing.assert_close(weights, logits.softmax(-1))
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 2))


def test_sub_vectors_have_unit_length_each(pixels: torch.Tensor) -> None:
    method = pqn()
    parts = method.quantizer.split(method.extract(pixels))
    torch.testing.assert_close(parts.norm(dim=2), torch.ones(8, 2))


def test_the_loss_moves_the_codebooks_and_the_head(pixels: torch.Tensor) -> None:
    method = pqn()
    _, labels = random_batch()
    learned = method.objective(method.extract(pixels), labels, torch.arange(8))
    torch.autograd.backward(learned.loss)
    for parameter in (method.quantizer.codebooks, method.transform.weight):
        assert parameter.grad is not None
        assert parameter.grad.abs().max() > 0


def test_codes_of_the_batch_are_those_of_search(pixels: torch.Tensor) -> None:
    method = pqn().eval()
    embedding = method.embed(pixels)
    learned = method.objective(embedding, random_batch()[1], torch.arange(8))
    codes = method.export().encode(embedding.detach().numpy())
    assert learned.codes.dtype == torch.uint8
    assert learned.codes.tolist() == codes.tolist()


def test_both_views_count_the_same(pixels: torch.Tensor) -> None:
    method = pqn().eval()
    mirrored = method.embed(pixels, mirrored=True)
    torch.testing.assert_close(mirrored, method.embed(pixels.flip(-1), mirrored=True))
    assert not torch.equal(mirrored, method.embed(pixels))


def test_there_is_no_classifier() -> None:
    names = {name.partition(".")[0] for name, _ in pqn().named_parameters()}
    assert names == {"backbone", "transform", "quantizer"}


@pytest.mark.parametrize(("init", "epoch"), [("kmeans", 0), ("kmeans", 1), ("xavier", 0)])
def test_codebooks_start_by_kmeans_once(init: str, epoch: int) -> None:
    method = pqn(f"quantizer.init={init}")
    before = method.quantizer.codebooks.detach().clone()
    embeddings = torch.randn(300, 32, generator=torch.Generator().manual_seed(0))
    told: list[str] = []
    training = dataclasses.replace(
        training_set(torch.arange(4)), embed=lambda: embeddings, message=told.append
    )
    change = method.prepare_epoch(epoch, training)
    started = init == "kmeans" and epoch == 0
    assert change.adopt == (("quantizer",) if started else ())
    assert bool(told) == started
    assert torch.equal(method.quantizer.codebooks, before) != started


def test_queries_are_scored_as_the_config_says() -> None:
    assert pqn().query_norm == "unit"
    assert pqn("quantizer.query_norm=raw").query_norm == "raw"


@pytest.mark.parametrize(
    ("option", "allowed"), [("scale=0", "above 0"), ("classification=-1", "0 or more")]
)
def test_bad_options_are_refused(option: str, allowed: str) -> None:
    with pytest.raises(ConfigError, match=rf"options\.{option}.* must be {allowed}"):
        tiny_method("pqn", f"method.options.{option}")
