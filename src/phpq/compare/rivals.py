"""The rows of the table: how each way to search is fitted to a gallery and built.

float search            over the frozen trunk, over its whitened features, over learned ones
signs, RaBitQ           a bit a number, and with kept floats that order the first hits
PQ, OPQ                 4, 8, 16 bytes; the number of codewords is chosen on held-out images
IVFPQ, HNSW             not every row is looked at
classify, then list     class means, a linear probe
phpq                    the model's codebooks, the gallery's own, and with kept floats
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np

from phpq.additive import class_means, fit_additive
from phpq.codes import FloatArray, IntArray
from phpq.compare.engines import (
    Blocks,
    ClassEngine,
    CodeEngine,
    Engine,
    FaissEngine,
    FloatEngine,
    RescoredEngine,
    SignEngine,
)
from phpq.compare.probe import choose_probe
from phpq.compare.spaces import Images, Space
from phpq.evaluation.kinds import best_pq, pq_codes
from phpq.index import to_faiss

Group = Literal["float", "compressed", "fast", "classify", "phpq"]
Fresh = Callable[[], Blocks]  # a gallery, from its first block on, as often as it is asked for
Make = Callable[[Fresh, Path], Engine]  # also takes a name for a file of floats

PQ_BYTES = (4, 8, 16)
OWN_BYTES = (2, 4, 8)
OPQ_DIMS = 128  # principal directions that are rotated: more overfit a gallery of thousands
FIT_ROWS = 50_000  # of a gallery, that quantizers of faiss are fitted to
NO_FAISS = "faiss is not installed: pip install 'phpq[compare]' brings it"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Rival:
    """One row of the table, before it is measured."""

    name: str
    group: Group
    space: Space
    uses_labels: bool = False  # of the gallery
    rescored: bool = False  # reads floats that are kept on disk
    # By the gallery's rows (N, D), their class numbers, and how many rows there will be.
    fit: Callable[[FloatArray, IntArray, int], Make] = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class Chosen:
    """Settings that were chosen on images held out of the gallery, and how."""

    codewords: dict[str, int] = field(default_factory=dict)  # by row
    penalty: float = 0.0  # of the linear probe
    notes: list[str] = field(default_factory=list)


def list_rivals(
    frozen: Space | None, general: Space | None, learned: Sequence[Space], images: Images
) -> tuple[list[Rival], list[str], Chosen]:
    """Return all rows that can be measured here, why others cannot, and what was chosen."""
    chosen, left_out = Chosen(), list[str]()
    base = frozen or general
    rivals: list[Rival] = []
    if frozen is None:
        left_out.append(
            "rows over the frozen trunk: its weights, or torch, are not here; the others stand "
            "over the model's general embedding"
        )
    if base is not None:
        rivals += _floats([one for one in (frozen, general) if one is not None], learned)
        if find_spec("faiss") is None:
            left_out.append(f"signs, RaBitQ, PQ, OPQ, IVFPQ and HNSW: {NO_FAISS}")
        else:
            rivals += [*_bits(base), *_products(base, PQ_BYTES, images, chosen), *_fast(base)]
            if general is not None and general is not base:
                rivals += _products(general, (8,), images, chosen)
        rivals += _classifiers(base, general, images, chosen)
    rivals += _ours(general, learned, images)
    return rivals, left_out, chosen


def _floats(spaces: Sequence[Space], learned: Sequence[Space]) -> Iterator[Rival]:
    def fit(rows: FloatArray, _labels: IntArray, _count: int) -> Make:
        if find_spec("faiss") is None:
            return lambda fresh, _file: FloatEngine(fresh())
        import faiss

        return lambda fresh, _file: FaissEngine(faiss.IndexFlatIP(rows.shape[1]), fresh())

    for space in spaces:
        yield Rival(name=f"float search, {space.name}", group="float", space=space, fit=fit)
    if learned:
        longest = max(learned, key=_bits_of).placed()
        yield Rival(name=f"float search, {longest.name}", group="phpq", space=longest, fit=fit)


def _bits_of(space: Space) -> int:
    return 0 if space.codebooks is None else space.codebooks.bits


def _bits(space: Space) -> Iterator[Rival]:
    def signs(rows: FloatArray, _labels: IntArray, _count: int) -> Make:
        mean = rows.mean(axis=0)
        return lambda fresh, _file: SignEngine(mean, fresh())

    def rabitq(rows: FloatArray, _labels: IntArray, _count: int) -> Make:
        def make(fresh: Fresh, _file: Path) -> Engine:
            import faiss

            dim = rows.shape[1]
            index = faiss.index_factory(dim, f"RR{dim},RaBitQ", faiss.METRIC_INNER_PRODUCT)
            index.train(_sample(rows))
            return FaissEngine(index, fresh())

        return make

    for name, fit in (("signs", signs), ("RaBitQ", rabitq)):
        yield Rival(name=f"{name}, {space.name}", group="compressed", space=space, fit=fit)
        yield _rescored(
            Rival(name=f"{name} + floats, {space.name}", group="compressed", space=space, fit=fit)
        )


def _products(
    space: Space, sizes: Sequence[int], images: Images, chosen: Chosen
) -> Iterator[Rival]:
    """PQ and OPQ of some bytes, with the number of codewords that serves held-out images best."""
    for size in sizes:
        plain = _best_size(f"PQ {size} bytes, {space.name}", space.gallery, size, images, chosen)
        yield Rival(
            name=f"PQ {size} bytes, {space.name}",
            group="compressed",
            space=space,
            fit=partial(_fit_pq, size=size, codewords=plain),
        )
        name = f"OPQ {size} bytes, {space.name}"
        turn = _rotation(_sample(space.gallery), size)
        turned = _best_size(name, turn.apply_py(space.gallery), size, images, chosen)
        yield Rival(
            name=name,
            group="compressed",
            space=space,
            fit=partial(_fit_pq, size=size, codewords=turned, turn=turn),
        )


def _rotation(rows: FloatArray, size: int) -> Any:
    """Return OPQ's rotation of the principal directions, as a transform of faiss."""
    import faiss

    width = min(OPQ_DIMS, rows.shape[1])
    width -= width % size
    axes = np.linalg.eigh((rows.T @ rows).astype(np.float64))[1][:, ::-1][:, :width].T
    turn = np.eye(width)
    if len(rows) > max(width, 256):  # fewer rows than directions: faiss would write over its memory
        matrix = faiss.OPQMatrix(width, size)
        matrix.niter, matrix.max_train_points = 20, len(rows)
        quantizer = faiss.ProductQuantizer(width, size, 8)
        quantizer.cp.min_points_per_centroid = 1
        matrix.pq = quantizer
        matrix.train(np.ascontiguousarray(rows @ axes.T, np.float32))
        turn = faiss.vector_to_array(matrix.A).reshape(width, width)
    whole = faiss.LinearTransform(rows.shape[1], width)
    faiss.copy_array_to_vector(np.ascontiguousarray(turn @ axes, np.float32).ravel(), whole.A)
    whole.is_trained = True
    return whole


