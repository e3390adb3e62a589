"""Codebooks and rows that they were not fitted to.

Codewords fitted to few rows overfit: later rows would decode too short, and all fitted rows would
rank before them. With labels each codebook keeps spare codewords, which are fitted to later rows,
in directions that are added to the projection for them; earlier codes use neither, and stay valid.
Codebooks without labels have none to spare: they are fitted again, to the later rows and to what
the codes tell of the others.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from phpq.additive.codebooks import AdditiveCodebooks, Labels, number_labels, unit_rows
from phpq.additive.fit import fit_codewords
from phpq.codes import FloatArray, check_embeddings

MAX_DISTORTION = 1.25  # relative to that at fitting; beyond it codebooks are extended or refitted
MIN_SHARE = 0.01  # new rows, relative to those at fitting, that are worth a check or codewords
_MIN_ROWS = 100  # that codewords are fitted to
_WEIGHT = 4  # rows at fitting that weigh as much as one new row


def grow_additive(
    books: AdditiveCodebooks, embeddings: FloatArray, labels: Labels
) -> AdditiveCodebooks:
    """Return codebooks that have the classes of new rows (N, D) and encode these rows well.

    Earlier codes stay valid. The more rows there are, the more spare codewords they take; some are
    always left for later rows.
    """
    rows = check_embeddings("embeddings", embeddings, books.embedding_dim)
    if not fits_badly(books, rows, labels):
        return books.with_classes(rows, labels)
    share = len(rows) / (len(rows) + books.fitted_rows / _WEIGHT)
    count = min(round(share * max(books.spare[books.class_books :], default=0)), len(rows))
    if not count:
        return books.with_classes(rows, labels)
    wider = _with_directions(books, rows, round(share * books.sub_dim / 4))
    wider = wider.with_classes(rows, labels)
    classes = number_labels(labels, wider.class_names)
    targets = wider.encoding_targets(wider.vectors(rows), classes)
    grown = fit_codewords(wider, *targets, count, np.random.default_rng(0))
    return replace(grown, fitted_rows=books.fitted_rows + len(rows))


def fits_badly(books: AdditiveCodebooks, embeddings: FloatArray, labels: Labels) -> bool:
    """Say whether rows (N, D) are worth codewords of their own: they are many, and decode badly."""
    if len(embeddings) < max(_MIN_ROWS, MIN_SHARE * books.fitted_rows):
        return False
    limit = MAX_DISTORTION * books.fitted_distortion + 1e-3
    return books.distortion(embeddings, labels) > limit


def can_grow(books: AdditiveCodebooks) -> bool:
    """Say whether `grow_additive` can make room: only codebooks with classes have any to spare."""
    return books.class_books > 0


def _with_directions(books: AdditiveCodebooks, rows: FloatArray, count: int) -> AdditiveCodebooks:
    """Add to the projection the directions in which rows (N, D) lie farthest outside of it."""
    projection = books.projection.astype(np.float64)
    count = min(count, len(rows), len(projection) - projection.shape[1])
    if count <= 0:
        return books
    inside, _ = np.linalg.qr(projection)
    outside = unit_rows(rows - books.mean).astype(np.float64)
    outside -= outside @ inside @ inside.T
    axes = np.linalg.eigh(outside.T @ outside)[1][:, ::-1][:, :count]
    axes *= np.sqrt(np.square(projection).sum(axis=0).mean())  # at the length of the others
    zeros = np.zeros((*books.codewords.shape[:2], count), np.float32)
    return replace(
        books,
        projection=np.concatenate([projection, axes], axis=1).astype(np.float32),
        codewords=np.concatenate([books.codewords, zeros], axis=2),
    )
