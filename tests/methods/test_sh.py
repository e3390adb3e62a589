"""Spectral hashing against plain loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from phpq.errors import ConfigError
from phpq.methods.sh import smoothest_modes
from shallow_features import CHANNELS, made_up_features, shallow, unit_features


def modes_loop(width: list[float], count: int) -> list[tuple[int, int]]:
    """List all candidates as the original does, constant left out, and sort by omega^2."""
    candidates = []
    for axis, length in enumerate(width):
        most = math.ceil((count + 1) * length / max(width))
        for waves in range(1, most):
            candidates.append(((waves * math.pi / length) ** 2, axis, waves))
    candidates.sort(key=lambda item: item[0])
    return [(axis, waves) for _, axis, waves in candidates[:count]]


@pytest.mark.parametrize("count", [8, 16])
@pytest.mark.parametrize("widths", [(5.0, 3.0, 2.5), (9.0, 1.0), (2.0, 2.0, 2.0), (4.0,)])
def test_modes_are_those_of_lowest_frequency(widths: tuple[float, ...], count: int) -> None:
    axis, waves = smoothest_modes(np.array(widths), count)
    chosen = list(zip(axis.tolist(), waves.tolist(), strict=True))
    assert len(set(chosen)) == count  # never the same wave twice
    expected = modes_loop(list(widths), count)
    frequency = [w / widths[a] for a, w in chosen]
    assert frequency == pytest.approx([w / widths[a] for a, w in expected])
    assert min(waves) >= 1  # the constant says nothing
    if len(set(widths)) == len(widths):
        assert set(chosen) == set(expected)


def test_bits_are_the_signs_of_waves_along_the_axes() -> None:
    train, others = made_up_features(100), made_up_features(5, seed=1)
    method = shallow("sh")
    method.fit_features(train, seed=0)
    unit = unit_features(train, train).astype(np.float64)
    _, vectors = np.linalg.eigh(np.cov(unit.T))
    axes = vectors.T[::-1][:16]
    axes *= np.sign(axes[np.arange(16), np.abs(axes).argmax(1)])[:, None]
    values = unit @ axes.T
    low, high = values.min(0) - 1e-7, values.max(0) + 1e-7
    modes = modes_loop((high - low).tolist(), 16)
    scores = (unit_features(others, train) @ axes.T).tolist()
    signs = method.encode_features(others).tolist()
    for row, point in zip(signs, scores, strict=True):
        for sign, (j, k) in zip(row, modes, strict=True):
            inside = min(max(point[j], low[j]), high[j])
            wave = math.sin(math.pi / 2 + k * math.pi / (high[j] - low[j]) * (inside - low[j]))
            if abs(wave) > 1e-3:  # rounding decides the others
                assert sign == math.copysign(1, wave)


def test_values_outside_the_range_count_as_its_ends() -> None:
    method = shallow("sh")
    method.fit_features(made_up_features(100), seed=0)
    axes, low, width = (method.get_buffer(name) for name in ("axes", "low", "width"))
    bit = int(method.get_buffer("waves").argmax())
    end = axes[bit] * (low[bit] + width[bit])
    beyond = axes[bit] * (low[bit] + 1.7 * width[bit])
    at_end, outside = method.project(torch.stack([end, beyond]))
    assert at_end[bit] == outside[bit]


def test_more_bits_than_directions_are_refused() -> None:
    message = rf"'sh' with bits=128 .* features of 'test_resnet' have {CHANNELS}\."
    with pytest.raises(ConfigError, match=message):
        shallow("sh", bits=128)
    method = shallow("sh")
    with pytest.raises(ConfigError, match=r"'sh' with bits=16 .* 10 images have 9"):
        method.fit_features(made_up_features(10), seed=0)
