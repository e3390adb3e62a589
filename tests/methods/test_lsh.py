"""LSH against plain loops and against faiss with the same hyperplanes."""

from __future__ import annotations

import numpy as np
import torch

from phpq.codes import hamming_distances
from shallow_features import CHANNELS, codes_of, made_up_features, shallow, unit_features


def test_bits_are_the_sides_of_hyperplanes() -> None:
    train, others = made_up_features(60), made_up_features(4, seed=1)
    method = shallow("lsh")
    method.fit_features(train, seed=0)
    planes = method.get_buffer("projection").tolist()
    signs = method.encode_features(others).tolist()
    for row, point in zip(signs, unit_features(others, train).tolist(), strict=True):
        for sign, plane in zip(row, planes, strict=True):
            side = sum(a * b for a, b in zip(plane, point, strict=True))
            assert sign == (1.0 if side >= 0 else -1.0)


def test_hyperplanes_are_standard_normal_and_follow_the_seed() -> None:
    method = shallow("lsh", bits=64)
    method.fit_features(made_up_features(10), seed=1)
    first = method.get_buffer("projection").clone()
    assert abs(first.mean().item()) < 0.05
    assert abs(first.std().item() - 1) < 0.05
    method.fit_features(made_up_features(90, seed=4), seed=1)
    assert torch.equal(method.get_buffer("projection"), first)  # features have no say
    method.fit_features(made_up_features(10), seed=2)
    assert not torch.equal(method.get_buffer("projection"), first)


def test_more_bits_than_dimensions_are_allowed() -> None:
    method = shallow("lsh", bits=128)
    assert method.embedding_dim == 128 > CHANNELS
    method.fit_features(made_up_features(10), seed=0)
    assert codes_of(method, made_up_features(3)).shape == (3, 16)


def test_codes_and_order_are_those_of_faiss() -> None:
    import faiss

    train, queries = made_up_features(80), made_up_features(6, seed=1)
    method = shallow("lsh")
    method.fit_features(train, seed=0)
    index = faiss.IndexLSH(CHANNELS, 16, True, False)
    planes = method.get_buffer("projection").numpy().ravel()
    faiss.copy_array_to_vector(planes, index.rrot.A)
    theirs = index.sa_encode(unit_features(train, train))
    np.testing.assert_array_equal(codes_of(method, train), theirs)
    index.add(unit_features(train, train))
    distances, _ = index.search(unit_features(queries, train), 80)
    ours = hamming_distances(codes_of(method, queries), codes_of(method, train))
    np.testing.assert_array_equal(np.sort(ours, axis=1), distances.astype(int))


def test_near_features_differ_in_fewer_bits() -> None:
    train = made_up_features(200)
    method = shallow("lsh", bits=64)
    method.fit_features(train, seed=0)
    unit = unit_features(train, train)
    angles = np.arccos(np.clip(unit[:20] @ unit.T, -1, 1)) / np.pi
    codes = codes_of(method, train)
    shares = hamming_distances(codes[:20], codes) / 64
    # A random hyperplane parts two vectors with the probability angle / pi.
    assert abs((shares - angles).mean()) < 0.02
    assert np.corrcoef(angles.ravel(), shares.ravel())[0, 1] > 0.75
