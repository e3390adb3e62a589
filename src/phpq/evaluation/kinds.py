"""One search of new kinds: images, what is gallery and what asks, a way to search; a score out.

A gallery has codebooks of its own, fitted to its rows, and to their labels where it uses them:
every score says whether it does. Queries are float and never labelled, rows are coded; a row never
finds itself. Ties are counted as everywhere (`metrics.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from phpq.additive import (
    AdditiveCodebooks,
    class_means,
    fit_additive,
    grow_additive,
    k_means,
    number_labels,
    unit_rows,
)
from phpq.codes import (
    CodeArray,
    Codebooks,
    FloatArray,
    IntArray,
    QueryNorm,
    normalise_sub_vectors,
    score_codes,
)
from phpq.evaluation._ranking import rank_rows
from phpq.evaluation.metrics import RetrievalScores, measure
from phpq.evaluation.protocol import CUTOFFS, LabelledEmbeddings, evaluate_codes

Names = Sequence[str | None]  # labels as a gallery has them; None where there is none
Fit = Callable[[FloatArray, Names], Codebooks]
UseOfLabels = Literal["with", "without"]

PQ_SIZES = (16, 32, 64, 128, 256)  # codewords of a sub-vector, of which post-hoc PQ takes the best
_HELD_OUT = 5  # one image in as many of a class asks, where a gallery chooses by itself


@dataclass(frozen=True, slots=True, eq=False)
class KindSplit:
    """Which of N images are of new kinds, and which ask."""

    new: NDArray[np.bool_]  # (N,) of a class that was not learned
    query: NDArray[np.bool_]  # (N,) asks where queries and gallery are apart; others are gallery

    def rows(self, *, new: bool | None = None, query: bool | None = None) -> IntArray:
        """Return the rows of new or learned classes, that ask or not; None takes both."""
        chosen = np.ones(len(self.new), dtype=bool)
        for mask, wanted in ((self.new, new), (self.query, query)):
            chosen &= True if wanted is None else mask == wanted
        return np.flatnonzero(chosen)


@dataclass(frozen=True, slots=True, eq=False)
class Way:
    """A way to search: where images lie, and what a gallery's codebooks are."""

    name: str
    embeddings: FloatArray  # (N, E) of all images; for float search as they are to be multiplied
    fit: Fit | None = None  # codebooks of a gallery by its rows and names; None is float search
    labels: UseOfLabels = "without"  # of the gallery
    norm: QueryNorm = "raw"  # of queries, see `Codebooks.lookup_tables`
    trust: float = 0.0  # how far rows move to the mean of their class before they are coded
    fitted: IntArray | None = None  # rows whose codebooks `fit` returns; others come to them later


@dataclass(frozen=True, slots=True, kw_only=True)
class KindScore:
    """What one way of searching achieves under one protocol."""

    protocol: str
    way: str
    labels: UseOfLabels  # of the gallery
    bits: int  # of a row's code, or of its floats
    bytes_per_image: float  # with the gallery's codebooks and prototypes
    values: dict[str, float]  # in per cent: r1, r2, r4, r8, r10, map_r, map; or accuracy
    queries: int
    gallery: int


