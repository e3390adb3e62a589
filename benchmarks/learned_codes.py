"""Codes and queries as a trained model makes them, for galleries of any number of rows and classes.

A table fitted to our own CUB-200-2011 runs (learned_codes.npz) goes in: for each class the codes of
its images, and one query. Codes (N, M) uint8 and lookup tables (Q, M, 256) float32 come out.
A second table (learned_crops.npz) is of random crops of images, 64 bits, see `crops.py`.
Refit them with: python benchmarks/learned_codes.py CODES.npz ... (one file a bit length), and
python benchmarks/learned_codes.py learned.npz --output benchmarks/learned_crops.npz
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from phpq.codes import CodeArray, Codebooks, FloatArray, IntArray

TABLE = Path(__file__).with_name("learned_codes.npz")
CROPS = Path(__file__).with_name("learned_crops.npz")
WORDS = 256
_POOL = 4096  # random permutations of the codewords, to choose from
_BLOCK = 1 << 18  # rows drawn at once


@dataclass(frozen=True, slots=True, eq=False)
class LearnedCodes:
    """What one run learned, by class.

    Attributes:
        codes: (C, M) uint8, the distinct (class, code) pairs of training and test images.
        labels: (C,) int64, their classes, ascending.
        counts: (C,) int64, images that have the code.
        tables: (classes, M, 256) int8, the lookup table of one test image of each class.
        step: What one unit of `tables` is worth.
    """

    codes: CodeArray
    labels: IntArray
    counts: IntArray
    tables: np.ndarray[tuple[int, ...], np.dtype[np.int8]]
    step: float

    @property
    def num_codebooks(self) -> int:
        """M."""
        return int(self.codes.shape[1])

    @property
    def novelty(self) -> float:
        """Share of images whose code no other image of the class has: what a further one would do.

        (The Good-Turing estimate of what was not seen; repeating the seen codes only would make a
        large gallery look more regular than it is.)
        """
        return float((self.counts == 1).sum() / self.counts.sum())

    def gallery(self, rows: int, classes: int, *, seed: int) -> CodeArray:
        """Draw codes: a class at random, one of its images at random, codewords renamed.

        A share of `novelty` gets a new code: the codeword of each codebook from another image of
        the class. That is more disorder than the model's own, whose codewords go together.

        Class c is class c mod 200 of the run with the codewords of each codebook permuted, by a
        permutation of its own for each class and codebook.

        Args:
            rows: N.
            classes: How many classes to spread to.
            seed: The classes and their permutations depend on it, and agree with `queries`.

        Returns:
            (N, M) uint8.
        """
        rng = np.random.default_rng([seed, 1])
        pool = _permutations(seed)
        ends = self.counts.cumsum()
        first = np.searchsorted(self.labels, np.arange(len(self.tables) + 1))
        before = np.concatenate([[0], ends])[first]  # images before each class
        result = np.empty((rows, self.num_codebooks), dtype=np.uint8)
        for start in range(0, rows, _BLOCK):
            size = min(_BLOCK, rows - start)
            label = rng.integers(0, classes, size)
            own = label % len(self.tables)
            image = rng.integers(before[own], before[own + 1])
            new = np.flatnonzero(rng.random(size) < self.novelty)
            for m in range(self.num_codebooks):
                image[new] = rng.integers(before[own[new]], before[own[new] + 1])
                word = self.codes[np.searchsorted(ends, image, side="right"), m]
                which, flip = _renaming(label, m, seed)
                result[start : start + size, m] = pool[which, word ^ flip]
        return result

    def queries(self, count: int, classes: int, *, seed: int) -> FloatArray:
        """Draw lookup tables: a class at random, its query, renamed as its codes are.

        Args:
            count: Q.
            classes: As for `gallery`.
            seed: As for `gallery`.

        Returns:
            (Q, M, 256) float32; the rounding of the shipped table is undone at random, so that
            entries do not tie where they did not.
        """
        rng = np.random.default_rng([seed, 2])
        pool = _permutations(seed)
        label = rng.integers(0, classes, count)
        units = self.tables[label % len(self.tables)].astype(np.float64)
        values = ((units + rng.uniform(-0.5, 0.5, units.shape)) * self.step).astype(np.float32)
        result = np.empty_like(values)
        words = np.arange(WORDS)
        for m in range(self.num_codebooks):
            which, flip = _renaming(label, m, seed)
            new_words = pool[which[:, None], words ^ flip[:, None]]
            np.put_along_axis(result[:, m], new_words.astype(np.int64), values[:, m], axis=1)
        return result


def load_learned_codes(num_codebooks: int, *, path: Path = TABLE) -> LearnedCodes:
    """Read the shipped table of the run with M codebooks."""
    with np.load(path) as stored:
        part = {name: stored[f"{name}{num_codebooks}"] for name in ("codes", "labels", "counts")}
        return LearnedCodes(
            codes=part["codes"],
            labels=part["labels"].astype(np.int64),
            counts=part["counts"].astype(np.int64),
            tables=stored[f"tables{num_codebooks}"],
            step=float(stored[f"step{num_codebooks}"]),
        )


def fit_learned_codes(path: Path) -> LearnedCodes:
    """Count the codes of each class of a run, and keep one query of each class.

    Args:
        path: npz with gallery_codes and query_codes (N, M) uint8, gallery_labels, query_labels,
            codebooks (M, 256, d), and queries (Q, D), every 8th query embedding; or of crops, with
            embeddings (images, crops, D), labels (images,) and codebooks. Each crop counts as an
            image, and one of each class asks.
    """
    with np.load(path) as run:
        if "embeddings" in run:
            return _fit_crops(run["embeddings"], run["labels"], Codebooks(run["codebooks"]))
        codes = np.concatenate([run["gallery_codes"], run["query_codes"]])
        labels = np.concatenate([run["gallery_labels"], run["query_labels"]])
        words = run["codebooks"].astype(np.float32)
        queries = run["queries"].astype(np.float32)
        query_labels = run["query_labels"][::8]
    words /= np.linalg.norm(words, axis=2, keepdims=True)
    return _fit(codes, labels, Codebooks(words).lookup_tables(queries), query_labels)


def _fit_crops(embeddings: FloatArray, labels: IntArray, books: Codebooks) -> LearnedCodes:
    images, crops, dim = embeddings.shape
    codes = books.encode(embeddings.reshape(-1, dim).astype(np.float32))
    number = np.unique(labels, return_inverse=True)[1]
    asked = embeddings[np.arange(images), np.arange(images) % crops].astype(np.float32)
    return _fit(codes, np.repeat(number, crops), books.lookup_tables(asked), number)


def _fit(
    codes: CodeArray, labels: IntArray, tables: FloatArray, query_labels: IntArray
) -> LearnedCodes:
    rng = np.random.default_rng(0)
    kept = [rng.choice(np.flatnonzero(query_labels == label)) for label in np.unique(labels)]
    step = float(np.abs(tables[kept]).max()) / 127
    pairs = np.column_stack([labels, codes])
    distinct, counts = np.unique(pairs, axis=0, return_counts=True)
    return LearnedCodes(
        codes=distinct[:, 1:].astype(np.uint8),
        labels=distinct[:, 0].astype(np.int64),
        counts=counts.astype(np.int64),
        tables=np.round(tables[kept] / step).astype(np.int8),
        step=step,
    )


def _permutations(seed: int) -> CodeArray:
    rng = np.random.default_rng([seed, 0])
    every = np.tile(np.arange(WORDS, dtype=np.uint8), (_POOL, 1))
    return rng.permuted(every, axis=1)


def _renaming(label: IntArray, book: int, seed: int) -> tuple[IntArray, IntArray]:
    """Return, for each class, a permutation of the pool and a mask applied before it.

    A million classes have no room for a permutation each; these are 2^20 different ones a codebook.
    """
    mixed = label.astype(np.uint64) + np.uint64(1 + book * 0x9E3779B9 + seed * 0x85EBCA6B)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    which = (mixed % np.uint64(_POOL)).astype(np.int64)
    return which, ((mixed >> np.uint64(32)) & np.uint64(WORDS - 1)).astype(np.int64)


def main() -> None:
    """Fit the shipped table."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("runs", nargs="+", type=Path, help="npz of codes, one file a bit length")
    parser.add_argument("--output", type=Path, default=TABLE)
    arguments = parser.parse_args()
    stored: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]] = {}
    for path in arguments.runs:
        fitted = fit_learned_codes(path)
        books = fitted.num_codebooks
        stored[f"codes{books}"] = fitted.codes
        stored[f"labels{books}"] = fitted.labels.astype(np.uint8)
        stored[f"counts{books}"] = fitted.counts.astype(np.uint16)
        stored[f"tables{books}"] = fitted.tables
        stored[f"step{books}"] = np.array(fitted.step)
        rows = int(fitted.counts.sum())
        real = len(np.unique(fitted.codes, axis=0)) / rows
        drawn = fitted.gallery(rows, len(fitted.tables), seed=0)
        like = len(np.unique(drawn, axis=0)) / rows
        print(f"M={books}: {len(fitted.codes)} pairs of class and code, step {fitted.step:.4f}")
        print(f"  distinct codes of {rows} images: {real:.3f}; of as many drawn: {like:.3f}")
    np.savez_compressed(arguments.output, **stored)  # type: ignore[arg-type]
    print(f"{arguments.output}: {arguments.output.stat().st_size} bytes")


if __name__ == "__main__":
    main()
