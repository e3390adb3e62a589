"""The rows of the table: how each way to search is fitted to a gallery and built.

float search            over the frozen trunk, over its whitened features, over learned ones
signs, RaBitQ           one bit per number, alone and re-ranked by kept floats
PQ, OPQ                 4, 8, 16 bytes; the number of codewords is chosen on held-out images
IVFPQ, HNSW             approximate: only a part of the rows is scored
classify, then list     class means, a linear probe
phpq                    the model's codebooks, the gallery's own, and re-ranked by kept floats
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
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
    RerankedEngine,
    SignEngine,
)
from phpq.compare.probe import choose_probe
from phpq.compare.spaces import Images, Space
from phpq.evaluation.search import best_pq, pq_codes
from phpq.index import to_faiss

Group = Literal["float", "compressed", "fast", "classify", "phpq"]
ReadBlocks = Callable[[], Blocks]  # iterates over the gallery from its first block
Build = Callable[[ReadBlocks, Path], Engine]  # the path is for a file of floats, if any

PQ_BYTES = (4, 8, 16)
OWN_BYTES = (2, 4, 8)
OPQ_DIMS = 128  # principal axes that are rotated: more overfit a gallery of thousands
FIT_ROWS = 50_000  # most rows that quantizers are fitted to
NO_FAISS = "faiss is not installed: pip install 'phpq[compare]' brings it"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Rival:
    """One row of the table, before it is measured."""

    name: str
    group: Group
    space: Space
    uses_labels: bool = False  # of the gallery
    reranked: bool = False  # reads floats that are kept on disk
    grows: bool = False  # by `Engine.grow`, in no other time per row than if all were encoded
    # Takes the gallery's rows (N, D), their class numbers, and the rows that will be searched.
    fit: Callable[[FloatArray, IntArray, int], Build] = field(repr=False)


@dataclass(slots=True, eq=False)
class Chosen:
    """Settings that were chosen on images held out of the gallery."""

    codewords: dict[str, int] = field(default_factory=dict)  # by row
    penalty: float = 0.0  # of the linear probe
    notes: list[str] = field(default_factory=list)


def list_rivals(
    frozen: Space | None, general: Space | None, learned: Sequence[Space], images: Images
) -> tuple[list[Rival], list[str], Chosen]:
    """Return all rows that can be measured here, why others cannot, and the chosen settings."""
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
    def fit(rows: FloatArray, _labels: IntArray, _count: int) -> Build:
        if find_spec("faiss") is None:
            return lambda read, _file: FloatEngine(read())
        import faiss

        return lambda read, _file: FaissEngine(faiss.IndexFlatIP(rows.shape[1]), read())

    for space in spaces:
        yield Rival(name=f"float search, {space.name}", group="float", space=space, fit=fit)
    if learned:
        longest = max(learned, key=_bits_of).float_space()
        yield Rival(name=f"float search, {longest.name}", group="phpq", space=longest, fit=fit)


def _bits_of(space: Space) -> int:
    return 0 if space.codebooks is None else space.codebooks.bits


def _bits(space: Space) -> Iterator[Rival]:
    def signs(rows: FloatArray, _labels: IntArray, _count: int) -> Build:
        mean = rows.mean(axis=0)
        return lambda read, _file: SignEngine(mean, read())

    def rabitq(rows: FloatArray, _labels: IntArray, _count: int) -> Build:
        import faiss

        dim = rows.shape[1]
        trained = faiss.index_factory(dim, f"RR{dim},RaBitQ", faiss.METRIC_INNER_PRODUCT)
        trained.train(_sample(rows))
        return _filled(trained)

    for name, fit in (("signs", signs), ("RaBitQ", rabitq)):
        alone = partial(Rival, group="compressed", space=space, fit=fit)
        yield alone(name=f"{name}, {space.name}", grows=True)
        yield _reranked(alone(name=f"{name} + floats, {space.name}"))


def _products(
    space: Space, sizes: Sequence[int], images: Images, chosen: Chosen
) -> Iterator[Rival]:
    """Yield PQ and OPQ of some bytes, with the codewords that are best for held-out images."""
    for size in sizes:
        for method in ("PQ", "OPQ"):
            name, rows, rotation = f"{method} {size} bytes, {space.name}", space.gallery, None
            if method == "OPQ":
                rotation = _rotation(_sample(rows), size)
                rows = rotation.apply_py(rows)
            codewords = _best_size(name, rows, size, images, chosen)
            fit = partial(_fit_pq, size=size, codewords=codewords, rotation=rotation)
            yield Rival(name=name, group="compressed", space=space, grows=True, fit=fit)


def _rotation(rows: FloatArray, size: int) -> Any:
    """Return OPQ's rotation of the principal axes, as a faiss transform."""
    import faiss

    width = min(OPQ_DIMS, rows.shape[1])
    width -= width % size
    axes = np.linalg.eigh((rows.T @ rows).astype(np.float64))[1][:, ::-1][:, :width].T
    rotation = np.eye(width)
    if len(rows) > max(width, 256):  # with fewer rows than axes faiss corrupts its memory
        matrix = faiss.OPQMatrix(width, size)
        matrix.niter, matrix.max_train_points = 20, len(rows)
        quantizer = faiss.ProductQuantizer(width, size, 8)
        quantizer.cp.min_points_per_centroid = 1
        matrix.pq = quantizer
        matrix.train(np.ascontiguousarray(rows @ axes.T, np.float32))
        rotation = faiss.vector_to_array(matrix.A).reshape(width, width)
    whole = faiss.LinearTransform(rows.shape[1], width)
    faiss.copy_array_to_vector(np.ascontiguousarray(rotation @ axes, np.float32).ravel(), whole.A)
    whole.is_trained = True
    return whole


