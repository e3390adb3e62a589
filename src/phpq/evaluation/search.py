"""One search among embedded images, measured: gallery, queries and a setup in, a score out.

A gallery may have codebooks of its own, fitted to its rows, and to their labels if it uses them:
every score tells whether it does. Queries are floats without a label, gallery rows are codes; a row
does not find itself. Ties are counted as everywhere (`metrics.py`).
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
    can_grow,
    class_means,
    fit_additive,
    fits_badly,
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

Names = Sequence[str | None]  # labels of a gallery; None for a row without one
Fit = Callable[[FloatArray, Names], Codebooks]  # codebooks of gallery rows (N, E) and their labels
UseOfLabels = Literal["with", "without"]

PQ_SIZES = (16, 32, 64, 128, 256)  # codewords per sub-vector that post-hoc PQ chooses from
_VALIDATION_STRIDE = 5  # one image in five of a class is a query, to choose a setting by


@dataclass(frozen=True, slots=True, eq=False)
class ClassSplit:
    """Which of N images are of unseen classes, and which are queries."""

    unseen: NDArray[np.bool_]  # (N,) of a class that was not learned
    query: NDArray[np.bool_]  # (N,) the others are the gallery

    def rows(self, *, unseen: bool | None = None, query: bool | None = None) -> IntArray:
        """Return the rows of unseen or learned classes, queries or gallery; None takes both."""
        chosen = np.ones(len(self.unseen), dtype=bool)
        for mask, wanted in ((self.unseen, unseen), (self.query, query)):
            chosen &= True if wanted is None else mask == wanted
        return np.flatnonzero(chosen)


@dataclass(frozen=True, slots=True, eq=False)
class SearchSetup:
    """How images are searched: their embeddings, and the codebooks of a gallery."""

    name: str
    embeddings: FloatArray  # (N, E) of all images; for float search as they are multiplied
    fit: Fit | None = None  # returns the codebooks of a gallery; None is float search
    labels: UseOfLabels = "without"  # of the gallery
    norm: QueryNorm = "raw"  # of queries, see `Codebooks.lookup_tables`
    trust: float = 0.0  # share by which rows move to their class mean before they are coded
    fitted: IntArray | None = None  # rows that the codebooks were fitted to; others are added later
    refit: Fit | None = None  # fits them again, for rows that they have no room for


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchScore:
    """What one setup achieves under one protocol."""

    protocol: str
    way: str  # name of the setup
    labels: UseOfLabels  # of the gallery
    bits: int  # of a row's code, or of its floats
    bytes_per_image: float  # with a share of the gallery's codebooks and prototypes
    values: dict[str, float]  # in per cent: r1, r2, r4, r8, r10, map_r, map; or accuracy
    queries: int
    gallery: int


def additive_codes(images: FloatArray, bits: int, *, trust: float = 0.0) -> SearchSetup:
    """Return search by additive codebooks of the gallery; with `trust` they use its labels."""
    fit = partial(fit_additive, num_codebooks=bits // 8, trust=trust)
    return SearchSetup("codes", images, fit, "with" if trust else "without")


def with_labels(setup: SearchSetup, trust: float) -> SearchSetup:
    """Return the same search over rows that are moved towards their class means."""
    return replace(setup, labels="with", trust=trust)


def fitted_to(setup: SearchSetup, rows: IntArray, names: Names) -> SearchSetup:
    """Return the same search by codebooks that are fitted to these rows, for any gallery.

    Other rows of a gallery are added to these, as to one that grows and is not fitted again.
    """
    if setup.fit is None:
        return setup
    mine = _gallery_names(setup, [names[row] for row in rows])
    books = setup.fit(_to_means(setup, setup.embeddings[rows], mine), mine)
    return replace(setup, fit=lambda *_: books, fitted=rows)


def pq_codes(images: FloatArray, bits: int, *, codebook_size: int) -> SearchSetup:
    """Return search by product quantization of a gallery, each byte one of K codewords."""
    books = bits // 8
    padded = _padded_units(images, books)

    def fit(rows: FloatArray, _names: Names) -> Codebooks:
        generator = np.random.default_rng(0)
        parts = np.split(rows, books, axis=1)
        words = np.stack([k_means(part, codebook_size, generator) for part in parts])
        return _NearestCodebooks(words, unit=False)

    return SearchSetup(f"post-hoc PQ, K={codebook_size}", padded, fit)


def _padded_units(images: FloatArray, books: int) -> FloatArray:
    """Return unit rows, zero-padded so that `books` divide them; inner products stay."""
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

    K, at most `largest`, is the best for a fifth of the gallery's images as queries; the codewords
    are then fitted to the whole gallery. The queries themselves are used for neither.
    """
    validation = validation_queries(gallery.labels)
    split = ClassSplit(np.zeros(len(gallery), dtype=bool), validation)
    sizes = [size for size in PQ_SIZES if size <= largest] or [largest]
    if not validation.any():
        sizes = sizes[-1:]
    setup = best_pq(gallery.embeddings, 8 * num_codebooks, gallery.labels, split, sizes=sizes)
    assert setup.fit is not None  # it has codes
    books = setup.fit(setup.embeddings, ())
    units = LabelledEmbeddings(_padded_units(queries.embeddings, num_codebooks), queries.labels)
    codes = books.encode(setup.embeddings)
    scores = evaluate_codes(units, codes, gallery.labels, books, query_norm="raw", cutoffs=cutoffs)
    return replace(scores, method="pq")


