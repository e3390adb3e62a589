"""Named ways to measure retrieval: labelled embeddings in, `RetrievalScores` out.

Queries are ranked against the whole gallery; a gallery image is relevant when it has the query's
class. `evaluate_codes` measures learned codes, `evaluate_float` exhaustive search over the same
embeddings without codes, `evaluate_soft` float queries against the gallery's soft reconstructions,
`evaluate_scores` any function that scores rows.
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
    TieGroups,
    check_labels,
    label_groups,
    rank_codes,
    rank_embeddings,
    rank_rows,
)
from phpq.evaluation.metrics import RetrievalScores, code_health, measure
from phpq.index import CodeIndex
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
    `cutoffs` are the N of P@N, here and below. If the gallery keeps embeddings (N, D), `kept`, they
    decide between equal scores in `precision_at_1_by_float`.
    """
    check_codes("gallery_codes", gallery_codes, codebooks.num_codebooks, codebooks.codebook_size)
    groups = label_groups(gallery_codes, gallery_labels)

    def blocks() -> Iterator[TieGroups]:
        for start in range(0, len(queries), _TABLE_QUERIES):
            part = slice(start, start + _TABLE_QUERIES)
            tables = codebooks.lookup_tables(queries.embeddings[part], norm=query_norm)
            yield from rank_codes(tables, queries.labels[part], gallery=groups)

    scores = measure(blocks(), cutoffs=cutoffs, recall_points=_RECALL_POINTS)
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
    """Return (Q,) the first hit of each query in a gallery of codes (N, M), N at least 1.

    Ties are broken by float scores of the `kept` embeddings (N, D), in float16 as a gallery stores
    them.
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

    Embeddings are split into `sub_vectors`, each of which is normalised, as in the quantizer; 1 is
    the cosine, 0 leaves embeddings as they are.
    """
    blocks = rank_embeddings(
        _normalised(queries.embeddings, sub_vectors),
        queries.labels,
        gallery=_normalised(gallery.embeddings, sub_vectors),
        gallery_labels=gallery.labels,
    )
    scores = measure(blocks, cutoffs=cutoffs, recall_points=_RECALL_POINTS)
    return replace(scores, method="float", bits=32 * gallery.embeddings.shape[1])


def evaluate_soft(
    queries: LabelledEmbeddings,
    gallery: LabelledEmbeddings,
    codebooks: Codebooks,
    *,
    alpha: float,
    kappa: int,
    cutoffs: Sequence[int] = CUTOFFS,
) -> RetrievalScores:
    """Measure float queries against soft reconstructions of the gallery, as training sees them.

    Codes can be better than float embeddings, since codebooks are learned from labels. This is
    their effect without the quantization error.
    """
    plain = LabelledEmbeddings(
        normalise_sub_vectors(queries.embeddings, codebooks.num_codebooks), queries.labels
    )
    soft = soft_reconstructions(gallery.embeddings, codebooks, alpha=alpha, kappa=kappa)
    labelled = LabelledEmbeddings(soft, gallery.labels)
    scores = evaluate_float(plain, labelled, sub_vectors=0, cutoffs=cutoffs)
    return replace(scores, method="soft")


def soft_reconstructions(
    embeddings: FloatArray, codebooks: Codebooks, *, alpha: float, kappa: int
) -> FloatArray:
    """Return the soft reconstructions (N, D) float32 of (N, D), as those of the learned quantizer.

    Each sub-vector becomes the mean of its kappa nearest codewords, weighted by the softmax of
    2 alpha times their cosines.
    """
    rows = np.empty((len(embeddings), codebooks.embedding_dim), np.float32)
    left_out = codebooks.codebook_size - min(kappa, codebooks.codebook_size)
    for start in range(0, len(embeddings), _TABLE_QUERIES):
        part = slice(start, start + _TABLE_QUERIES)
        logits = 2 * alpha * codebooks.lookup_tables(embeddings[part], norm="unit")  # (n, M, K)
        if left_out:
            least = np.argpartition(logits, left_out - 1, axis=2)[:, :, :left_out]
            np.put_along_axis(logits, least, -np.inf, axis=2)
        weights = np.exp(logits - logits.max(axis=2, keepdims=True))
        weights /= weights.sum(axis=2, keepdims=True)
        soft = np.einsum("nmk,mkd->nmd", weights, codebooks.codewords, optimize=True)
        rows[part] = soft.reshape(len(soft), -1)
    return rows


def evaluate_scores(
    score: Callable[[slice], FloatArray],
    query_labels: IntArray,
    *,
    gallery_labels: IntArray,
    cutoffs: Sequence[int] = CUTOFFS,
) -> RetrievalScores:
    """Measure a search by a function that scores (q, N) float32 all rows for some queries.

    Rows with the score -inf, which are not returned, are tied behind all others.
    """
    labels = check_labels("query_labels", query_labels, len(query_labels))
    own = check_labels("gallery_labels", gallery_labels, len(gallery_labels))
    blocks = rank_rows(score, labels, gallery_labels=own)
    return measure(blocks, cutoffs=cutoffs, recall_points=2)


def _normalised(embeddings: FloatArray, sub_vectors: int) -> FloatArray:
    return normalise_sub_vectors(embeddings, sub_vectors) if sub_vectors else embeddings
