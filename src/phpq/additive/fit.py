"""Fits a gallery's own codebooks: embeddings and labels in, codebooks out.

In closed form or by k-means, in seconds for tens of thousands of rows: first the projection, then
the class prototypes, then codewords for the residuals, which alternate between a beam search for
the codes and least squares for all codewords.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from phpq.additive._beam import free_codes
from phpq.additive.codebooks import (
    MAX_CONTRADICTION,
    SIZE,
    AdditiveCodebooks,
    Labels,
    codeword_sums,
    cohesion,
    contradiction,
    fit_prototypes,
    number_labels,
    sums_by,
    unit_rows,
)
from phpq.additive.probabilities import fit_sharpness
from phpq.codes import CodeArray, FloatArray, IntArray, check_embeddings
from phpq.errors import ConfigError

FIT_ROWS = 50_000  # rows that codebooks are fitted to; more hardly change them
DIMS = 192  # dimensions after the projection
TRUST = 0.9  # why: docs/decisions/0014
_ROUNDS = 4  # of encoding all rows and fitting all codewords to the codes
_STEPS, _ITERATIONS = 5, 8  # of k-means: numbers of dimensions, and iterations in each
_WITHIN = 0.8  # weight of the within-class scatter in the covariance, with many labels
_SHRINK = 0.3  # of the mean variance, added to every direction
_SPARE_CLASSES = 32  # codewords of the first codebook that are left for later classes
_SPARE_ROWS = 96  # of each of the others, for later rows (grow.py), if all rows are labelled
_SHARPNESS = np.geomspace(2, 64, 26)
_SCORES = 2_000_000  # class scores that the sharpness is fitted to


def fit_additive(
    embeddings: FloatArray,
    labels: Labels,
    *,
    num_codebooks: int = 8,
    trust: float = TRUST,
    dims: int = DIMS,
    seed: int = 0,
) -> AdditiveCodebooks:
    """Fit codebooks to embeddings (N, D) and their labels, None for rows without one.

    `trust` is the weight of labels: at 0 they are not used, at 1 rows are encoded as the prototype
    of their class. Codewords are fitted to at most `FIT_ROWS` rows, prototypes to all.
    """
    rows = check_embeddings("embeddings", embeddings)
    if not len(rows) or len(labels) != len(rows):
        raise ConfigError(
            f"{len(rows)} embeddings and {len(labels)} labels: codebooks are fitted to at least "
            "one row, with a label or None for each. Add images first."
        )
    if not 0 <= trust <= 1:
        raise ConfigError(f"trust={trust} is not allowed: it must be in [0, 1].")
    names = tuple(sorted({name for name in labels if name is not None})) if trust else ()
    classes = number_labels(labels, names)
    generator = np.random.default_rng(seed)
    sample = _sample(len(rows), generator)

    def start(trusted: IntArray) -> tuple[AdditiveCodebooks, FloatArray, FloatArray]:
        """Return codebooks without codewords, the projected rows and the prototypes."""
        mean, projection = fit_projection(rows[sample], trusted[sample], dims)
        books = AdditiveCodebooks(
            codewords=np.zeros((num_codebooks, SIZE, projection.shape[1]), np.float32),
            mean=mean,
            projection=projection,
            class_names=names,
            class_codes=np.zeros((len(names), 0), np.uint8),
            trust=trust if names else 0.0,
            spare=(SIZE,) * num_codebooks,
            fitted_rows=len(rows),
        )
        vectors = books.vectors(rows)
        means, typical = fit_prototypes(vectors, trusted, len(names))
        return replace(books, typical=typical), vectors, means

    books, vectors, means = start(classes)
    trusted = _trusted(vectors, classes, means)
    if (trusted != classes).any():  # again, without the labels that look wrong
        books, vectors, means = start(trusted)
    vectors, classes = vectors[sample], classes[sample]
    books = replace(books, sharpness=_fit_sharpness(vectors, classes, means))
    books = _with_prototypes(books, means, vectors[classes < 0], generator)
    # Unlabelled rows need every codeword: a gallery of these is better fitted again as it grows.
    spare = round(_SPARE_ROWS * float((classes >= 0).mean()))
    # With prototypes as they decode, since rows are encoded with those.
    targets, classes = books.encoding_targets(vectors, classes)
    books = fit_codewords(books, targets, classes, SIZE - spare, generator)
    return replace(books, fitted_distortion=books.target_distortion(targets, classes))


def _sample(count: int, generator: np.random.Generator) -> IntArray:
    if count <= FIT_ROWS:
        return np.arange(count)
    return np.sort(generator.choice(count, FIT_ROWS, replace=False))


def _trusted(vectors: FloatArray, classes: IntArray, means: FloatArray) -> IntArray:
    """Return the classes of rows, -1 for contradicted labels that other rows have rightly."""
    agree = contradiction(vectors, classes, means) <= MAX_CONTRADICTION
    kept = np.bincount(classes[agree & (classes >= 0)], minlength=len(means) + 1) > 0
    return np.where(agree | ~kept[classes], classes, -1)


def fit_projection(rows: FloatArray, classes: IntArray, dims: int) -> tuple[FloatArray, FloatArray]:
    """Return the mean (D,) and the map (D, d): whitened within classes, then reduced by PCA."""
    mean = rows.mean(axis=0, dtype=np.float64)
    centred = rows - mean
    whitener = np.eye(rows.shape[1])
    inside = classes >= 0
    sizes = np.bincount(classes[inside]) if inside.any() else np.zeros(0, np.int64)
    degrees = int((sizes[sizes > 0] - 1).sum())  # of freedom of the scatter
    if degrees:
        sums, _ = sums_by(classes[inside], centred[inside], len(sizes))
        spread = centred[inside] - (sums / np.maximum(sizes, 1)[:, None])[classes[inside]]
        scatter = spread.T @ spread / degrees
        share = _WITHIN * degrees / (degrees + rows.shape[1] / 4)
        level = np.trace(scatter) / len(scatter)
        covariance = share * scatter + (1 - share + _SHRINK) * level * np.eye(len(scatter))
        values, axes = np.linalg.eigh(covariance)
        whitener = (axes / np.sqrt(np.maximum(values, 1e-12 * values.max()))) @ axes.T
    whitened = unit_rows((centred @ whitener).astype(np.float32)).astype(np.float64)
    whitened -= whitened.mean(axis=0)
    values, axes = np.linalg.eigh(whitened.T @ whitened)
    kept = axes[:, ::-1][:, : min(dims, rows.shape[1])]
    return mean.astype(np.float32), (whitener @ kept).astype(np.float32)


def _fit_sharpness(vectors: FloatArray, classes: IntArray, means: FloatArray) -> float:
    """Return the sharpness under which the labels are most likely, each row left out."""
    inside = np.flatnonzero(classes >= 0)
    inside = inside[:: max(1, len(inside) * len(means) // _SCORES)]
    if not len(inside) or len(means) < 2:
        return float(_SHARPNESS[len(_SHARPNESS) // 2])
    scores, numbers = vectors[inside] @ means.T, classes[inside]
    left_out = np.zeros(len(vectors), np.float32)  # scores with the class mean of other rows
    near, rows = cohesion(vectors, classes, len(means))
    left_out[rows] = near
    lengths = np.linalg.norm(means, axis=1)[numbers]
    scores[np.arange(len(inside)), numbers] = lengths * left_out[inside]
    return fit_sharpness(scores, numbers, _SHARPNESS)


def _with_prototypes(
    books: AdditiveCodebooks,
    means: FloatArray,
    unlabelled: FloatArray,
    generator: np.random.Generator,
) -> AdditiveCodebooks:
    """Put the classes into the first book, a codeword each, or if they are many into several."""
    count, words = len(means), books.codewords.copy()
    if not count:
        return books
    if count <= SIZE - _SPARE_CLASSES:
        free = SIZE - _SPARE_CLASSES - count if len(unlabelled) else 0
        words[0, :count] = means
        if free:
            words[0, count : count + free] = k_means(unlabelled, free, generator)
        codes = np.arange(count, dtype=np.uint8)[:, None]
        spare = (SIZE - count - free, *books.spare[1:])
        return replace(books, codewords=words, class_codes=codes, spare=spare)
    used = min(2 if count <= SIZE * SIZE // 2 else 3, books.num_codebooks)
    left = np.concatenate([means, unlabelled])
    for book in range(used):
        words[book] = k_means(left, SIZE, generator)
        left = left - words[book][_nearest(left, words[book])]
    codes = np.array(free_codes(means, words[:used], taken=set()), np.uint8)
    spare = (0,) * used + books.spare[used:]
    return replace(books, codewords=words, class_codes=codes, spare=spare)


def fit_codewords(
    books: AdditiveCodebooks,
    targets: FloatArray,
    classes: IntArray,
    count: int,
    generator: np.random.Generator,
) -> AdditiveCodebooks:
    """Fit spare codewords, at most `count` in each book after those of the classes, to targets.

    Other codewords stay as they are, but codes use them too.
    """
    first, words = books.class_books, books.codewords.copy()
    begins = [SIZE - spare for spare in books.spare]
    ends = [min(begin + count, SIZE) for begin in begins]
    left = targets - codeword_sums(words, _first_codes(books, targets, classes))
    for book in range(first, books.num_codebooks):
        mine, end = words[book], ends[book]
        mine[begins[book] : end] = k_means(left, end - begins[book], generator)
        left = left - mine[_nearest(left, mine[:end])]
    spare = books.spare[:first] + tuple(SIZE - end for end in ends[first:])
    books = replace(books, codewords=words, spare=spare)
    # With a codeword for each row there is nothing to improve.
    for _ in range(_ROUNDS if len(targets) > count else 0):
        codes, words = books.encode_targets(targets, classes), books.codewords.copy()
        rest = targets - codeword_sums(words, codes[:, :first])
        words[first:] = _least_squares(rest, codes[:, first:], words[first:], begins[first:])
        books = replace(books, codewords=words)
    return books


def _first_codes(books: AdditiveCodebooks, targets: FloatArray, classes: IntArray) -> CodeArray:
    """Return (N, P) the code of each row's class; without a class, the nearest code."""
    if not books.class_books:
        return np.zeros((len(targets), 0), np.uint8)
    codes = np.empty((len(targets), books.class_books), np.uint8)
    labelled = classes >= 0
    codes[labelled] = books.class_codes[classes[labelled]]
    if not labelled.all():
        only = replace(books, codewords=books.codewords[: books.class_books])
        codes[~labelled] = only.encode_targets(targets[~labelled], classes[~labelled])
    return codes