def _code_bits(rows: FloatArray) -> int:
    """Return the bits of a faiss code, which needs at least one row per codeword."""
    return min(8, max(1, len(rows).bit_length() - 1))


def _best_size(name: str, rows: FloatArray, size: int, images: Images, chosen: Chosen) -> int:
    validation = images.validation_split()
    if validation is None:
        chosen.notes.append(f"{name}: 256 codewords, no class has a second image to choose by")
        chosen.codewords[name] = 256
        return 256
    some, split = validation
    way = best_pq(rows[some], 8 * size, images.gallery[some], split)
    assert way.fit is not None
    chosen.codewords[name] = int(way.name.rpartition("=")[2])
    return chosen.codewords[name]


def _fit_pq(
    rows: FloatArray,
    _labels: IntArray,
    _count: int,
    *,
    size: int,
    codewords: int,
    rotation: Any = None,
) -> Build:
    import faiss

    placed = _sample(rows if rotation is None else rotation.apply_py(rows))
    way = pq_codes(placed, 8 * size, codebook_size=codewords)
    assert way.fit is not None
    books = way.fit(way.embeddings, [None] * len(placed))

    def build(read: ReadBlocks, _file: Path) -> Engine:
        index = to_faiss(books, np.empty((0, size), np.uint8))
        if rotation is not None:
            index = faiss.IndexPreTransform(index)
            index.prepend_transform(faiss.NormalizationTransform(books.embedding_dim, 2.0))
            index.prepend_transform(rotation)
        return FaissEngine(index, read())

    return build


