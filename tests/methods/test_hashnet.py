"""HashNet: the pair loss by loops, and the tanh that sharpens."""

from __future__ import annotations

import math

import pytest
import torch

from phpq.errors import ConfigError
from phpq.methods.hashnet import HashNet
from tiny_hashing import (
    BITS,
    inner_product,
    mean_by_kind,
    random_batch,
    tiny_method,
    training_set,
)
from tiny_runs import SIDE


def hashnet(*assignments: str) -> HashNet:
    method = tiny_method("hashnet", *assignments)
    assert isinstance(method, HashNet)
    return method


def test_the_loss_is_that_of_loops() -> None:
    outputs, labels = random_batch()
    outputs = outputs.tanh()
    losses = []
    for i, first in enumerate(outputs):
        row = []
        for j, second in enumerate(outputs):
            x = 6 / BITS * inner_product(first, second)
            row.append(math.log(1 + math.exp(x)) - (x if labels[i] == labels[j] else 0))
        losses.append(row)
    (loss,) = hashnet("method.options.scale=6").loss(outputs, labels, torch.arange(8))
    assert loss.item() == pytest.approx(mean_by_kind(losses, labels), rel=1e-4)
    uneven = hashnet("method.options.scale=6", "method.options.similar_share=0.2")
    (loss,) = uneven.loss(outputs, labels, torch.arange(8))
    assert loss.item() == pytest.approx(mean_by_kind(losses, labels, similar_share=0.2), rel=1e-4)


def test_the_scale_does_not_depend_on_the_bits() -> None:
    codes = torch.tensor([[1.0], [1.0]])
    labels, rows = torch.zeros(2, dtype=torch.long), torch.arange(2)
    losses = [
        hashnet(f"quantizer.num_codebooks={books}").loss(codes.expand(-1, 8 * books), labels, rows)
        for books in (2, 8)
    ]
    expected = 0.5 * math.log(1 + math.exp(-10))
    assert [loss.item() for (loss,) in losses] == pytest.approx([expected] * 2, rel=1e-3)


def test_the_tanh_sharpens_with_the_epochs() -> None:
    method = hashnet()
    beta = method.get_buffer("beta")
    seen = []
    for epoch in (0, 4, 9):
        change = method.prepare_epoch(epoch, training_set(torch.arange(4), epochs=10))
        assert not change.new_step  # a captured step reads the buffer
        seen.append(beta.item())
    assert method.get_buffer("beta") is beta
    assert seen == pytest.approx([1.0, math.sqrt(21), math.sqrt(46)])
    outputs = torch.tensor([[0.1, -0.3]])
    expected = [[math.tanh(math.sqrt(46) * v) for v in (0.1, -0.3)]]
    torch.testing.assert_close(method.squash(outputs), torch.tensor(expected))


def test_signs_do_not_depend_on_the_sharpness() -> None:
    method = hashnet().eval()
    assert "beta" not in method.state_dict()
    pixels = torch.rand(4, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    before = method.embed(pixels)
    method.prepare_epoch(9, training_set(torch.arange(4), epochs=10))
    assert torch.equal(method.embed(pixels), before)


@pytest.mark.parametrize(
    ("option", "allowed"),
    [
        ("scale=0", "above 0"),
        ("growth=-1", "0 or more"),
        ("similar_share=1", r"in \(0, 1\)"),
    ],
)
def test_bad_options_are_refused(option: str, allowed: str) -> None:
    with pytest.raises(ConfigError, match=rf"options\.{option}.* must be {allowed}"):
        tiny_method("hashnet", f"method.options.{option}")
