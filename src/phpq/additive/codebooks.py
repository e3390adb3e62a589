"""Additive codebooks that a gallery owns, fitted to its embeddings and labels. Numpy.

A code picks one codeword of each codebook, and decodes to their *sum*: every codeword spans the
whole vector. A score is still a sum of table lookups, so that index and shards work unchanged.
Embeddings are projected first: centred, whitened within the classes of the labels, and reduced by
PCA.

The first codebooks hold class prototypes. A labelled row is encoded as
`trust * prototype + (1 - trust) * its own vector`: its class decides which images come first, its
other bytes order the images of the class. A row without a label, or whose vector contradicts its
label, is encoded as its own vector.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phpq.additive._beam import beam_search, free_codes, gram_matrix
from phpq.additive.probabilities import ProbabilityModel, renamed_parents
from phpq.codes import CodeArray, Codebooks, FloatArray, IntArray, QueryNorm, check_embeddings
from phpq.errors import FormatError, ShapeError

Labels = Sequence[str | None]

SIZE = 256  # codewords of a codebook
_BLOCK = 512  # rows encoded at once
MAX_CONTRADICTION = 0.15  # see `contradiction`; a label beyond it is ignored
_PRIOR_IMAGES = 2  # of typical cohesion, added to those of a class before its own is estimated
_MAX_CLASSES = 4096  # with more, contradictions are not computed: it would take long
_TENSORS = ("codewords", "mean", "projection", "class_codes")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class AdditiveCodebooks(Codebooks):
    """M codebooks (M, K, d) over the whole projected vector, and the classes of a gallery."""

    unit: bool = False
    mean: FloatArray  # (D,) of the embeddings at fitting
    projection: FloatArray  # (D, d)
    class_names: tuple[str, ...] = ()
    class_codes: CodeArray  # (C, P): per class, its codewords in the first P books
    spare: tuple[int, ...] = ()  # codewords at the end of each book that no row uses yet
    trust: float = 0.0  # weight of labels, 0 to 1
    sharpness: float = 16.0  # inverse temperature of the softmax over class scores
    typical: float = 1.0  # mean `cohesion` of the rows at fitting
    probabilities: ProbabilityModel | None = None  # None: not fitted
    parents: Mapping[str, str] = field(default_factory=dict)  # label or parent to its parent
    fitted_rows: int = 0
    fitted_distortion: float = 0.0  # mean squared error of the rows at fitting
    # Matrices derived from the above, computed on first use: they cost more than encoding a row.
    _cache: dict[str, NDArray[Any]] = field(default_factory=dict, init=False, repr=False)

    @property
    def embedding_dim(self) -> int:
        """D, of the embeddings before they are projected."""
        return len(self.mean)

    @property
    def class_books(self) -> int:
        """P: codebooks that hold classes."""
        return int(self.class_codes.shape[1])

    def vectors(self, embeddings: FloatArray, *, norm: QueryNorm = "unit") -> FloatArray:
        """Project (N, D) embeddings: (N, d) of unit length; inner products are float scores."""
        del norm  # projected vectors always have unit length
        return unit_rows(self._projected(embeddings))

    def normalised(self, embeddings: FloatArray, *, norm: QueryNorm = "unit") -> FloatArray:
        """Return (N, D) embeddings with the same results, of unit length once projected."""
        return self._unprojected(self.vectors(embeddings, norm=norm))

    def encode(self, embeddings: FloatArray, labels: Labels | None = None) -> CodeArray:
        """Return the codes (N, M) of (N, D) embeddings.

        A row's code does not depend on the other rows. Unknown labels are ignored.
        """
        vectors = self.vectors(embeddings)
        classes = self._classes_of(labels, len(vectors))
        return self.encode_targets(*self.encoding_targets(vectors, classes))

    def decode(self, codes: CodeArray) -> FloatArray:
        """Decode (N, M) codes into the space of embeddings: (N, D) float32."""
        return self._unprojected(codeword_sums(self.codewords, codes))

    def lookup_tables(self, queries: FloatArray, *, norm: QueryNorm = "unit") -> FloatArray:
        """Score every codeword against (Q, D) queries: (Q, M, K) float32."""
        del norm
        return self._tables(self.vectors(queries))

    def best(self, tables: FloatArray) -> FloatArray:
        """Return (Q,) ones: the score of the query with itself; long prototypes can exceed it."""
        return np.ones(len(tables), np.float32)

    def best_float(self, vectors: FloatArray) -> FloatArray:
        """Return (Q,) the highest inner product of projected queries (Q, d) with a row."""
        lengths: FloatArray = np.linalg.norm(vectors, axis=1).astype(np.float32)
        return lengths

    def class_scores(self, queries: FloatArray) -> FloatArray:
        """Score every class against (Q, D) queries: (Q, C) float32, higher is better."""
        scores: FloatArray = self.vectors(queries) @ self._prototypes().T
        return scores

    def decode_without_class(self, codes: CodeArray, labels: Labels | None = None) -> FloatArray:
        """Decode codes that were made with labels, the prototypes taken off again: (N, D)."""
        classes, sums = self._classes_of(labels, len(codes)), codeword_sums(self.codewords, codes)
        # What is left is the direction of a row from its prototype; its length is lost.
        agree = contradiction(unit_rows(sums), classes, self._prototypes()) <= MAX_CONTRADICTION
        rows = np.flatnonzero((classes >= 0) & agree)
        sums[rows] -= self.trust * self._prototypes()[classes[rows]]
        return self._unprojected(unit_rows(sums))

    def distortion(self, embeddings: FloatArray, labels: Labels | None = None) -> float:
        """Return the mean squared error of encoding (N, D) rows."""
        vectors = self.vectors(embeddings)
        classes = self._classes_of(labels, len(vectors))
        return self.target_distortion(*self.encoding_targets(vectors, classes))

    def target_distortion(self, targets: FloatArray, classes: IntArray) -> float:
        """Return the mean squared error of encoding targets (N, d), as of `encoding_targets`."""
        errors = targets - codeword_sums(self.codewords, self.encode_targets(targets, classes))
        return float(np.square(errors, dtype=np.float64).sum(axis=1).mean()) if len(errors) else 0.0

    def with_classes(self, embeddings: FloatArray, labels: Labels) -> AdditiveCodebooks:
        """Add the classes of labelled rows (N, D) that are not known yet.

        Earlier codes stay valid: a new class takes a spare codeword, or a free code of the first
        books. If there is neither, it shares the nearest code with another class.
        """
        names = sorted({name for name in labels if name is not None} - set(self.class_names))
        if not names or not self.trust or not self.class_books:
            return self
        numbers = number_labels(labels, names)
        centres, _ = fit_prototypes(self.vectors(embeddings), numbers, len(names), self.typical)
        words = self.codewords.copy()
        slots = min(self.spare[0], len(names)) if self.class_books == 1 else 0
        first = SIZE - self.spare[0]
        words[0, first : first + slots] = centres[:slots]
        codes: list[tuple[int, ...]] = [(first + slot,) for slot in range(slots)]
        taken = {tuple(code) for code in self.class_codes.tolist()} | set(codes)
        codes += free_codes(centres[slots:], words[: self.class_books], taken)
        class_codes = np.concatenate([self.class_codes, np.array(codes, np.uint8)])
        return replace(
            self,
            codewords=words,
            spare=(self.spare[0] - slots, *self.spare[1:]),
            class_names=(*self.class_names, *names),
            class_codes=class_codes,
        )

    @property
    def colliding_classes(self) -> int:
        """Number of classes that share the code of another and so cannot be separated from it."""
        return len(self.class_names) - len({tuple(code) for code in self.class_codes.tolist()})

    def renamed(self, names: Mapping[str, str]) -> AdditiveCodebooks:
        """Rename classes, as in {old: new}; two of one name become one class.

        The caller encodes the rows of a merged class again, with their new label.
        """
        kept: dict[str, int] = {}
        for number, name in enumerate(self.class_names):
            if name not in names:
                kept[name] = number
        for number, name in enumerate(self.class_names):
            if name in names:
                kept.setdefault(names[name], number)
        order = sorted(kept, key=kept.__getitem__)
        codes = self.class_codes[[kept[name] for name in order]]
        parents = renamed_parents(self.parents, names)
        return replace(self, class_names=tuple(order), class_codes=codes, parents=parents)

    def memory_bytes(self) -> int:
        """Return the bytes of codewords, projection and classes with their names."""
        arrays = (self.codewords, self.mean, self.projection, self.class_codes)
        names = sum(len(name.encode()) for name in self.class_names)
        return int(sum(array.nbytes for array in arrays)) + names

    def fingerprint(self) -> str:
        """Return a hash of everything that codes and scores depend on, as hex."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def to_bytes(self) -> bytes:
        """Return a safetensors file; equal codebooks give equal bytes."""
        from safetensors.numpy import save

        facts = {
            "class_names": self.class_names,
            "spare": self.spare,
            "trust": self.trust,
            "sharpness": self.sharpness,
            "typical": self.typical,
            "fitted_rows": self.fitted_rows,
            "fitted_distortion": self.fitted_distortion,
            "parents": dict(sorted(self.parents.items())),
            "chances": self.probabilities and self.probabilities.to_facts(),
        }
        tensors = {name: np.ascontiguousarray(getattr(self, name)) for name in _TENSORS}
        return save(tensors, metadata={"facts": json.dumps(facts)})

    @classmethod
    def from_bytes(cls, data: bytes) -> AdditiveCodebooks:
        """Read what `to_bytes` wrote; a `FormatError` for anything else."""
        from safetensors import SafetensorError
        from safetensors.numpy import load

        try:
            length = int.from_bytes(data[:8], "little")
            facts: dict[str, Any] = json.loads(
                json.loads(data[8 : 8 + length])["__metadata__"]["facts"]
            )
            facts |= {name: tuple(facts[name]) for name in ("class_names", "spare")} | load(data)
            # Older files have neither probabilities nor parents.
            fitted = facts.pop("chances", None)
            return cls(**facts, probabilities=fitted and ProbabilityModel.from_facts(fitted))
        except (SafetensorError, ValueError, KeyError, TypeError) as error:
            raise FormatError(
                f"The gallery's codebooks are damaged: {error}. Restore the file from a copy, or "
                "fit them again with: phpq gallery refit GALLERY"
            ) from error

    def _projected(self, embeddings: FloatArray) -> FloatArray:
        rows = check_embeddings("embeddings", embeddings, self.embedding_dim)
        # In float64, rounded once: a row's vector must not depend on the rows beside it.
        projection = self._cached("projection", lambda: self.projection.astype(np.float64))
        projected: FloatArray = ((rows - self.mean.astype(np.float64)) @ projection).astype(
            np.float32
        )
        return projected

    def _unprojected(self, vectors: FloatArray) -> FloatArray:
        """Map (N, d) back to (N, D) float32 by the pseudo-inverse of the projection."""
        back = self._cached("back", lambda: np.linalg.pinv(self.projection.astype(np.float64)))
        rows: FloatArray = (vectors.astype(np.float64) @ back + self.mean).astype(np.float32)
        return rows

    def _cached(self, name: str, make: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        if name not in self._cache:
            self._cache[name] = make()
        return self._cache[name]

    def _tables(self, vectors: FloatArray) -> FloatArray:
        flat = self._cached(
            "words", lambda: self.codewords.reshape(-1, self.sub_dim).astype(np.float64)
        )
        products = np.asarray(vectors.astype(np.float64) @ flat.T, np.float32)
        return products.reshape(len(vectors), self.num_codebooks, self.codebook_size)

    def _prototypes(self) -> FloatArray:
        """Return the prototypes (C, d) as their codes decode."""
        words, codes = self.codewords, self.class_codes
        return np.asarray(self._cached("prototypes", lambda: codeword_sums(words, codes)))

    def _classes_of(self, labels: Labels | None, count: int) -> IntArray:
        if labels is None:
            return np.full(count, -1, np.int64)
        if len(labels) != count:
            raise ShapeError(f"{len(labels)} labels for {count} rows; give one per row, or None.")
        return number_labels(labels, self.class_names)

    def encoding_targets(
        self, vectors: FloatArray, classes: IntArray
    ) -> tuple[FloatArray, IntArray]:
        """Return the vectors (N, d) that rows are encoded as, and the classes (N,) of their codes.

        That is between the row itself and the prototype of its class; the row itself without a
        class (-1), or where it contradicts its label, which is then ignored.
        """
        distance = contradiction(vectors, classes, self._prototypes())
        trusted = (classes >= 0) & (distance <= MAX_CONTRADICTION)
        targets = vectors.copy()
        means = self._prototypes()[classes[trusted]]
        # Less trust where it contradicts: a search for this very image must find it first.
        share = self.trust * (1 - distance[trusted, None])
        targets[trusted] = share * means + (1 - share) * vectors[trusted]
        return targets, np.where(trusted, classes, -1)

    def encode_targets(self, targets: FloatArray, classes: IntArray) -> CodeArray:
        """Return the codes (N, M) of what `encoding_targets` returned."""
        labelled = classes >= 0
        codes = np.empty((len(targets), self.num_codebooks), np.uint8)
        codes[labelled] = self._nearest(targets[labelled], self.class_codes[classes[labelled]])
        codes[~labelled] = self._nearest(targets[~labelled])
        return codes

    def _nearest(self, targets: FloatArray, fixed: CodeArray | None = None) -> CodeArray:
        """Return the codes (n, M) whose sums are nearest; `fixed` (n, P) are the first of them."""
        gram = self._cached("gram", lambda: gram_matrix(self.codewords))
        spare = self.spare[: self.num_codebooks]
        codes = np.empty((len(targets), self.num_codebooks), np.uint8)
        for start in range(0, len(targets), _BLOCK):
            part = slice(start, start + _BLOCK)
            given = None if fixed is None else fixed[part]
            tables = self._tables(targets[part])
            codes[part] = beam_search(tables, gram, fixed=given, spare=spare)
        return codes


def codeword_sums(codewords: FloatArray, codes: CodeArray) -> FloatArray:
    """Return the sums (N, d) of the codewords (M, K, d) that codes (N, up to M) pick."""
    total = np.zeros((len(codes), codewords.shape[2]), np.float32)
    for book in range(codes.shape[1]):
        total += codewords[book, codes[:, book]]
    return total


def class_means(vectors: FloatArray, classes: IntArray, count: int) -> FloatArray:
    """Return the mean (C, d) of the unit vectors (N, d) of each class, at unit length; -1: none."""
    return unit_rows(sums_by(classes[classes >= 0], vectors[classes >= 0], count)[0])


def sums_by(
    numbers: NDArray[np.integer[Any]], points: NDArray[np.floating[Any]], count: int
) -> tuple[NDArray[np.floating[Any]], IntArray]:
    """Return per number the sum (count, d) of its points (N, d), and how many it has."""
    sizes = np.bincount(numbers, minlength=count)
    used = np.flatnonzero(sizes)
    sums = np.zeros((count, points.shape[1]), points.dtype)
    if len(used):  # sorted by number, each run is summed at once
        starts = (np.cumsum(sizes) - sizes)[used]
        sums[used] = np.add.reduceat(points[np.argsort(numbers, kind="stable")], starts, axis=0)
    return sums, sizes


def cohesion(vectors: FloatArray, classes: IntArray, count: int) -> tuple[FloatArray, IntArray]:
    """Return inner products (n,) of unit vectors (N, d) with the mean of the others of their class.

    Also the rows (n,) that these belong to: those whose class has more than one row.
    """
    inside = np.flatnonzero(classes >= 0)
    sums, sizes = sums_by(classes[inside], vectors[inside], count)
    rows = inside[sizes[classes[inside]] > 1]
    others = unit_rows(sums[classes[rows]] - vectors[rows])
    near: FloatArray = (others * vectors[rows]).sum(axis=1)
    return near, rows


def fit_prototypes(
    vectors: FloatArray, classes: IntArray, count: int, typical: float | None = None
) -> tuple[FloatArray, float]:
    """Return the mean (C, d) of the unit vectors of each class, longer where a class is wide.

    Rows of a class that the model learned lie close together, those of a new class do not: at one
    length, rows of new classes would too often score higher with learned ones. Also returns
    `typical`, the mean `cohesion`, unless it is given.
    """
    near, rows = cohesion(vectors, classes, count)
    if typical is None:
        typical = max(float(near.mean()), 1e-3) if len(near) else 1.0
    total = _PRIOR_IMAGES * typical + np.bincount(classes[rows], near, minlength=count)
    mean = total / (_PRIOR_IMAGES + np.bincount(classes[rows], minlength=count))
    lengths = np.sqrt(typical / np.maximum(mean, typical / 4))
    found: FloatArray = class_means(vectors, classes, count) * lengths[:, None].astype(np.float32)
    return found, typical


def contradiction(vectors: FloatArray, classes: IntArray, means: FloatArray) -> FloatArray:
    """Return (N,) by how much another class scores higher for a row (N, d) than its own class.

    Zero where its own scores highest, and for rows without a class (-1).
    """
    found = np.zeros(len(vectors), np.float32)
    if len(means) > _MAX_CLASSES:
        return found
    rows, columns = np.flatnonzero(classes >= 0), means.astype(np.float64).T
    for start in range(0, len(rows), _BLOCK):
        part = rows[start : start + _BLOCK]
        scores = vectors[part].astype(np.float64) @ columns
        found[part] = scores.max(axis=1) - scores[np.arange(len(part)), classes[part]]
    return found


def number_labels(labels: Labels, names: Sequence[str]) -> IntArray:
    """Return (N,) int64: the place of each label among names, -1 for unknown ones and None."""
    known = {name: number for number, name in enumerate(names)}
    return np.array([-1 if name is None else known.get(name, -1) for name in labels], np.int64)


def unit_rows(vectors: FloatArray) -> FloatArray:
    """Divide rows by their lengths; a zero row stays zero."""
    lengths = np.sqrt(np.square(vectors, dtype=np.float64).sum(axis=1, keepdims=True))
    return (vectors / np.where(lengths > 0, lengths, 1)).astype(np.float32)
