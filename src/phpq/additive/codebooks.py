"""Codebooks that a gallery owns: fitted to what it holds and to the labels that it has. Numpy.

A code picks one codeword of each codebook, and their *sum* stands for the row: every codeword spans
the whole vector, so that a score is still a sum of table lookups, and index and shards need nothing
else. Embeddings are projected first: centred, whitened within the gallery's classes where it has
labels, and cut to the directions in which the gallery varies most.

The first codebooks hold the classes. A labelled row stands at
`trust * prototype + (1 - trust) * its own vector`: its class decides which images come first, its
own bytes order them inside the class. A row without label, or with one that its look contradicts,
stands at its own vector.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phpq.additive._beam import beam_search, gram_matrix, nearest_codes
from phpq.additive.chances import Chances, renamed_parents, softmax
from phpq.codes import CodeArray, Codebooks, FloatArray, IntArray, QueryNorm, check_embeddings
from phpq.errors import FormatError, ShapeError

Labels = Sequence[str | None]

SIZE = 256  # codewords of a codebook
_BLOCK = 512  # rows encoded at once
FAR = 0.15  # a row that looks so much more like another class does not trust its label
_FEW = 2  # images as wide as is typical that every class is taken to have besides its own
_COMPARED_CLASSES = 4096  # with more, rows are not compared with all classes: it would take long
_TENSORS = ("codewords", "mean", "projection", "class_codes")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class AdditiveCodebooks(Codebooks):
    """M codebooks (M, K, d) over the whole projected vector, and the classes of a gallery."""

    unit: bool = False
    mean: FloatArray  # (D,) of the embeddings at fitting
    projection: FloatArray  # (D, d)
    class_names: tuple[str, ...] = ()
    class_codes: CodeArray  # (C, P): the codewords, one of each of the first P books, of each class
    spare: tuple[int, ...] = ()  # codewords at the end of each book that no row uses yet
    trust: float = 0.0  # how far labels are trusted, 0 to 1
    sharpness: float = 16.0  # of `likely`
    typical: float = 1.0  # inner product of a row with the mean of its class, itself left out
    chances: Chances | None = None  # how likely answers are; None where that is not known
    parents: Mapping[str, str] = field(default_factory=dict)  # what classes belong to, and so on up
    fitted_rows: int = 0
    fitted_distortion: float = 0.0  # mean squared error of the rows at fitting
    # What encoding and decoding need, made when first needed: it takes longer than a single row.
    _made: dict[str, NDArray[Any]] = field(default_factory=dict, init=False, repr=False)

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

    def alike(self, embeddings: FloatArray, *, norm: QueryNorm = "unit") -> FloatArray:
        """Return (N, D) embeddings that find the same, each of unit length when projected."""
        return self._embedded(self.vectors(embeddings, norm=norm))

    def encode(self, embeddings: FloatArray, labels: Labels | None = None) -> CodeArray:
        """Return the codes (N, M) of (N, D) embeddings.

        A row's code does not depend on the other rows. Labels that no class has are as none.
        """
        own = self.vectors(embeddings)
        return self.codes_of_targets(*self.places(own, self._classes_of(labels, len(own))))

    def decode(self, codes: CodeArray) -> FloatArray:
        """Return what codes (N, M) stand for, in the space of embeddings: (N, D) float32."""
        return self._embedded(self._sums(codes))

    def lookup_tables(self, queries: FloatArray, *, norm: QueryNorm = "unit") -> FloatArray:
        """Score every codeword against (Q, D) queries: (Q, M, K) float32."""
        del norm
        return self._tables(self.vectors(queries))

    def best(self, tables: FloatArray) -> FloatArray:
        """Return (Q,) ones: the score of a row at the query. Rows of a wide class can exceed it."""
        return np.ones(len(tables), np.float32)

    def best_float(self, vectors: FloatArray) -> FloatArray:
        """Return (Q,) the highest inner product of projected queries (Q, d) with a row."""
        lengths: FloatArray = np.linalg.norm(vectors, axis=1).astype(np.float32)
        return lengths

    def kinds(self, queries: FloatArray) -> FloatArray:
        """Score every class against (Q, D) queries: (Q, C) float32, higher is better."""
        scores: FloatArray = self.vectors(queries) @ self._prototypes().T
        return scores

    def likely(self, queries: FloatArray) -> FloatArray:
        """Return how likely each class is for (Q, D) queries, if it is one of them: (Q, C)."""
        return softmax(self.sharpness * self.kinds(queries))

    def own_vectors(self, codes: CodeArray, labels: Labels | None = None) -> FloatArray:
        """Return (N, D): what codes tell of the rows themselves, without their classes."""
        classes, sums = self._classes_of(labels, len(codes)), self._sums(codes)
        # Of a row that stands by its class only the direction to one side of it is its own.
        near = contradiction(unit_rows(sums), classes, self._prototypes()) <= FAR
        rows = np.flatnonzero((classes >= 0) & near)
        sums[rows] -= self.trust * self._prototypes()[classes[rows]]
        return self._embedded(unit_rows(sums))

    def distortion(self, embeddings: FloatArray, labels: Labels | None = None) -> float:
        """Return the mean squared distance of (N, D) rows from what their codes stand for."""
        own = self.vectors(embeddings)
        targets, classes = self.places(own, self._classes_of(labels, len(own)))
        return mean_square(targets - self._sums(self.codes_of_targets(targets, classes)))

    def with_classes(self, embeddings: FloatArray, labels: Labels) -> AdditiveCodebooks:
        """Add the classes of labelled rows (N, D) that are not known yet.

        Codes made before stay valid: a new class takes a spare codeword, or a code of the first
        books that no class has. Without either it takes the nearest code, with its owner.
        """
        names = sorted({name for name in labels if name is not None} - set(self.class_names))
        if not names or not self.trust or not self.class_books:
            return self
        own = self.vectors(embeddings)
        centres = prototypes(own, number_labels(labels, names), len(names), self.typical)
        words = self.codewords.copy()
        slots = min(self.spare[0], len(names)) if self.class_books == 1 else 0
        first = SIZE - self.spare[0]
        words[0, first : first + slots] = centres[:slots]
        codes: list[tuple[int, ...]] = [(first + slot,) for slot in range(slots)]
        taken = {tuple(code) for code in self.class_codes.tolist()} | set(codes)
        for near in nearest_codes(centres[slots:], words[: self.class_books]):
            codes.append(next((code for code in near if code not in taken), near[0]))
            taken.add(codes[-1])
        class_codes = np.concatenate([self.class_codes, np.array(codes, np.uint8)])
        return replace(
            self,
            codewords=words,
            spare=(self.spare[0] - slots, *self.spare[1:]),
            class_names=(*self.class_names, *names),
            class_codes=class_codes,
        )

    @property
    def crowded(self) -> int:
        """Classes that share their code with another, which nothing can tell them from."""
        return len(self.class_names) - len({tuple(code) for code in self.class_codes.tolist()})

    def renamed(self, names: Mapping[str, str]) -> AdditiveCodebooks:
        """Rename classes, as in {old: new}; one that gets the name of another is merged into it.

        Rows of a merged class are to be encoded again, with their new label.
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
            "chances": self.chances and self.chances.to_facts(),
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
            # Files of before have neither these nor parents.
            facts["chances"] = facts.get("chances") and Chances.from_facts(facts["chances"])
            return cls(**facts)
        except (SafetensorError, ValueError, KeyError, TypeError) as error:
            raise FormatError(
                f"The gallery's codebooks are damaged: {error}. Restore the file from a copy, or "
                "fit them again with: phpq gallery refit GALLERY"
            ) from error

    def _projected(self, embeddings: FloatArray) -> FloatArray:
        rows = check_embeddings("embeddings", embeddings, self.embedding_dim)
        # In float64, rounded once: a row's vector must not depend on the rows beside it.
        projection = self._once("projection", lambda: self.projection.astype(np.float64))
        projected: FloatArray = ((rows - self.mean.astype(np.float64)) @ projection).astype(
            np.float32
        )
        return projected

    def _embedded(self, vectors: FloatArray) -> FloatArray:
        """Undo the projection as far as that can be: (N, d) to (N, D) float32."""
        back = self._once("back", lambda: np.linalg.pinv(self.projection.astype(np.float64)))
        rows: FloatArray = (vectors.astype(np.float64) @ back + self.mean).astype(np.float32)
        return rows

    def _once(self, name: str, make: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]

    def _tables(self, vectors: FloatArray) -> FloatArray:
        flat = self._once(
            "words", lambda: self.codewords.reshape(-1, self.sub_dim).astype(np.float64)
        )
        products = np.asarray(vectors.astype(np.float64) @ flat.T, np.float32)
        return products.reshape(len(vectors), self.num_codebooks, self.codebook_size)

    def _prototypes(self) -> FloatArray:
        """(C, d) as codes can say them."""
        made = self._once("prototypes", lambda: self._sums(self.class_codes))
        return np.asarray(made, np.float32)

    def _classes_of(self, labels: Labels | None, count: int) -> IntArray:
        if labels is None:
            return np.full(count, -1, np.int64)
        if len(labels) != count:
            raise ShapeError(f"{len(labels)} labels for {count} rows; give one per row, or None.")
        return number_labels(labels, self.class_names)

    def places(self, own: FloatArray, classes: IntArray) -> tuple[FloatArray, IntArray]:
        """Where rows (N, d) of classes (N,), or -1, stand, and the classes that they are coded by.

        Labelled rows stand between the prototype of their class and themselves; without a label,
        or where the look of a row contradicts it, they stand at themselves.
        """
        strange = contradiction(own, classes, self._prototypes())
        trusted = (classes >= 0) & (strange <= FAR)
        places = own.copy()
        means = self._prototypes()[classes[trusted]]
        # So far that who looks for just this image finds it before those that it looks like.
        share = self.trust * (1 - strange[trusted, None])
        places[trusted] = share * means + (1 - share) * own[trusted]
        return places, np.where(trusted, classes, -1)

    def codes_of_targets(self, targets: FloatArray, classes: IntArray) -> CodeArray:
        """Return the codes (N, M) of places (N, d) where rows of classes (N,), or -1, stand."""
        labelled = classes >= 0
        codes = np.empty((len(targets), self.num_codebooks), np.uint8)
        codes[labelled] = self._nearest(targets[labelled], self.class_codes[classes[labelled]])
        codes[~labelled] = self._nearest(targets[~labelled])
        return codes

    def _nearest(self, targets: FloatArray, fixed: CodeArray | None = None) -> CodeArray:
        """Return the codes (n, M) whose sums are nearest; `fixed` (n, P) are the first of them."""
        gram = self._once("gram", lambda: gram_matrix(self.codewords))
        spare = self.spare[: self.num_codebooks]
        codes = np.empty((len(targets), self.num_codebooks), np.uint8)
        for start in range(0, len(targets), _BLOCK):
            part = slice(start, start + _BLOCK)
            given = None if fixed is None else fixed[part]
            tables = self._tables(targets[part])
            codes[part] = beam_search(tables, gram, fixed=given, spare=spare)
        return codes

    def _sums(self, codes: CodeArray) -> FloatArray:
        """Add up what codes choose, (N, M) or the first columns of them: (N, d)."""
        total = np.zeros((len(codes), self.sub_dim), np.float32)
        for book in range(codes.shape[1]):
            total += self.codewords[book, codes[:, book]]
        return total