def _least_squares(
    targets: FloatArray, codes: CodeArray, words: FloatArray, begins: Sequence[int]
) -> FloatArray:
    """Return the codewords (B, K, d) whose sums under fixed codes (N, B) are nearest to targets.

    In each book the codewords before `begins` stay as they are.
    """
    books, size, dim = words.shape
    normal = np.zeros((books * size, books * size))
    sums = np.zeros((books * size, dim))
    for one in range(books):
        sums[one * size : (one + 1) * size] = sums_by(codes[:, one], targets, size)[0]
        for other in range(books):
            pairs = codes[:, one].astype(np.int64) * size + codes[:, other]
            block = np.bincount(pairs, minlength=size * size).reshape(size, size)
            normal[one * size : (one + 1) * size, other * size : (other + 1) * size] = block
    # Ridge towards the old codewords: with about as many codewords as rows the solution would
    # overfit. Codewords that no row uses stay where they are.
    moving = (np.arange(size) >= np.asarray(begins)[:, None]).ravel() & (normal.diagonal() > 0)
    solved = words.reshape(-1, dim).copy()
    weighed = normal[np.ix_(moving, moving)] + np.eye(moving.sum())
    others = normal[np.ix_(moving, ~moving)] @ solved[~moving]
    solved[moving] = np.linalg.solve(weighed, sums[moving] - others + solved[moving])
    return solved.reshape(books, size, dim)