def _code_bits(rows: FloatArray) -> int:
    """Return the bits of a code of faiss, which needs a row for each codeword."""
    return min(8, max(1, len(rows).bit_length() - 1))


def _best_size(name: str, rows: FloatArray, size: int, images: Images, chosen: Chosen) -> int:
    choice = images.choice()
    if choice is None:
        chosen.notes.append(f"{name}: 256 codewords, no class has a second image to choose by")
        chosen.codewords[name] = 256
        return 256
    some, split = choice
    way = best_pq(rows[some], 8 * size, images.gallery[some], split)
    assert way.fit is not None
    chosen.codewords[name] = int(way.name.rpartition("=")[2])
    return chosen.codewords[name]


def _fit_pq(
    rows: FloatArray, _labels: IntArray, _count: int, *, size: int, codewords: int, turn: Any = None
) -> Make:
    import faiss

    placed = _sample(rows if turn is None else turn.apply_py(rows))
    way = pq_codes(placed, 8 * size, codebook_size=codewords)
    assert way.fit is not None
    books = way.fit(way.embeddings, [None] * len(placed))

    def make(fresh: Fresh, _file: Path) -> Engine:
        index = to_faiss(books, np.empty((0, size), np.uint8))
        if turn is not None:
            index = faiss.IndexPreTransform(index)
            index.prepend_transform(faiss.NormalizationTransform(books.embedding_dim, 2.0))
            index.prepend_transform(turn)
        return FaissEngine(index, fresh())

    return make


