"""Codes and queries of galleries with codebooks of their own, for any number of rows.

A table fitted to embeddings of real images (additive_codes.npz) goes in: the codes of some crops of
each image, and the lookup tables of some queries. Codes (N, 8) uint8 and lookup tables (Q, 8, 256)
float32 come out, with the gallery's labels ("labelled") or without ("new kinds").

The shipped table is of random crops of photos of new species, embedded by a model that never saw
them (`crops.py`; docs/results/search.md says of what). A tenth of the species, and every eighth
photo of the others, are kept out of the gallery: they are the queries that it does not hold. The
codebooks are fitted to the crops of all other photos, as those of a gallery are.

    python benchmarks/additive_codes.py general.npz    # fits the table again; minutes

general.npz holds `embeddings` (images, crops, D) and `labels` (images,), two crops at least.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from phpq.additive import AdditiveCodebooks, fit_additive
from phpq.codes import CodeArray, FloatArray, IntArray

Kind = Literal["labelled", "new kinds"]
Within = Literal["photo", "class"]  # what a new code is put together from
Asked = Literal["held", "new", "strange"]  # in the gallery; of its classes; of none of its classes

TABLE = Path(__file__).with_name("additive_codes.npz")
_QUERIES = 32  # of each sort
_STORED = ("codes", "labels", "tables", "steps")
_BLOCK = 1 << 18  # rows drawn at once


@dataclass(frozen=True, slots=True, eq=False)
class AdditiveCodes:
    """What one gallery's codebooks made of its images."""

    codes: CodeArray  # (images, crops, M)
    labels: NDArray[np.uint8]  # (images,) ascending, classes from 0
    tables: NDArray[np.int8]  # (sorts of queries, Q, M, 256)
    steps: FloatArray  # (M,) what one unit of `tables` is worth in each codebook

    def novelty(self, within: Within) -> float:
        """Return the share of crops whose code is new (see `LearnedCodes`).

        That is, no other crop of its photo has it, or no crop of another photo of its class.
        """
        images, crops, books = self.codes.shape
        of_image = np.repeat(np.arange(images), crops)
        of_class = np.repeat(self.labels.astype(np.int64), crops)
        groups = of_image if within == "photo" else of_class
        codes = np.column_stack([groups, self.codes.reshape(-1, books)])
        _, code, counts = np.unique(codes, axis=0, return_inverse=True, return_counts=True)
        if within == "class":  # several crops of one photo count once
            pairs = np.unique(np.column_stack([code.ravel(), of_image]), axis=0)
            counts = np.bincount(pairs[:, 0])
        return float((counts == 1)[code.ravel()].mean())

    def gallery(self, rows: int, within: Within, *, seed: int) -> CodeArray:
        """Draw codes (N, M): an image at random, one of its crops at random.

        A share of `novelty` gets a new code: the codeword of each codebook from another crop of the
        photo, or from a crop of any photo of the class. The first is less disorder than 10M photos
        would show, since it knows few; the second is more, since codewords of a code go together.
        """
        rng = np.random.default_rng([seed, 1])
        images, crops, books = self.codes.shape
        edges = np.searchsorted(self.labels, np.arange(int(self.labels[-1]) + 2))
        result = np.empty((rows, books), np.uint8)
        novelty = self.novelty(within)
        for start in range(0, rows, _BLOCK):
            size = min(_BLOCK, rows - start)
            image, crop = rng.integers(0, images, size), rng.integers(0, crops, size)
            new = np.flatnonzero(rng.random(size) < novelty)
            own = self.labels[image[new]].astype(np.int64)
            for book in range(books):
                if within == "class":
                    image[new] = rng.integers(edges[own], edges[own + 1])
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
        return AdditiveCodes(*(stored[f"{kind} {name}"] for name in _STORED))


def fit_additive_codes(kind: Kind, embeddings: FloatArray, labels: IntArray) -> AdditiveCodes:
    """Fit codebooks to crops (images, crops, D), encode some of each image, keep some queries."""
    rng = np.random.default_rng(0)
    strange = np.isin(labels, np.unique(labels)[-(len(np.unique(labels)) // 10) :])
    new = ~strange & (np.arange(len(labels)) % 8 == 0)
    held = np.flatnonzero(~strange & ~new)
    held = held[np.argsort(labels[held], kind="stable")]
    images, crops, dim = embeddings[held].shape
    rows = embeddings[held].reshape(-1, dim)
    names = [str(n) if kind == "labelled" else None for n in np.repeat(labels[held], crops)]
    books = fit_additive(rows, names)
    codes = books.encode(rows, names)
    tables = np.stack([_tables(books, embeddings[each], rng) for each in (held, new, strange)])
    steps = np.abs(tables).max(axis=(0, 1, 3)) / 127
    print(f"{kind}: distortion {books.fitted_distortion:.4f} of {len(rows)} rows")
    return AdditiveCodes(
        codes=codes.reshape(images, crops, -1),
        labels=np.unique(labels[held], return_inverse=True)[1].astype(np.uint8),
        tables=np.round(tables / steps[:, None]).astype(np.int8),
        steps=steps.astype(np.float32),
    )


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
        for name in _STORED:
            stored[f"{kind} {name}"] = getattr(fitted, name)
        rows = fitted.codes.reshape(-1, fitted.codes.shape[2])
        real = len(np.unique(rows, axis=0)) / len(rows)
        print(f"  distinct codes of {len(rows)} crops: {real:.3f}")
        for within in get_args(Within):
            drawn = fitted.gallery(len(rows), within, seed=0)
            like = len(np.unique(drawn, axis=0)) / len(rows)
            new = fitted.novelty(within)
            print(f"  of as many drawn within a {within}: {like:.3f} ({new:.3f} are new)")
    np.savez_compressed(arguments.output, **stored)  # type: ignore[arg-type]
    print(f"{arguments.output}: {arguments.output.stat().st_size} bytes")


if __name__ == "__main__":
    main()
