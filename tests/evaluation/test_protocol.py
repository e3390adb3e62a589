"""The named evaluations on small data whose answers are known."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import numpy as np
import pytest
import torch

from phpq.codes import FloatArray, normalise_sub_vectors
from phpq.config import QuantizerConfig
from phpq.errors import ShapeError
from phpq.evaluation.protocol import (
    LabelledEmbeddings,
    evaluate_codes,
    evaluate_float,
    evaluate_scores,
    evaluate_soft,
    soft_reconstructions,
)
from phpq.evaluation.search import evaluate_pq
from phpq.model.quantizer import ProductQuantizer
from reference import average_precision_loop, average_precision_over_permutations, random_codebooks


def clusters(seed: int, rows: int, noise: float, *, dim: int = 12) -> LabelledEmbeddings:
    """Four classes around fixed centres."""
    centres = np.random.default_rng(99).standard_normal((4, dim))
    rng = np.random.default_rng(seed)
    labels = np.arange(rows) % 4
    vectors = centres[labels] + noise * rng.standard_normal((rows, dim))
    return LabelledEmbeddings(vectors.astype(np.float32), labels)


def test_codes_equal_the_mean_over_all_orders_of_tied_rows() -> None:
    rng = np.random.default_rng(0)
    codebooks = random_codebooks(rng, num_codebooks=3, codebook_size=2, sub_dim=4)
    queries, gallery = clusters(1, 9, 2.0), clusters(2, 8, 2.0)
    codes = codebooks.encode(gallery.embeddings)
    scores = evaluate_codes(
        queries, codes, gallery_labels=gallery.labels, codebooks=codebooks, cutoffs=(1, 2)
    )
    unit = normalise_sub_vectors(queries.embeddings, 3)
    # Rounded, so that the twin sees as tied what table lookups give as tied.
    values = np.round(unit @ codebooks.decode(codes).T, 4)
    expected = [
        average_precision_over_permutations(row.tolist(), (gallery.labels == label).tolist())
        for row, label in zip(values, queries.labels, strict=True)
    ]
    assert scores.map == pytest.approx(np.mean(expected), abs=1e-9)
    assert (scores.method, scores.bits, scores.queries, scores.gallery) == ("codes", 3, 9, 8)
    assert scores.health is not None
    assert scores.health.distinct_codes <= 8


def test_of_equal_scores_the_best_float_score_is_served_first() -> None:
    rng = np.random.default_rng(4)
    codebooks = random_codebooks(rng, num_codebooks=3, codebook_size=2, sub_dim=4)
    queries, gallery = clusters(1, 30, 2.0), clusters(2, 80, 2.0)
    kept = gallery.embeddings.astype(np.float16).astype(np.float32)
    codes = codebooks.encode(gallery.embeddings)
    scores = evaluate_codes(
        queries, codes, gallery.labels, codebooks, cutoffs=(1,), kept=gallery.embeddings
    )
    asked, rows = (normalise_sub_vectors(each, 3) for each in (queries.embeddings, kept))
    hits, moved = 0, 0
    for query, label in zip(asked, queries.labels, strict=True):
        by_code = np.round(codebooks.decode(codes) @ query, 4).tolist()
        by_float = (rows @ query).tolist()
        first = min(range(80), key=lambda row: (-by_code[row], -by_float[row], row))
        hits += int(gallery.labels[first] == label)
        moved += first != by_code.index(max(by_code))
    assert moved > 10
    assert scores.precision_at_1_by_float == hits / 30
    assert scores.to_dict()["precision_at_1_by_float"] == pytest.approx(100 * hits / 30)
    without = evaluate_codes(queries, codes, gallery.labels, codebooks, cutoffs=(1,))
    assert without.precision_at_1_by_float is None
    assert without.to_dict()["precision_at_1_by_float"] is None
    assert without.precision_at_1_served == scores.precision_at_1_served


def test_float_search_equals_plain_average_precision() -> None:
    queries, gallery = clusters(1, 20, 1.5), clusters(2, 40, 1.5)
    scores = evaluate_float(queries, gallery, sub_vectors=3)
    values = normalise_sub_vectors(queries.embeddings, 3) @ (
        normalise_sub_vectors(gallery.embeddings, 3).T
    )
    expected = [
        average_precision_loop((gallery.labels[np.argsort(-row)] == label).tolist())
        for row, label in zip(values, queries.labels, strict=True)
    ]
    assert scores.map == pytest.approx(np.mean(expected), abs=1e-9)
    assert scores.health is None
    assert scores.bits == 12 * 32


def test_query_norm_matters_and_row_scale_does_not() -> None:
    rng = np.random.default_rng(3)
    codebooks = random_codebooks(rng, num_codebooks=3, codebook_size=8, sub_dim=4)
    queries, gallery = clusters(1, 40, 1.0), clusters(2, 60, 1.0)
    scaled: FloatArray = queries.embeddings.copy()
    scaled[:, :4] *= 50
    stretched = LabelledEmbeddings(scaled, queries.labels)
    codes = codebooks.encode(gallery.embeddings)

    def map_of(data: LabelledEmbeddings, norm: str) -> float:
        return evaluate_codes(
            data,
            codes,
            gallery_labels=gallery.labels,
            codebooks=codebooks,
            query_norm=norm,  # type: ignore[arg-type]
        ).map

    assert map_of(queries, "unit") == pytest.approx(map_of(stretched, "unit"), abs=1e-6)
    assert map_of(queries, "raw") != pytest.approx(map_of(stretched, "raw"), abs=1e-3)


@pytest.mark.parametrize("kappa", [1, 3, 8])
def test_soft_reconstructions_are_those_of_plain_loops_and_of_the_learned_quantizer(
    kappa: int,
) -> None:
    config = QuantizerConfig(num_codebooks=3, codebook_size=8, alpha=2.5, kappa=kappa)
    torch.manual_seed(kappa)
    quantizer = ProductQuantizer(config, 12)
    books, rows = quantizer.export(), clusters(1, 20, 1.5).embeddings
    found = soft_reconstructions(rows, books, alpha=2.5, kappa=kappa)
    with torch.no_grad():
        assert np.allclose(found, quantizer(torch.from_numpy(rows)).numpy(), atol=1e-5)
    for row, soft in zip(rows.reshape(-1, 3, 4), found.reshape(-1, 3, 4), strict=True):
        for part, words, mean in zip(row, books.codewords, soft, strict=True):
            cosines = [float(part @ word) / float(np.linalg.norm(part)) for word in words]
            best = sorted(range(8), key=lambda k: -cosines[k])[:kappa]
            shares = {k: math.exp(2 * 2.5 * cosines[k]) for k in best}
            expected = sum(shares[k] * words[k] for k in best) / sum(shares.values())
            assert mean == pytest.approx(expected, abs=1e-5)


def test_float_queries_rank_soft_rows_by_their_products() -> None:
    queries, gallery = clusters(1, 12, 2.0), clusters(2, 15, 2.0)
    books = ProductQuantizer(QuantizerConfig(num_codebooks=3, codebook_size=8), 12).export()
    scores = evaluate_soft(queries, gallery, books, alpha=4.0, kappa=5, cutoffs=(1,))
    soft = soft_reconstructions(gallery.embeddings, books, alpha=4.0, kappa=5)
    precisions, first = [], 0
    for query, label in zip(queries.embeddings, queries.labels, strict=True):
        units = [part / np.linalg.norm(part) for part in query.reshape(3, 4)]
        products = [float(np.concatenate(units) @ row) for row in soft]
        order = sorted(range(len(soft)), key=lambda row: -products[row])
        right = [gallery.labels[row] == label for row in order]
        first += right[0]
        ranks = [rank for rank, hit in enumerate(right, 1) if hit]
        precisions.append(sum(n / rank for n, rank in enumerate(ranks, 1)) / len(ranks))
    assert scores.map == pytest.approx(sum(precisions) / len(precisions), abs=1e-6)
    assert scores.precision_at[1] == pytest.approx(first / len(queries))
    assert (scores.method, scores.bits) == ("soft", 32 * 12)


def test_scores_become_plain_json_in_per_cent() -> None:
    queries, gallery = clusters(1, 8, 0.01), clusters(2, 40, 0.01)
    scores = evaluate_pq(queries, gallery, num_codebooks=2, largest=16)
    data = json.loads(json.dumps(scores.to_dict()))
    assert data["map"] == pytest.approx(100)
    assert scores.map_percent == data["map"]
    assert data["map_range"][0] <= data["map"] + 1e-9
    assert data["map"] <= data["map_range"][1] + 1e-9
    assert data["precision_at"]["10"] == pytest.approx(100)
    assert data["precision_at"]["100"] == pytest.approx(10)
    assert len(data["pr_curve"]["precision"]) == len(data["pr_curve"]["recall"]) == 101
    assert data["health"]["rows"] == 40


def test_bad_input_is_refused() -> None:
    data = clusters(1, 8, 1.0)
    with pytest.raises(ShapeError, match=r"labels has shape \(7,\)"):
        LabelledEmbeddings(data.embeddings, data.labels[:7])
    with pytest.raises(ShapeError, match=r"queries has shape \(8, 6\); expected \(N, 12\)"):
        evaluate_codes(
            clusters(1, 8, 1.0, dim=6),
            np.zeros((8, 3), dtype=np.uint8),
            gallery_labels=data.labels,
            codebooks=random_codebooks(np.random.default_rng(0)),
        )


def test_importing_evaluation_and_index_brings_no_heavy_module() -> None:
    script = (
        "import sys, phpq.codes, phpq.index, phpq.evaluation; "
        "print([m for m in ('torch', 'faiss', 'matplotlib', 'jinja2', 'PIL') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_any_score_of_rows_is_measured_as_float_search_is() -> None:
    queries, gallery = clusters(1, 9, 2.0), clusters(2, 8, 2.0)
    wanted = evaluate_float(queries, gallery, sub_vectors=0, cutoffs=(2,))
    found = evaluate_scores(
        lambda part: queries.embeddings[part] @ gallery.embeddings.T,
        queries.labels,
        gallery_labels=gallery.labels,
        cutoffs=(2,),
    )
    assert found.map == pytest.approx(wanted.map)
    assert found.precision_at == pytest.approx(wanted.precision_at)
    assert found.recall_at == pytest.approx(wanted.recall_at)


def test_rows_that_are_never_returned_are_tied_behind_all_others() -> None:
    def score(part: slice) -> FloatArray:
        return np.array([[1.0, -np.inf, -np.inf]], np.float32)[part]

    labels = np.array([0, 0, 1])
    found = evaluate_scores(score, np.array([0]), gallery_labels=labels, cutoffs=(1,))
    # The other right row stands second or third: (1 + (2/2 + 2/3) / 2) / 2.
    assert found.map == pytest.approx((1 + (1 + 2 / 3) / 2) / 2)
