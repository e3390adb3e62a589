"""Shallow methods on features made up here: no images, no backbone in the way."""

from __future__ import annotations

import numpy as np
import torch

from phpq.codes import CodeArray, FloatArray
from phpq.config import override, with_bits
from phpq.methods._shallow import ShallowMethod
from phpq.model import build_method
from tiny_runs import CLASSES, tiny_config

CHANNELS = 96  # of the last stage of the tiny backbone


def shallow(name: str, *assignments: str, bits: int = 16) -> ShallowMethod:
    """Return a method of the tiny settings, not fitted, on features that are not fine-tuned."""
    base = ("quantizer.codebook_size=256", "method.features=imagenet", f"method.name={name}")
    width = f"model.embedding_dim={bits}"  # not used, but a multiple of the codebooks
    config = with_bits(tiny_config(*base, width, "quantizer.num_codebooks=1"), bits)
    torch.manual_seed(0)
    method = build_method(override(config, assignments), CLASSES)
    assert isinstance(method, ShallowMethod)
    return method.eval()


def made_up_features(rows: int, *, seed: int = 0, noise: float = 1.0) -> torch.Tensor:
    """Return (rows, 96) features as a ReLU leaves them: positive, far from centred, correlated."""
    rng = np.random.default_rng(seed)
    mixing = np.random.default_rng(99).standard_normal((CHANNELS, CHANNELS)) / 6
    scales = np.geomspace(3, 0.05, CHANNELS)
    hidden = (rng.standard_normal((rows, CHANNELS)) * scales) @ mixing
    return torch.from_numpy(np.maximum(noise * hidden + 1, 0).astype(np.float32))


def unit_features(features: torch.Tensor, train: torch.Tensor) -> FloatArray:
    """Centre with the mean of the training rows and scale to unit length, in float64."""
    centred = features.double().numpy() - train.double().numpy().mean(0)
    lengths = np.linalg.norm(centred, axis=1, keepdims=True)
    unit: FloatArray = (centred / np.where(lengths > 0, lengths, 1)).astype(np.float32)
    return unit


def codes_of(method: ShallowMethod, features: torch.Tensor) -> CodeArray:
    return method.export().encode(method.encode_features(features).numpy())