def validation_queries(labels: IntArray) -> NDArray[np.bool_]:
    """Choose every fifth image of each class, in order, as a query: (N,) bool.

    None of a class of one image.
    """
    order = np.argsort(labels, kind="stable")
    _, first, counts = np.unique(labels[order], return_index=True, return_counts=True)
    rank = np.empty(len(labels), dtype=np.int64)
    rank[order] = np.arange(len(labels)) - np.repeat(first, counts)
    several = np.repeat(counts > 1, counts)[np.argsort(order)]
    queries: NDArray[np.bool_] = several & (rank % _VALIDATION_STRIDE == 0)
    return queries


def best_pq(
    images: FloatArray,
    bits: int,
    labels: IntArray,
    split: ClassSplit,
    *,
    sizes: Sequence[int] = PQ_SIZES,
) -> SearchSetup:
    """Return product quantization with the K, one of `sizes`, of the best MAP.

    It is chosen on learned classes, without a look at unseen ones.
    """
    gallery, queries = split.rows(unseen=False, query=False), split.rows(unseen=False, query=True)

    def mean_precision(setup: SearchSetup) -> float:
        return search(setup, labels, "", gallery=gallery, queries=queries).values["map"]

    setups = [pq_codes(images, bits, codebook_size=size) for size in sizes]
    return max(setups, key=mean_precision) if len(setups) > 1 else setups[0]


def search(  # noqa: PLR0913  by name
    setup: SearchSetup,
    labels: IntArray,
    protocol: str,
    *,
    gallery: IntArray,
    queries: IntArray,
    names: Names | None = None,
    ignored: NDArray[np.bool_] | None = None,
    itself: bool = False,
) -> SearchScore:
    """Search for some of N images among others, and measure the result.

    Args:
        setup: How. Without labels, `names` are not used.
        labels: (N,) of the images; a hit with the query's label is relevant.
        protocol: Name of what is measured.
        gallery: Rows that can be found; a query that is among them does not find itself.
        queries: Rows to search for.
        names: N labels of the gallery; the true ones by default.
        ignored: (N,) rows that neither help nor harm queries of their class.
        itself: Whether a query may find itself.
    """
    given = _gallery_names(setup, names_of(labels) if names is None else names)
    score, bits, size = _scorer(setup, gallery, queries, given)

    def left_out(part: slice) -> NDArray[np.bool_]:
        rows = queries[part, None]
        absent = np.zeros((len(rows), len(gallery)), bool) if itself else rows == gallery
        if ignored is not None:
            absent |= ignored[gallery] & (labels[rows] == labels[gallery])
        return absent

    blocks = rank_rows(score, labels[queries], gallery_labels=labels[gallery], left_out=left_out)
    found = measure(blocks, cutoffs=(), recall_points=2)
    return SearchScore(
        protocol=protocol,
        way=setup.name,
        labels=setup.labels,
        bits=bits,
        bytes_per_image=size,
        values=_values(found),
        queries=found.queries,
        gallery=len(gallery),
    )