def _fast(space: Space) -> Iterator[Rival]:
    def ivfpq(rows: FloatArray, _labels: IntArray, count: int) -> Build:
        import faiss

        dim, lists = rows.shape[1], max(1, min(int(4 * count**0.5), len(rows) // 8))
        coarse = faiss.IndexFlatIP(dim)
        trained = faiss.IndexIVFPQ(
            coarse, dim, lists, 16, _code_bits(rows), faiss.METRIC_INNER_PRODUCT
        )
        trained.cp.min_points_per_centroid = trained.pq.cp.min_points_per_centroid = 1
        trained.train(_sample(rows))
        trained.nprobe = max(8, lists // 16)
        return _filled(trained)

    def hnsw(rows: FloatArray, _labels: IntArray, _count: int) -> Build:
        def build(read: ReadBlocks, _file: Path) -> Engine:
            import faiss

            index = faiss.IndexHNSWFlat(rows.shape[1], 32, faiss.METRIC_INNER_PRODUCT)
            index.hnsw.efConstruction, index.hnsw.efSearch = 80, 100
            return FaissEngine(index, read(), lists=True)

        return build

    yield Rival(name=f"IVFPQ 16 bytes, {space.name}", group="fast", space=space, fit=ivfpq)
    yield Rival(name=f"HNSW, {space.name}", group="fast", space=space, fit=hnsw)


def _classifiers(
    base: Space, general: Space | None, images: Images, chosen: Chosen
) -> Iterator[Rival]:
    count = len(images.class_names)
    classify = partial(Rival, group="classify", uses_labels=True, grows=True)

    def means(rows: FloatArray, labels: IntArray, _count: int) -> Build:
        weights = class_means(rows, labels, count)
        return lambda read, _file: ClassEngine(weights, np.zeros(count, np.float32), read())

    spaces = [base] if general is None or general is base else [base, general]
    for space in spaces:
        name = f"class means, then list, {space.name}"
        yield classify(name=name, space=space, fit=means)
    fit_probe, penalty = choose_probe(base.gallery, images)
    chosen.penalty = penalty

    def probe(rows: FloatArray, labels: IntArray, _count: int) -> Build:
        weights, bias = fit_probe(rows, labels)
        return lambda read, _file: ClassEngine(weights, bias, read())

    name = f"linear probe, then list, {base.name}"
    yield classify(name=name, space=base, fit=probe)


def _ours(general: Space | None, learned: Sequence[Space], images: Images) -> Iterator[Rival]:
    for space in learned:
        size = -(-_bits_of(space) // 8)

        def model(_r: FloatArray, _l: IntArray, _c: int, *, space: Space = space) -> Build:
            books = space.codebooks
            assert books is not None
            return lambda read, _file: CodeEngine(books, read(), norm=space.norm)

        name = f"phpq {size} bytes, model's codebooks"
        yield Rival(name=name, group="phpq", space=space, fit=model)
        if space is max(learned, key=_bits_of):
            name = f"phpq {size} bytes + floats, model's codebooks"
            yield _reranked(Rival(name=name, group="phpq", space=space, fit=model))
    if general is None:
        return

    def own(rows: FloatArray, labels: IntArray, _c: int, *, size: int, named: bool) -> Build:
        names = images.names(labels) if named else [None] * len(rows)
        books = fit_additive(rows, names, num_codebooks=size)
        given = images.names if named else None
        return lambda read, _file: CodeEngine(books, read(), names=given)

    for named in (False, True):
        for size in OWN_BYTES:
            name = f"phpq {size} bytes, gallery's codebooks{', with its labels' * named}"
            fit = partial(own, size=size, named=named)
            yield Rival(name=name, group="phpq", space=general, uses_labels=named, fit=fit)
    name = f"phpq {OWN_BYTES[-1]} bytes + floats, gallery's codebooks"
    fit = partial(own, size=OWN_BYTES[-1], named=False)
    yield _reranked(Rival(name=name, group="phpq", space=general, fit=fit))


def _reranked(rival: Rival) -> Rival:
    """Return the same, re-ranked by floats that are kept on disk."""

    def fit(rows: FloatArray, labels: IntArray, count: int) -> Build:
        first = rival.fit(rows, labels, count)
        space = rival.space

        def build(read: ReadBlocks, file: Path) -> Engine:
            engine = first(read, file)
            transforms = {"row_map": space.float_rows, "query_map": space.float_queries}
            return RerankedEngine(engine, read(), file, **transforms)

        return build

    return replace(rival, reranked=True, fit=fit)


def _filled(trained: Any) -> Build:
    """Return what adds a gallery to a copy of a trained, empty faiss index."""
    import faiss

    return lambda read, _file: FaissEngine(faiss.clone_index(trained), read())


def _sample(rows: FloatArray) -> FloatArray:
    if len(rows) > FIT_ROWS:
        rows = rows[np.random.default_rng(0).choice(len(rows), FIT_ROWS, replace=False)]
    return np.ascontiguousarray(rows)
