"""Codes and queries of galleries with codebooks of their own, for any number of rows.

A table fitted to embeddings of real images (additive_codes.npz) goes in: the codes of some crops of
each image, and the lookup tables of some queries. Codes (N, 8) uint8 and lookup tables (Q, 8, 256)
float32 come out, with the gallery's labels ("labelled") or without ("new kinds").

The shipped table is made of general embeddings of 5,864 photos of 100 species of CUB-200-2011
(ResNet-18, 66 of the species learned), one each. *Their crops are made up*: an embedding and 0.5 to
1 times what another photo differs by from the mean of its class, at unit length. Ten species, and
every eighth photo of the others, are kept out of the gallery: they are the queries that it does not
hold. The codebooks are fitted to 50,000 such crops, as those of a large gallery would be; by an
earlier version of the fit, with 128 directions and less trust in labels.

    python benchmarks/additive_codes.py EMBEDDINGS.npz    # fits the table again; minutes

EMBEDDINGS.npz holds `embeddings` (images, crops, D) and `labels` (images,); with more than one crop
of each image these are taken, and none are made up.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from phpq.additive import FIT_ROWS, AdditiveCodebooks, fit_additive, unit_rows
from phpq.codes import CodeArray, FloatArray, IntArray

Kind = Literal["labelled", "new kinds"]
Asked = Literal["held", "new", "strange"]  # in the gallery; of its classes; of none of its classes

TABLE = Path(__file__).with_name("additive_codes.npz")
_CROPS, _QUERIES = 6, 32  # of each image; of each sort
_NOISE = (0.5, 1.0)  # of made-up crops, in deviations of another photo from its class
_BLOCK = 1 << 18  # rows drawn at once


@dataclass(frozen=True, slots=True, eq=False)
class AdditiveCodes:
    """What one gallery's codebooks made of its images."""

    codes: CodeArray  # (images, crops, M)
    tables: NDArray[np.int8]  # (sorts of queries, Q, M, 256)
    steps: FloatArray  # (M,) what one unit of `tables` is worth in each codebook

    @property
    def novelty(self) -> float:
        """Share of crops whose code no other crop of the image has (see `LearnedCodes`)."""
        images, crops, books = self.codes.shape
        own = np.repeat(np.arange(images), crops)[:, None]
        pairs = np.hstack([own, self.codes.reshape(-1, books)])
        return float((np.unique(pairs, axis=0, return_counts=True)[1] == 1).sum() / len(pairs))

    def gallery(self, rows: int, *, seed: int) -> CodeArray:
        """Draw codes (N, M): an image at random, one of its crops at random.

        A share of `novelty` gets a new code: the codeword of each codebook from another crop of the
        image. That is more disorder than there would be, since codewords of a code go together.
        """
        rng = np.random.default_rng([seed, 1])
        images, crops, books = self.codes.shape
        result = np.empty((rows, books), np.uint8)
        novelty = self.novelty
        for start in range(0, rows, _BLOCK):
            size = min(_BLOCK, rows - start)
            image, crop = rng.integers(0, images, size), rng.integers(0, crops, size)
            new = np.flatnonzero(rng.random(size) < novelty)
            for book in range(books):
                crop[new] = rng.integers(0, crops, len(new))
                result[start : start + size, book] = self.codes[image, crop, book]
        return result

    def queries(self, asked: Asked, *, seed: int) -> FloatArray:
        """Return lookup tables (Q, M, 256) of one sort, the rounding undone at random."""
        rng = np.random.default_rng([seed, 2])
        units = self.tables[get_args(Asked).index(asked)].astype(np.float64)
        noise = rng.uniform(-0.5, 0.5, units.shape)
        tables: FloatArray = ((units + noise) * self.steps[:, None]).astype(np.float32)
        return tables


def load_additive_codes(kind: Kind, *, path: Path = TABLE) -> AdditiveCodes:
    """Read the shipped table of one kind of codes."""
    with np.load(path) as stored:
        return AdditiveCodes(*(stored[f"{kind} {name}"] for name in ("codes", "tables", "steps")))


def fit_additive_codes(kind: Kind, embeddings: FloatArray, labels: IntArray) -> AdditiveCodes:
    """Fit codebooks to crops (images, crops, D), encode some of each image, keep some queries."""
    rng = np.random.default_rng(0)
    strange = np.isin(labels, np.unique(labels)[-(len(np.unique(labels)) // 10) :])
    new = ~strange & (np.arange(len(labels)) % 8 == 0)
    held = ~strange & ~new
    rows, classes = embeddings[held], labels[held]
    images = np.repeat(np.arange(len(rows)), -(-FIT_ROWS // len(rows)))
    fitted = _crops(rows, classes, images, rng)
    names = [str(label) if kind == "labelled" else None for label in classes.tolist()]
    books = fit_additive(fitted, [names[image] for image in images])
    images = np.repeat(np.arange(len(rows)), _CROPS)
    codes = books.encode(_crops(rows, classes, images, rng), [names[image] for image in images])
    tables = np.stack([_tables(books, embeddings[each], rng) for each in (held, new, strange)])
    steps = np.abs(tables).max(axis=(0, 1, 3)) / 127
    print(f"{kind}: distortion {books.fitted_distortion:.4f} of {len(fitted)} rows")
    return AdditiveCodes(
        codes=codes.reshape(len(rows), _CROPS, -1),
        tables=np.round(tables / steps[:, None]).astype(np.int8),
        steps=steps.astype(np.float32),
    )


def _crops(
    rows: FloatArray, classes: IntArray, images: IntArray, rng: np.random.Generator
) -> FloatArray:
    """Return a crop (n, D) of each of the images (n,): a real one, or one made up."""
    if rows.shape[1] > 1:
        return rows[images, rng.integers(0, rows.shape[1], len(images))]
    own, (_, number) = rows[:, 0], np.unique(classes, return_inverse=True)
    means = np.stack([own[number == each].mean(axis=0) for each in range(number.max() + 1)])
    other = rng.integers(0, len(own), len(images))
    size = rng.uniform(*_NOISE, (len(images), 1)).astype(np.float32)
    return unit_rows(own[images] + size * (own[other] - means[number[other]]))


def _tables(
    books: AdditiveCodebooks, embeddings: FloatArray, rng: np.random.Generator
) -> FloatArray:
    chosen = rng.choice(len(embeddings), _QUERIES, replace=False)
    return books.lookup_tables(embeddings[chosen, 0])


def main() -> None:
    """Fit the shipped table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("embeddings", type=Path, help="npz of embeddings and labels")
    parser.add_argument("--output", type=Path, default=TABLE)
    arguments = parser.parse_args()
    with np.load(arguments.embeddings) as given:
        embeddings, labels = given["embeddings"].astype(np.float32), given["labels"]
    stored: dict[str, NDArray[np.generic]] = {}
    for kind in get_args(Kind):
        fitted = fit_additive_codes(kind, embeddings, labels)
        for name in ("codes", "tables", "steps"):
            stored[f"{kind} {name}"] = getattr(fitted, name)
        rows = fitted.codes.reshape(-1, fitted.codes.shape[2])
        drawn = fitted.gallery(len(rows), seed=0)
        real, like = (len(np.unique(each, axis=0)) / len(rows) for each in (rows, drawn))
        print(f"  distinct codes of {len(rows)} crops: {real:.3f}; of as many drawn: {like:.3f}")
    np.savez_compressed(arguments.output, **stored)  # type: ignore[arg-type]
    print(f"{arguments.output}: {arguments.output.stat().st_size} bytes")


if __name__ == "__main__":
    main()