def k_means(points: FloatArray, count: int, generator: np.random.Generator) -> FloatArray:
    """Return `count` centres (count, d) of points (N, d); with fewer points the others are zero.

    It starts in the few principal directions and ends in all of them: with few points per centre,
    k-means in all directions at once stops at far worse centres.
    """
    if len(points) <= count:
        filled = np.zeros((count, points.shape[1]), np.float32)
        filled[: len(points)] = points
        return filled
    mean = points.mean(axis=0)
    centred = points - mean
    axes = np.linalg.eigh((centred.T @ centred).astype(np.float64))[1][:, ::-1].astype(np.float32)
    turned = centred @ axes
    centres = turned[generator.choice(len(points), count, replace=False)]
    dims = [max(1, round(points.shape[1] ** (step / _STEPS))) for step in range(1, _STEPS + 1)]
    for dim in np.repeat(dims, _ITERATIONS):
        reduced = np.ascontiguousarray(turned[:, :dim])
        nearest = _nearest(reduced, np.ascontiguousarray(centres[:, :dim]))
        sums, sizes = sums_by(nearest, turned, count)
        used, empty = np.flatnonzero(sizes), np.flatnonzero(sizes == 0)
        centres[used] = sums[used] / sizes[used, None]
        if len(empty):  # they move to the points with the largest errors
            errors = np.square(reduced - centres[nearest, :dim]).sum(axis=1)
            centres[empty] = turned[np.argsort(-errors, kind="stable")[: len(empty)]]
    found: FloatArray = (centres @ axes.T + mean).astype(np.float32)
    return found


def _nearest(points: FloatArray, centres: FloatArray) -> NDArray[np.intp]:
    squares = np.square(centres).sum(axis=1)
    nearest = np.empty(len(points), np.intp)
    for start in range(0, len(points), 8192):
        part = points[start : start + 8192]
        nearest[start : start + 8192] = (squares - 2 * (part @ centres.T)).argmin(axis=1)
    return nearest