def own_codes(images: FloatArray, bits: int, *, trust: float = 0.0) -> Way:
    """Return search by codes of a gallery's own codebooks; with trust they know its labels."""
    fit = partial(fit_additive, num_codebooks=bits // 8, trust=trust)
    return Way("codes", images, fit, "with" if trust else "without")


def with_labels(way: Way, trust: float) -> Way:
    """Return the same search over rows that lie between themselves and the mean of their class."""
    return replace(way, labels="with", trust=trust)


def fitted_to(way: Way, rows: IntArray, names: Names) -> Way:
    """Return search by codebooks that are fitted to these rows of the N images, for any gallery.

    Its other rows are added to these, as to a gallery that grows and is not fitted again.
    """
    if way.fit is None:
        return way
    mine = _used(way, [names[row] for row in rows])
    books = way.fit(_moved(way, way.embeddings[rows], mine), mine)
    return replace(way, fit=lambda *_: books, fitted=rows)


def pq_codes(images: FloatArray, bits: int, *, codebook_size: int) -> Way:
    """Return search by a product quantizer of a gallery, each byte one of K codewords."""
    books = bits // 8
    padded = _padded_units(images, books)

    def fit(rows: FloatArray, _names: Names) -> Codebooks:
        generator = np.random.default_rng(0)
        parts = np.split(rows, books, axis=1)
        words = np.stack([k_means(part, codebook_size, generator) for part in parts])
        return _NearestCodebooks(words, unit=False)

    return Way(f"post-hoc PQ, K={codebook_size}", padded, fit)


def _padded_units(images: FloatArray, books: int) -> FloatArray:
    """Return rows of unit length, with zeros that make them divisible; products stay."""
    rows = normalise_sub_vectors(images, 1)
    return np.pad(rows, ((0, 0), (0, -rows.shape[1] % books)))


def evaluate_pq(
    queries: LabelledEmbeddings,
    gallery: LabelledEmbeddings,
    *,
    num_codebooks: int,
    largest: int = PQ_SIZES[-1],
    cutoffs: Sequence[int] = CUTOFFS,
) -> RetrievalScores:
    """Measure product quantization of as many bytes, fitted after the embeddings were learned.

    K, at most `largest`, is the best for a fifth of the gallery's images that ask the others; the
    codewords are then fitted to the whole gallery. Queries have no say in either.
    """
    asking = held_out(gallery.labels)
    split = KindSplit(np.zeros(len(gallery), dtype=bool), asking)
    sizes = [size for size in PQ_SIZES if size <= largest] or [largest]
    if not asking.any():
        sizes = sizes[-1:]
    way = best_pq(gallery.embeddings, 8 * num_codebooks, gallery.labels, split, sizes=sizes)
    assert way.fit is not None  # it has codes
    books = way.fit(way.embeddings, ())
    units = LabelledEmbeddings(_padded_units(queries.embeddings, num_codebooks), queries.labels)
    codes = books.encode(way.embeddings)
    scores = evaluate_codes(units, codes, gallery.labels, books, query_norm="raw", cutoffs=cutoffs)
    return replace(scores, method="pq")


def held_out(labels: IntArray) -> NDArray[np.bool_]:
    """Choose one image in five of each class, in order, to ask the others: (N,) bool.

    A class of one image is not asked about.
    """
    order = np.argsort(labels, kind="stable")
    _, first, counts = np.unique(labels[order], return_index=True, return_counts=True)
    rank = np.empty(len(labels), dtype=np.int64)
    rank[order] = np.arange(len(labels)) - np.repeat(first, counts)
    several = np.repeat(counts > 1, counts)[np.argsort(order)]
    asking: NDArray[np.bool_] = several & (rank % _HELD_OUT == 0)
    return asking


def best_pq(
    images: FloatArray,
    bits: int,
    labels: IntArray,
    split: KindSplit,
    *,
    sizes: Sequence[int] = PQ_SIZES,
) -> Way:
    """Return product quantization with the K, one of `sizes`, that serves learned classes best.

    So that new kinds are not looked at to choose it.
    """
    gallery, queries = split.rows(new=False, query=False), split.rows(new=False, query=True)

    def served(way: Way) -> float:
        return search(way, labels, "", gallery=gallery, queries=queries).values["map"]

    ways = [pq_codes(images, bits, codebook_size=size) for size in sizes]
    return max(ways, key=served) if len(ways) > 1 else ways[0]


def search(  # noqa: PLR0913  by name
    way: Way,
    labels: IntArray,
    protocol: str,
    *,
    gallery: IntArray,
    queries: IntArray,
    names: Names | None = None,
    ignored: NDArray[np.bool_] | None = None,
    itself: bool = False,
) -> KindScore:
    """Let some of N images search among others.

    Args:
        way: How. Galleries without labels are given none, whatever `names` says.
        labels: (N,) of the images; a hit with the query's label is right.
        protocol: Name of what is measured.
        gallery: Rows that can be found; a query that is among them does not find itself.
        queries: Rows that ask.
        names: N labels as the gallery has them; the true ones by default.
        ignored: (N,) rows that are neither found nor missed by queries of their class.
        itself: Whether a query may find itself.
    """
    given = _used(way, names_of(labels) if names is None else names)
    score, bits, size = _scorer(way, gallery, queries, given)

    def left_out(part: slice) -> NDArray[np.bool_]:
        asking = queries[part, None]
        absent = np.zeros((len(asking), len(gallery)), bool) if itself else asking == gallery
        if ignored is not None:
            absent |= ignored[gallery] & (labels[asking] == labels[gallery])
        return absent

    blocks = rank_rows(score, labels[queries], gallery_labels=labels[gallery], left_out=left_out)
    found = measure(blocks, cutoffs=(), recall_points=2)
    return KindScore(
        protocol=protocol,
        way=way.name,
        labels=way.labels,
        bits=bits,
        bytes_per_image=size,
        values=_values(found),
        queries=found.queries,
        gallery=len(gallery),
    )


class _NearestCodebooks(Codebooks):
    """Sub-vectors take the nearest codeword, not that of largest inner product."""

    def encode(self, embeddings: FloatArray) -> CodeArray:
        products = super().lookup_tables(embeddings, norm="raw")
        squares = np.square(self.codewords).sum(axis=2)
        codes: CodeArray = (products - squares / 2).argmax(axis=2).astype(np.uint8)
        return codes


def _scorer(
    way: Way, gallery: IntArray, queries: IntArray, names: Names
) -> tuple[Callable[[slice], FloatArray], int, float]:
    """Return what scores (q, N) some queries, the bits of a row, and its bytes with overhead."""
    mine = [names[row] for row in gallery]
    rows, asking = _moved(way, way.embeddings[gallery], mine), way.embeddings[queries]
    if way.fit is None:
        floats = 32 * rows.shape[1]
        return (lambda part: asking[part] @ rows.T), floats, floats / 8
    books = way.fit(rows, mine)
    if isinstance(books, AdditiveCodebooks):
        codes = books.encode(rows, mine)
        late = [] if way.fitted is None else np.flatnonzero(~np.isin(gallery, way.fitted)).tolist()
        if late:
            added = [mine[row] for row in late]
            books = grow_additive(books, rows[late], added)
            codes[late] = books.encode(rows[late], added)
        overhead = books.memory_bytes()
    else:
        codes, overhead = books.encode(rows), books.codewords.nbytes

    def score(part: slice) -> FloatArray:
        return score_codes(books.lookup_tables(asking[part], norm=way.norm), codes)

    return score, books.bits, books.bits / 8 + overhead / len(rows)


def _used(way: Way, names: Names) -> Names:
    return names if way.labels == "with" else [None] * len(names)


def _moved(way: Way, rows: FloatArray, names: Names) -> FloatArray:
    """Return gallery rows where this way of searching puts them, by the labels that they have."""
    kinds = sorted({name for name in names if name is not None}) if way.trust else []
    if not kinds:
        return rows
    classes = number_labels(names, kinds)
    size = np.linalg.norm(rows, axis=1, keepdims=True)
    means = class_means(unit_rows(rows), classes, len(kinds))
    moved = way.trust * size * means[classes] + (1 - way.trust) * rows
    return np.where(classes[:, None] < 0, rows, moved).astype(np.float32)


def _values(found: RetrievalScores) -> dict[str, float]:
    recalls = {f"r{k}": 100 * share for k, share in found.recall_at.items()}
    return recalls | {"map_r": 100 * found.map_at_r, "map": found.map_percent}


def names_of(labels: IntArray) -> list[str | None]:
    """Return class numbers as names."""
    return [str(label) for label in labels]