def class_means(vectors: FloatArray, classes: IntArray, count: int) -> FloatArray:
    """Return the means of unit vectors (N, d) of each class, of unit length; -1 is no class."""
    return unit_rows(sums_by(classes[classes >= 0], vectors[classes >= 0], count)[0])


def sums_by(
    numbers: NDArray[np.integer[Any]], points: NDArray[np.floating[Any]], count: int
) -> tuple[NDArray[np.floating[Any]], IntArray]:
    """Return the sums (count, d) of points (N, d) with each number (N,), and how many these are."""
    sizes = np.bincount(numbers, minlength=count)
    there = np.flatnonzero(sizes)
    sums = np.zeros((count, points.shape[1]), points.dtype)
    if len(there):  # sorted by number, each stretch is summed at once
        starts = (np.cumsum(sizes) - sizes)[there]
        sums[there] = np.add.reduceat(points[np.argsort(numbers, kind="stable")], starts, axis=0)
    return sums, sizes


def cohesion(vectors: FloatArray, classes: IntArray, count: int) -> tuple[FloatArray, IntArray]:
    """Return how near unit vectors (N, d) are to the mean of the others of their class.

    That is (n,) inner products, and the rows (n,) that they are of: those that have others.
    """
    inside = np.flatnonzero(classes >= 0)
    sums, sizes = sums_by(classes[inside], vectors[inside], count)
    rows = inside[sizes[classes[inside]] > 1]
    others = unit_rows(sums[classes[rows]] - vectors[rows])
    near: FloatArray = (others * vectors[rows]).sum(axis=1)
    return near, rows