class _NearestCodebooks(Codebooks):
    """Encodes sub-vectors by the nearest codeword, not by that of largest inner product."""

    def encode(self, embeddings: FloatArray) -> CodeArray:
        products = super().lookup_tables(embeddings, norm="raw")
        squares = np.square(self.codewords).sum(axis=2)
        codes: CodeArray = (products - squares / 2).argmax(axis=2).astype(np.uint8)
        return codes


def _scorer(
    setup: SearchSetup, gallery: IntArray, queries: IntArray, names: Names
) -> tuple[Callable[[slice], FloatArray], int, float]:
    """Return a function that scores (q, N) some queries, the bits of a row, and all its bytes."""
    mine = [names[row] for row in gallery]
    rows, vectors = _to_means(setup, setup.embeddings[gallery], mine), setup.embeddings[queries]
    if setup.fit is None:
        floats = 32 * rows.shape[1]
        return (lambda part: vectors[part] @ rows.T), floats, floats / 8
    books = setup.fit(rows, mine)
    if isinstance(books, AdditiveCodebooks):
        late = np.zeros(len(gallery), np.bool_)
        if setup.fitted is not None:
            late = ~np.isin(gallery, setup.fitted)
        books, codes = _with_added(setup, books, rows, mine, late)
        overhead = books.memory_bytes()
    else:
        codes, overhead = books.encode(rows), books.codewords.nbytes

    def score(part: slice) -> FloatArray:
        return score_codes(books.lookup_tables(vectors[part], norm=setup.norm), codes)

    return score, books.bits, books.bits / 8 + overhead / len(rows)


def _with_added(
    setup: SearchSetup,
    books: AdditiveCodebooks,
    rows: FloatArray,
    names: Names,
    late: NDArray[np.bool_],
) -> tuple[AdditiveCodebooks, CodeArray]:
    """Add the `late` of rows (N, E) to a gallery of the others that keeps no embeddings.

    Returns its codebooks and codes (N, M) afterwards.
    """
    codes = books.encode(rows, names)
    if not late.any():
        return books, codes
    added = [name for name, new in zip(names, late, strict=True) if new]
    if setup.refit and not can_grow(books) and fits_badly(books, rows[late], added):
        known = books.decode_without_class(codes, names)
        known[late] = rows[late]
        refitted = setup.refit(known, names)
        assert isinstance(refitted, AdditiveCodebooks)
        return refitted, refitted.encode(known, names)
    books = grow_additive(books, rows[late], added)
    codes[late] = books.encode(rows[late], added)
    return books, codes


def _gallery_names(setup: SearchSetup, names: Names) -> Names:
    return names if setup.labels == "with" else [None] * len(names)


def _to_means(setup: SearchSetup, rows: FloatArray, names: Names) -> FloatArray:
    """Move gallery rows towards the means of their classes, as far as the setup trusts labels."""
    known = sorted({name for name in names if name is not None}) if setup.trust else []
    if not known:
        return rows
    classes = number_labels(names, known)
    size = np.linalg.norm(rows, axis=1, keepdims=True)
    means = class_means(unit_rows(rows), classes, len(known))
    moved = setup.trust * size * means[classes] + (1 - setup.trust) * rows
    return np.where(classes[:, None] < 0, rows, moved).astype(np.float32)


def _values(found: RetrievalScores) -> dict[str, float]:
    recalls = {f"r{k}": 100 * share for k, share in found.recall_at.items()}
    return recalls | {"map_r": 100 * found.map_at_r, "map": found.map_percent}


def names_of(labels: IntArray) -> list[str | None]:
    """Return class numbers as names."""
    return [str(label) for label in labels]
