"""The batch norm of several processes against torch's on the whole batch."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import cast

import pytest
import torch
from timm.layers import BatchNormAct2d
from torch import nn

import process_groups
from phpq.errors import ConfigError
from phpq.model.weights import read_safetensors
from phpq.training import distributed
from phpq.training.distributed import Group, SyncedBatchNorm, synchronise
from process_groups import together

TWO = Group(0, 2)


def norms() -> dict[str, nn.Module]:
    """Return batch norms of all kinds, with weights that matter."""
    found: dict[str, nn.Module] = {
        "plain": nn.BatchNorm1d(3),
        "bare": nn.BatchNorm1d(3, affine=False),
        "images": nn.BatchNorm2d(3, momentum=0.3, eps=1e-3),
        "cumulative": nn.BatchNorm2d(3, momentum=None),
        "untracked": nn.BatchNorm1d(3, track_running_stats=False),
        "active": BatchNormAct2d(3),
        "half": nn.BatchNorm2d(3),
    }
    torch.manual_seed(1)
    for norm in found.values():
        for parameter in norm.parameters():
            nn.init.uniform_(parameter, 0.5, 2)
    return found


def batches() -> dict[str, torch.Tensor]:
    """Return three batches of 8 for each norm, far from zero."""
    generator = torch.Generator().manual_seed(0)
    result = {}
    for name in norms():
        flat = name in ("plain", "bare", "untracked")
        shape = (3, 8, 3) if flat else (3, 8, 3, 4, 5)
        values = 100 * torch.rand((3, 1, 3, *[1] * (len(shape) - 3)), generator=generator)
        values = values + torch.randn(shape, generator=generator)
        result[name] = values.bfloat16() if name == "half" else values
    return result


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.rare)])
def test_it_is_the_batch_norm_of_the_whole_batch(tmp_path: Path, size: int) -> None:
    assert together(1, process_groups.normalise, norms(), batches(), tmp_path / "one") == [0]
    job = process_groups.normalise
    assert together(size, job, norms(), batches(), tmp_path / "all") == [0] * size
    one, _ = read_safetensors(tmp_path / "one")
    found, _ = read_safetensors(tmp_path / "all")
    assert found.keys() == one.keys()
    assert {"plain.running_var", "images.weight.grad", "active.0.output"} <= found.keys()
    for key, value in one.items():
        close = 2e-2 if key.startswith("half") else 2e-4
        torch.testing.assert_close(found[key], value, rtol=close, atol=close, msg=key)


def test_the_state_is_that_of_the_module_it_replaces() -> None:
    module = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.BatchNorm1d(3), nn.ReLU()))
    before, parameters = module.state_dict(), list(module.parameters())
    synchronise(module, TWO)
    synced = module.get_submodule("1.0")
    assert isinstance(synced, SyncedBatchNorm)
    assert list(module.state_dict()) == list(before)
    assert all(a is b for a, b in zip(module.parameters(), parameters, strict=True))
    fresh = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.BatchNorm1d(3), nn.ReLU()))
    fresh.load_state_dict(module.state_dict())
    module.load_state_dict(fresh.state_dict())


def test_it_needs_no_other_process_for_a_whole_batch_or_in_evaluation() -> None:
    plain, module = nn.BatchNorm1d(3), nn.ModuleDict({"norm": nn.BatchNorm1d(3)})
    group = Group(0, 2)  # there is no connection: an exchange would raise
    synchronise(module, group)
    values = torch.randn(5, 3)
    with group.whole_batch():
        assert torch.equal(module["norm"](values), plain(values))
    assert group.sharded
    assert torch.equal(module.eval()["norm"](values), plain.eval()(values))
    states = (module["norm"].state_dict(), plain.state_dict())
    assert torch.equal(*(state["running_var"] for state in states))
    with pytest.raises(ValueError, match="process group"):
        module.train()["norm"](values)


def test_one_process_keeps_its_modules() -> None:
    module = nn.Sequential(nn.BatchNorm1d(3))
    synchronise(module, Group())
    assert type(module[0]) is nn.BatchNorm1d


def test_an_unknown_kind_is_refused() -> None:
    class Other(nn.BatchNorm2d):
        pass

    with pytest.raises(ConfigError, match="Other cannot be shared by 2 processes"):
        synchronise(nn.Sequential(Other(3)), TWO)


class _Alone:
    """A group of one that still takes part in every exchange."""

    size = 1
    sharded = True

    @staticmethod
    def gather(values: torch.Tensor) -> torch.Tensor:
        return values

    @staticmethod
    def sum(values: torch.Tensor) -> torch.Tensor:
        return values


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("kernels", [True, False])
def test_with_or_without_kernels_it_is_torchs_own(
    kernels: bool, affine: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributed, "_has_kernels", lambda _: kernels)
    torch.manual_seed(0)
    plain = nn.BatchNorm2d(3, affine=affine).double()
    for parameter in plain.parameters():
        nn.init.uniform_(parameter, 0.5, 2)
    synced = SyncedBatchNorm(copy.deepcopy(plain), cast(Group, _Alone()))
    images = 5 + 3 * torch.randn(6, 3, 4, 5, dtype=torch.float64)
    weights = torch.randn_like(images)
    seen = []
    for norm in (plain, synced):
        x = images.clone().requires_grad_()
        output = norm(x)
        (output * weights).sum().backward()
        gradients = [parameter.grad for parameter in norm.parameters()]
        seen.append([output, x.grad, *gradients, norm.running_mean, norm.running_var])
    torch.testing.assert_close(seen[1], seen[0], rtol=1e-10, atol=1e-10)
