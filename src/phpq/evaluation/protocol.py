"""Named ways to measure retrieval: labelled embeddings in, `RetrievalScores` out.

Queries are ranked against the whole gallery; a gallery image is relevant when it has the query's
class. `evaluate_codes` measures learned codes, `evaluate_float` exhaustive search over the same
embeddings without codes, `evaluate_posthoc_pq` a product quantizer fitted to them afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from phpq.codes import (
    CodeArray,
    Codebooks,
    FloatArray,
    IntArray,
    QueryNorm,
    check_codes,
    check_embeddings,
    normalise_sub_vectors,
)
from phpq.evaluation._ranking import (
    LabelledGroups,
    TieGroups,
    check_labels,
    label_groups,
    rank_codes,
    rank_embeddings,
)
from phpq.evaluation.metrics import RetrievalScores, code_health, measure
from phpq.index import CodeIndex, fit_pq
from phpq.index.ties import TIE_ROWS, float_scores

CUTOFFS = (1, 5, 10, 50, 100)
_TABLE_QUERIES = 2048  # queries whose lookup tables are in memory at once
_RECALL_POINTS = 101


@dataclass(frozen=True, slots=True, eq=False)
class LabelledEmbeddings:
    """Embeddings of labelled images."""

    embeddings: FloatArray  # (N, D) float32
    labels: IntArray  # (N,) int64

    def __post_init__(self) -> None:
        embeddings = check_embeddings("embeddings", self.embeddings)
        object.__setattr__(self, "embeddings", embeddings)
        object.__setattr__(self, "labels", check_labels("labels", self.labels, len(embeddings)))

    def __len__(self) -> int:
        return len(self.labels)


def evaluate_codes(
    queries: LabelledEmbeddings,
    gallery_codes: CodeArray,
    gallery_labels: IntArray,
    codebooks: Codebooks,
    *,
    query_norm: QueryNorm = "unit",
    cutoffs: Sequence[int] = CUTOFFS,
    kept: FloatArray | None = None,
) -> RetrievalScores:
    """Measure search over learned codes: float queries, coded gallery, AQD by lookup tables.

    `query_norm` "unit" normalises the sub-vectors of a query, as trained; "raw" does not. The
    `cutoffs` are the N of P@N, here and below. Embeddings (N, D) that the gallery keeps, if it
    does, decide between equal scores when it is searched.
    """
    check_codes("gallery_codes", gallery_codes, codebooks.num_codebooks, codebooks.codebook_size)

    def tables(part: slice) -> FloatArray:
        return codebooks.lookup_tables(queries.embeddings[part], norm=query_norm)

    scores = _measure_codes(queries, tables, label_groups(gallery_codes, gallery_labels), cutoffs)
    by_float = None
    if kept is not None:
        first = first_rows(queries.embeddings, gallery_codes, kept, codebooks, norm=query_norm)
        hits = np.count_nonzero(np.asarray(gallery_labels)[first] == queries.labels)
        by_float = hits / max(scores.queries, 1)
    return replace(
        scores,
        method="codes",
        bits=codebooks.bits,
        health=code_health(gallery_codes, codebooks.codebook_size),
        precision_at_1_by_float=by_float,
    )


def first_rows(
    queries: FloatArray,
    codes: CodeArray,
    kept: FloatArray,
    codebooks: Codebooks,
    *,
    norm: QueryNorm = "unit",
) -> IntArray:
    """Return (Q,) the row that a gallery of codes (N, M) shows first, N at least 1.

    Of equal scores it is the one of the best float score, as a gallery that keeps embeddings (N, D)
    stores them, in float16.
    """
    index, stored = CodeIndex(codebooks, codes), kept.astype(np.float16)
    result = np.empty(len(queries), np.int64)
    for start in range(0, len(queries), _TABLE_QUERIES):
        part = queries[start : start + _TABLE_QUERIES]
        found = index.search(part, min(TIE_ROWS, len(codes)), query_norm=norm)
        tied = (found.scores == found.scores[:, :1]).sum(axis=1).tolist()
        for number, count in enumerate(tied):
            rows = found.ids[number, :count]
            best = 0
            if count > 1:
                best = int(float_scores(part[number], stored[rows], codebooks, norm=norm).argmax())
            result[start + number] = rows[best]
    return result


def evaluate_float(
    queries: LabelledEmbeddings,
    gallery: LabelledEmbeddings,
    *,
    sub_vectors: int,
    cutoffs: Sequence[int] = CUTOFFS,
) -> RetrievalScores:
    """Measure exhaustive inner-product search over the float embeddings, without codes.

    As many sub-vectors as asked for are normalised, as the quantizer does it; 1 is cosine, 0 leaves
    the embeddings as they are.
    """
    blocks = rank_embeddings(
        _normalised(queries.embeddings, sub_vectors),
        queries.labels,
        gallery=_normalised(gallery.embeddings, sub_vectors),
        gallery_labels=gallery.labels,
    )
    scores = measure(blocks, cutoffs=cutoffs, recall_points=_RECALL_POINTS)
    return replace(scores, method="float", bits=32 * gallery.embeddings.shape[1])


def evaluate_posthoc_pq(
    queries: LabelledEmbeddings,
    gallery: LabelledEmbeddings,
    *,
    num_codebooks: int,
    codebook_size: int = 256,
    seed: int = 0,
    sub_vectors: int | None = None,
    cutoffs: Sequence[int] = CUTOFFS,
) -> RetrievalScores:
    """Measure plain product quantization, fitted to the gallery after the embeddings were learned.

    faiss finds the codewords by k-means on the gallery itself, and encodes by the nearest codeword;
    queries stay float and are scored by inner product with the decoded rows. `sub_vectors` are
    normalised as in `evaluate_float`; None is the number of codebooks.
    """
    parts = num_codebooks if sub_vectors is None else sub_vectors
    rows = _normalised(gallery.embeddings, parts)
    vectors = _normalised(queries.embeddings, parts)
    centroids, codes = fit_pq(rows, num_codebooks, codebook_size=codebook_size, seed=seed)

    def tables(part: slice) -> FloatArray:
        block = vectors[part].reshape(-1, num_codebooks, centroids.shape[2])
        products: FloatArray = np.einsum("qmd,mkd->qmk", block, centroids, optimize=True)
        return products

    scores = _measure_codes(queries, tables, label_groups(codes, gallery.labels), cutoffs)
    bits = num_codebooks * (codebook_size.bit_length() - 1)
    return replace(scores, method="pq", bits=bits, health=code_health(codes, codebook_size))


def _measure_codes(
    queries: LabelledEmbeddings,
    tables: Callable[[slice], FloatArray],
    gallery: LabelledGroups,
    cutoffs: Sequence[int],
) -> RetrievalScores:
    """Measure a gallery of codes; `tables` returns (q, M, K) of some queries."""

    def blocks() -> Iterator[TieGroups]:
        for start in range(0, len(queries), _TABLE_QUERIES):
            part = slice(start, start + _TABLE_QUERIES)
            yield from rank_codes(tables(part), queries.labels[part], gallery=gallery)

    return measure(blocks(), cutoffs=cutoffs, recall_points=_RECALL_POINTS)


def _normalised(embeddings: FloatArray, sub_vectors: int) -> FloatArray:
    return normalise_sub_vectors(embeddings, sub_vectors) if sub_vectors else embeddings
