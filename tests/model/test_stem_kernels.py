"""The kernels do what their plain twins do; here as Triton's interpreter runs them, on a CPU."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch

from phpq.model.stem_pool import NOWHERE, norm_relu_pool, norm_relu_pool_gradient

KERNELS = "phpq.model.stem_kernels"
CHANNELS = 8
LAST = torch.channels_last


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    before = sys.modules.pop(KERNELS, None)
    yield importlib.import_module(KERNELS)
    del sys.modules[KERNELS]
    if before is not None:
        sys.modules[KERNELS] = before


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("size", [(12, 16), (7, 9), (8, 5), (1, 1)])
def test_both_ways(kernels: ModuleType, size: tuple[int, int], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    maps = torch.randn(3, CHANNELS, *size).to(dtype).contiguous(memory_format=LAST)
    scale, shift, along, offset = torch.randn(4, CHANNELS)
    none, one = torch.zeros(CHANNELS), torch.ones(CHANNELS)
    pooled, best, taps = norm_relu_pool(maps, scale, shift, none, one)
    got = kernels.take_maxima(maps, scale, shift)
    torch.testing.assert_close(got[0], pooled)
    assert torch.equal(got[1], best)
    assert torch.equal(got[2], taps)
    assert (taps == NOWHERE).any()
    slope = torch.randn(pooled.shape).to(dtype).contiguous(memory_format=LAST)
    expected = norm_relu_pool_gradient(slope, taps, maps, scale, along, offset)
    gradient = kernels.send_back(slope, taps, maps, scale, along, offset)
    torch.testing.assert_close(gradient, expected)
    assert gradient.is_contiguous(memory_format=LAST)


def test_more_than_one_block(kernels: ModuleType) -> None:
    torch.manual_seed(0)
    maps = torch.randn(2, CHANNELS, 33, 34).contiguous(memory_format=LAST)
    scale, shift = torch.randn(2, CHANNELS)
    none, one = torch.zeros(CHANNELS), torch.ones(CHANNELS)
    expected = norm_relu_pool(maps, scale, shift, none, one)
    assert expected[0].numel() > 2 * kernels.BLOCK
    for value, twin in zip(kernels.take_maxima(maps, scale, shift), expected, strict=True):
        torch.testing.assert_close(value, twin)


def test_what_is_no_number_is_passed_on(kernels: ModuleType) -> None:
    maps = torch.randn(1, CHANNELS, 4, 4).contiguous(memory_format=LAST)
    scale = torch.full((CHANNELS,), torch.nan)
    pooled, _, _ = kernels.take_maxima(maps, scale, scale)
    assert pooled.isnan().all()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [(112, 112), (7, 9)])
def test_both_ways_on_a_gpu(size: tuple[int, int], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    maps = torch.randn(4, 64, *size).to(dtype).contiguous(memory_format=LAST)
    vectors = torch.randn(4, 64)
    pooled, best, taps = norm_relu_pool(maps, *vectors)
    got = norm_relu_pool(maps.cuda(), *vectors.cuda())
    torch.testing.assert_close(got[0].cpu(), pooled)
    assert torch.equal(got[1].cpu(), best)
    assert torch.equal(got[2].cpu(), taps)
    slope = torch.randn(pooled.shape).to(dtype)
    expected = norm_relu_pool_gradient(slope, taps, maps, *vectors[:3])
    there = norm_relu_pool_gradient(slope.cuda(), taps.cuda(), maps.cuda(), *vectors[:3].cuda())
    torch.testing.assert_close(there.cpu(), expected)
