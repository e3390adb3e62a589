"""PQ: L2 search as an inner product, against plain loops and faiss."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from phpq.codes import FloatArray, score_codes
from phpq.methods.pq import PQ
from shallow_features import CHANNELS, codes_of, made_up_features, shallow, unit_features


def fitted(train: torch.Tensor, *assignments: str, bits: int = 16) -> PQ:
    method = shallow("pq", *assignments, bits=bits)
    assert isinstance(method, PQ)
    method.fit_features(train, seed=0)
    return method


def aqd(method: PQ, queries: torch.Tensor, gallery: torch.Tensor) -> FloatArray:
    tables = method.export().lookup_tables(
        method.encode_features(queries).numpy(), norm=method.query_norm
    )
    return score_codes(tables, codes_of(method, gallery))


def padded(rows: FloatArray, width: int) -> FloatArray:
    return np.pad(rows, ((0, 0), (0, width - rows.shape[1])))


def test_codes_are_the_nearest_centroids_and_scores_the_negative_distance() -> None:
    train, queries = made_up_features(300), made_up_features(5, seed=1)
    method = fitted(train)
    words = method.get_buffer("codewords").double().numpy()
    blocks = unit_features(train, train).reshape(300, 2, 48).astype(np.float64)
    codes = codes_of(method, train)
    for row in range(0, 300, 29):
        for m in range(2):
            distances = [float(np.square(blocks[row, m] - word).sum()) for word in words[m]]
            assert codes[row, m] == int(np.argmin(distances))
    scores = aqd(method, queries, train)
    asked = unit_features(queries, train).reshape(5, 2, 48).astype(np.float64)
    for q in range(5):
        for row in range(0, 300, 29):
            parts = [np.square(asked[q, m] - words[m, codes[row, m]]).sum() for m in range(2)]
            assert scores[q, row] == pytest.approx((1 - sum(parts)) / 2, abs=1e-5)


@pytest.mark.parametrize("bits", [16, 40])  # 5 codebooks do not divide 96
def test_tables_and_reconstruction_order_as_the_l2_index_of_faiss(bits: int) -> None:
    import faiss

    train, queries = made_up_features(300), made_up_features(6, seed=1)
    method = fitted(train, bits=bits)
    books, width = bits // 8, bits // 8 * method.sub_dim
    index = faiss.IndexPQ(width, books, 8)
    faiss.copy_array_to_vector(method.get_buffer("codewords").numpy().ravel(), index.pq.centroids)
    index.is_trained = True
    index.add(padded(unit_features(train, train), width))
    theirs = faiss.vector_to_array(index.codes).reshape(300, books)
    np.testing.assert_array_equal(codes_of(method, train), theirs)
    distances, rows = index.search(padded(unit_features(queries, train), width), 300)
    scores = aqd(method, queries, train)
    np.testing.assert_allclose(-2 * np.take_along_axis(scores, rows, 1) + 1, distances, atol=1e-4)
    decoded = method.export().decode(codes_of(method, train))
    by_reconstruction = method.encode_features(queries).numpy() @ decoded.T
    np.testing.assert_allclose(scores, by_reconstruction, atol=1e-5)


def test_features_that_do_not_divide_get_zeros() -> None:
    method = fitted(made_up_features(300), bits=40)
    assert method.sub_dim == 20
    assert method.embedding_dim == method.export().embedding_dim == 5 * 21
    assert not method.get_buffer("codewords")[4, :, 16:].any()  # 4 * 20 + 16 = 96


@pytest.mark.parametrize("rows", [1, 3, 40, 256])
def test_few_images_become_codewords_themselves(
    rows: int, capfd: pytest.CaptureFixture[str]
) -> None:
    train = made_up_features(rows)
    method = fitted(train)
    decoded = method.export().decode(codes_of(method, train)).reshape(rows, 2, 49)[:, :, :-1]
    if rows > 1:  # a single one is its own mean
        np.testing.assert_allclose(
            decoded.reshape(rows, -1), unit_features(train, train), atol=1e-5
        )
    assert capfd.readouterr() == ("", "")


def test_k_means_beats_random_codewords() -> None:
    train = made_up_features(400)
    rows = unit_features(train, train)

    def distortion(words: FloatArray) -> float:
        blocks = rows.reshape(400, 2, 48)
        gaps = [((blocks[:, m, None] - words[m]) ** 2).sum(2).min(1).mean() for m in range(2)]
        return float(sum(gaps))

    learned = fitted(train, "quantizer.codebook_size=16", "quantizer.num_codebooks=2")
    assert learned.export().bits == 8
    picks = np.random.default_rng(0).permutation(400)[:16]
    random = rows[picks].reshape(16, 2, 48).transpose(1, 0, 2)
    assert distortion(learned.get_buffer("codewords").numpy()) < 0.95 * distortion(random)


def test_features_have_the_width_of_the_backbone() -> None:
    assert shallow("pq").feature_dim == CHANNELS
