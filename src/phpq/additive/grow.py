"""Lets codebooks serve rows that they were not fitted to, while codes made before stay valid.

Codewords that are fitted to few rows know them by heart and say little of others: these would come
out short, and everything fitted would be found before them. So each codebook keeps codewords back,
which are fitted to what comes, in directions that are added to the projection for it. Codes made
before use neither.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from phpq.additive.codebooks import AdditiveCodebooks, Labels, number_labels, unit_rows
from phpq.additive.fit import with_words
from phpq.codes import FloatArray, check_embeddings

WORSE = 1.25  # times the distortion at fitting, at which codebooks do not serve rows any more
FEW = 0.01  # share of the rows at fitting that is too few to look at or to spend codewords on
_FEWEST = 100  # rows that codewords are fitted to
_WEIGHT = 4  # how many rows that were fitted count as much as one that comes


def grow_additive(
    books: AdditiveCodebooks, embeddings: FloatArray, labels: Labels
) -> AdditiveCodebooks:
    """Return codebooks that know the classes of rows (N, D) that come, and can say their look.

    Codes made before stay valid. The more rows come, the more of the spare codewords they take;
    something is left for the next.
    """
    rows = check_embeddings("embeddings", embeddings, books.embedding_dim)
    limit = WORSE * books.fitted_distortion + 1e-3
    if len(rows) < max(_FEWEST, FEW * books.fitted_rows) or books.distortion(rows, labels) <= limit:
        return books.with_classes(rows, labels)
    share = len(rows) / (len(rows) + books.fitted_rows / _WEIGHT)
    count = min(round(share * max(books.spare[books.class_books :], default=0)), len(rows))
    if not count:
        return books.with_classes(rows, labels)
    wider = _with_directions(books, rows, round(share * books.sub_dim / 4))
    wider = wider.with_classes(rows, labels)
    places = wider.places(wider.vectors(rows), number_labels(labels, wider.class_names))
    grown = with_words(wider, *places, count, np.random.default_rng(0))
    return replace(grown, fitted_rows=books.fitted_rows + len(rows))


def _with_directions(books: AdditiveCodebooks, rows: FloatArray, count: int) -> AdditiveCodebooks:
    """Add the directions in which rows (N, D) lie farthest from the space of the projection."""
    projection = books.projection.astype(np.float64)
    count = min(count, len(rows), len(projection) - projection.shape[1])
    if count <= 0:
        return books
    known, _ = np.linalg.qr(projection)
    outside = unit_rows(rows - books.mean).astype(np.float64)
    outside -= outside @ known @ known.T
    axes = np.linalg.eigh(outside.T @ outside)[1][:, ::-1][:, :count]
    axes *= np.sqrt(np.square(projection).sum(axis=0).mean())  # as long as those that are there
    nothing = np.zeros((*books.codewords.shape[:2], count), np.float32)
    return replace(
        books,
        projection=np.concatenate([projection, axes], axis=1).astype(np.float32),
        codewords=np.concatenate([books.codewords, nothing], axis=2),
    )