def _fast(space: Space) -> Iterator[Rival]:
    def ivfpq(rows: FloatArray, _labels: IntArray, count: int) -> Make:
        def make(fresh: Fresh, _file: Path) -> Engine:
            import faiss

            dim, lists = rows.shape[1], max(1, min(int(4 * count**0.5), len(rows) // 8))
            coarse = faiss.IndexFlatIP(dim)
            index = faiss.IndexIVFPQ(
                coarse, dim, lists, 16, _code_bits(rows), faiss.METRIC_INNER_PRODUCT
            )
            index.cp.min_points_per_centroid = index.pq.cp.min_points_per_centroid = 1
            index.train(_sample(rows))
            index.nprobe = max(8, lists // 16)
            return FaissEngine(index, fresh())

        return make

    def hnsw(rows: FloatArray, _labels: IntArray, _count: int) -> Make:
        def make(fresh: Fresh, _file: Path) -> Engine:
            import faiss

            index = faiss.IndexHNSWFlat(rows.shape[1], 32, faiss.METRIC_INNER_PRODUCT)
            index.hnsw.efConstruction, index.hnsw.efSearch = 80, 100
            return FaissEngine(index, fresh(), lists=True)

        return make

    yield Rival(name=f"IVFPQ 16 bytes, {space.name}", group="fast", space=space, fit=ivfpq)
    yield Rival(name=f"HNSW, {space.name}", group="fast", space=space, fit=hnsw)


def _classifiers(
    base: Space, general: Space | None, images: Images, chosen: Chosen
) -> Iterator[Rival]:
    count = len(images.class_names)

    def means(rows: FloatArray, labels: IntArray, _count: int) -> Make:
        weights = class_means(rows, labels, count)
        return lambda fresh, _file: ClassEngine(weights, np.zeros(count, np.float32), fresh())

    spaces = [base] if general is None or general is base else [base, general]
    for space in spaces:
        name = f"class means, then list, {space.name}"
        yield Rival(name=name, group="classify", space=space, uses_labels=True, fit=means)
    fit_probe, penalty = choose_probe(base.gallery, images)
    object.__setattr__(chosen, "penalty", penalty)

    def probe(rows: FloatArray, labels: IntArray, _count: int) -> Make:
        weights, bias = fit_probe(rows, labels)
        return lambda fresh, _file: ClassEngine(weights, bias, fresh())

    name = f"linear probe, then list, {base.name}"
    yield Rival(name=name, group="classify", space=base, uses_labels=True, fit=probe)


def _ours(general: Space | None, learned: Sequence[Space], images: Images) -> Iterator[Rival]:
    for space in learned:
        size = -(-_bits_of(space) // 8)

        def model(_r: FloatArray, _l: IntArray, _c: int, *, space: Space = space) -> Make:
            books = space.codebooks
            assert books is not None
            return lambda fresh, _file: CodeEngine(books, fresh(), norm=space.norm)

        name = f"phpq {size} bytes, model's codebooks"
        yield Rival(name=name, group="phpq", space=space, fit=model)
        if space is max(learned, key=_bits_of):
            name = f"phpq {size} bytes + floats, model's codebooks"
            yield _rescored(Rival(name=name, group="phpq", space=space, fit=model))
    if general is None:
        return

    def own(rows: FloatArray, labels: IntArray, _c: int, *, size: int, named: bool) -> Make:
        names = images.names(labels) if named else [None] * len(rows)
        books = fit_additive(rows, names, num_codebooks=size)
        given = images.names if named else None
        return lambda fresh, _file: CodeEngine(books, fresh(), names=given)

    for named in (False, True):
        for size in OWN_BYTES:
            name = f"phpq {size} bytes, gallery's codebooks{', with its labels' * named}"
            fit = partial(own, size=size, named=named)
            yield Rival(name=name, group="phpq", space=general, uses_labels=named, fit=fit)
    name = f"phpq {OWN_BYTES[-1]} bytes + floats, gallery's codebooks"
    fit = partial(own, size=OWN_BYTES[-1], named=False)
    yield _rescored(Rival(name=name, group="phpq", space=general, fit=fit))


def _rescored(rival: Rival) -> Rival:
    """Return the same with floats kept on disk, by which the first hits are put in order."""

    def fit(rows: FloatArray, labels: IntArray, count: int) -> Make:
        first = rival.fit(rows, labels, count)
        space = rival.space

        def make(fresh: Fresh, file: Path) -> Engine:
            engine = first(fresh, file)
            places = {"kept": space.place_rows, "asked": space.place_queries}
            return RescoredEngine(engine, fresh(), file, **places)

        return make

    return Rival(
        name=rival.name,
        group=rival.group,
        space=rival.space,
        uses_labels=rival.uses_labels,
        rescored=True,
        fit=fit,
    )


def _sample(rows: FloatArray) -> FloatArray:
    if len(rows) > FIT_ROWS:
        rows = rows[np.random.default_rng(0).choice(len(rows), FIT_ROWS, replace=False)]
    return np.ascontiguousarray(rows)