def prototypes(vectors: FloatArray, classes: IntArray, count: int, typical: float) -> FloatArray:
    """Return the means (C, d) of the unit vectors of classes, longer where a class is wide.

    The rows of a class that was learned lie close together, those of a new one do not; at one
    length the first would be taken for the second too often. `typical` is the mean of `cohesion`.
    """
    near, rows = cohesion(vectors, classes, count)
    known = _FEW * typical + np.bincount(classes[rows], near, minlength=count)
    mean = known / (_FEW + np.bincount(classes[rows], minlength=count))
    lengths = np.sqrt(typical / np.maximum(mean, typical / 4))
    found: FloatArray = class_means(vectors, classes, count) * lengths[:, None].astype(np.float32)
    return found


def contradiction(own: FloatArray, classes: IntArray, means: FloatArray) -> FloatArray:
    """Return how much more rows (N, d) look like another class than like their own: (N,) float32.

    Zero where they look most like their own, or have none (-1).
    """
    found = np.zeros(len(own), np.float32)
    if len(means) > _COMPARED_CLASSES:
        return found
    rows, columns = np.flatnonzero(classes >= 0), means.astype(np.float64).T
    for start in range(0, len(rows), _BLOCK):
        part = rows[start : start + _BLOCK]
        scores = own[part].astype(np.float64) @ columns
        found[part] = scores.max(axis=1) - scores[np.arange(len(part)), classes[part]]
    return found


def number_labels(labels: Labels, names: Sequence[str]) -> IntArray:
    """Return (N,) int64: the place of each label among names, -1 for others and none."""
    known = {name: number for number, name in enumerate(names)}
    return np.array([-1 if name is None else known.get(name, -1) for name in labels], np.int64)


def unit_rows(vectors: FloatArray) -> FloatArray:
    """Divide rows by their lengths; a zero row stays zero."""
    lengths = np.sqrt(np.square(vectors, dtype=np.float64).sum(axis=1, keepdims=True))
    return (vectors / np.where(lengths > 0, lengths, 1)).astype(np.float32)


def mean_square(errors: FloatArray) -> float:
    """Return the mean squared length of rows."""
    return float(np.square(errors, dtype=np.float64).sum(axis=1).mean()) if len(errors) else 0.0
