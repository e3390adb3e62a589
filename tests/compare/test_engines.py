"""Engines against plain scans and plain loops."""

from __future__ import annotations

from pathlib import Path

import faiss
import numpy as np
import pytest

from made_up_comparisons import made_up_images, made_up_learned, made_up_space
from phpq.codes import FloatArray, IntArray, sign_codebooks
from phpq.compare.engines import (
    ClassEngine,
    CodeEngine,
    Engine,
    FaissEngine,
    FloatEngine,
    Footprint,
    RerankedEngine,
    SignEngine,
    single_block,
)

IMAGES = made_up_images()
SPACE = made_up_space(IMAGES)
LEARNED = made_up_learned(IMAGES)
COUNT = len(IMAGES.gallery)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    faiss.omp_set_num_threads(1)


def engines(folder: Path) -> dict[str, tuple[Engine, FloatArray]]:
    """Build one of each, with queries for it."""

    def blocks() -> list[tuple[FloatArray, IntArray]]:  # in two, as they come
        halves = np.array_split(np.arange(COUNT), 2)
        return [(SPACE.gallery[rows], IMAGES.gallery[rows]) for rows in halves]

    assert LEARNED.codebooks is not None
    learned = single_block(LEARNED.gallery, IMAGES.gallery)
    means = np.stack([SPACE.gallery[IMAGES.gallery == c].mean(axis=0) for c in range(6)])
    signs = SignEngine(SPACE.gallery.mean(axis=0), blocks())
    return {
        "numpy": (FloatEngine(blocks()), SPACE.queries),
        "flat": (FaissEngine(faiss.IndexFlatIP(32), blocks()), SPACE.queries),
        "codes": (CodeEngine(LEARNED.codebooks, learned, norm="unit"), LEARNED.queries),
        "signs": (signs, SPACE.queries),
        "classes": (ClassEngine(means, np.zeros(6, np.float32), blocks()), SPACE.queries),
        "reranked": (
            RerankedEngine(
                signs, blocks(), folder / "floats", row_map=lambda x: x, query_map=lambda x: x
            ),
            SPACE.queries,
        ),
    }


def test_a_search_returns_the_rows_of_the_highest_scores(tmp_path: Path) -> None:
    for name, (engine, queries) in engines(tmp_path).items():
        scores = engine.scores(queries)
        assert scores.shape == (len(queries), COUNT), name
        for threads in (1, 2):
            ids = engine.search(queries, 5, threads=threads)
            best = -np.sort(-scores, axis=1)[:, :5]
            found = np.take_along_axis(scores, ids, axis=1)
            np.testing.assert_allclose(found, best, rtol=1e-5, atol=1e-6, err_msg=name)


def test_every_engine_weighs_what_it_holds(tmp_path: Path) -> None:
    weights = {name: engine.footprint() for name, (engine, _) in engines(tmp_path).items()}
    assert weights["numpy"] == Footprint(COUNT * 128, COUNT * 128, 0)
    assert weights["flat"].memory - weights["flat"].fixed == COUNT * 128
    assert weights["signs"].memory == COUNT * 4 + 128
    assert weights["reranked"].disk == weights["signs"].disk + COUNT * 64
    assert weights["reranked"].memory == weights["signs"].memory
    assert weights["classes"].memory - weights["classes"].fixed == 4 * COUNT
    assert weights["codes"].disk - weights["codes"].fixed == COUNT  # two indices of four bits
    assert weights["signs"].memory_at(10 * COUNT, of=COUNT) == 10 * COUNT * 4 + 128


def test_classify_then_list_ranks_as_plain_loops_do() -> None:
    means = np.stack([SPACE.gallery[IMAGES.gallery == c].mean(axis=0) for c in range(6)])
    bias = np.linspace(0, 0.1, 6).astype(np.float32)
    engine = ClassEngine(means, bias, single_block(SPACE.gallery, IMAGES.gallery))
    for query, scores in zip(SPACE.queries, engine.scores(SPACE.queries), strict=True):
        ranked: list[int] = []
        chances = [float(np.dot(means[c], query) + bias[c]) for c in range(6)]
        for kind in sorted(range(6), key=lambda c: -chances[c]):
            ranked += [row for row in range(COUNT) if IMAGES.gallery[row] == kind]
        assert engine.search(query[None], COUNT, threads=1)[0].tolist() == ranked
        np.testing.assert_allclose(scores, [chances[c] for c in IMAGES.gallery], atol=1e-5)


def test_rescoring_lifts_candidates_above_all_other_rows(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(300, 16)).astype(np.float32)
    first = SignEngine(rows.mean(axis=0), single_block(rows, np.zeros(300, np.int64)))
    same = {"row_map": lambda x: x, "query_map": lambda x: x}
    blocks = single_block(rows, np.zeros(300, np.int64))
    engine = RerankedEngine(first, blocks, tmp_path / "floats", **same)
    queries = rng.normal(size=(4, 16)).astype(np.float32)
    coarse, fine = first.scores(queries), engine.scores(queries)
    products = queries @ rows.astype(np.float16).astype(np.float32).T
    for query in range(4):
        order = np.argsort(-coarse[query], kind="stable")
        candidates, others = order[:100], order[100:]
        assert fine[query, candidates].min() > fine[query, others].max()
        wanted = candidates[np.argsort(-products[query, candidates], kind="stable")]
        got = candidates[np.argsort(-fine[query, candidates], kind="stable")]
        assert got.tolist() == wanted.tolist()
        np.testing.assert_array_equal(fine[query, others], coarse[query, others])


def test_rows_that_an_index_never_returns_score_least() -> None:
    index = faiss.IndexHNSWFlat(32, 8, faiss.METRIC_INNER_PRODUCT)
    rows = np.tile(SPACE.gallery, (4, 1)) + np.float32(0.01)
    engine = FaissEngine(index, single_block(rows, np.zeros(len(rows), np.int64)), lists=True)
    scores = engine.scores(SPACE.queries)
    assert (np.isfinite(scores).sum(axis=1) <= 100).all()
    assert np.isneginf(scores.min(axis=1)).all()


def test_memory_of_codes_at_another_size_is_what_an_index_of_that_size_takes() -> None:
    rng = np.random.default_rng(0)
    books = sign_codebooks(32)
    codes = rng.integers(0, 256, (60_000, 4)).astype(np.uint8)
    rows, labels = books.decode(codes), np.zeros(60_000, np.int64)
    few, many = (
        CodeEngine(books, single_block(rows[:n], labels[:n])).footprint() for n in (6000, 60_000)
    )
    assert few.tables > 0
    assert few.memory_at(60_000, of=6000) == pytest.approx(many.memory, rel=0.02)
    assert few.disk_at(60_000, of=6000) == many.disk


def test_an_engine_grows_by_repeating_its_rows(tmp_path: Path) -> None:
    product = faiss.IndexPQ(32, 4, 4, faiss.METRIC_INNER_PRODUCT)
    rabitq = faiss.index_factory(32, "RR32,RaBitQ", faiss.METRIC_INNER_PRODUCT)
    some, count = engines(tmp_path), 3 * COUNT - 5
    growing = {name: some[name][0] for name in ("signs", "classes")}
    for name, index in (("products", product), ("rabitq", rabitq)):
        index.train(SPACE.gallery)
        growing[name] = FaissEngine(index, single_block(SPACE.gallery, IMAGES.gallery))
    for name, engine in growing.items():
        before, weight = engine.scores(SPACE.queries), engine.footprint()
        engine.grow(count)
        assert engine.rows == count, name
        after = engine.scores(SPACE.queries)
        expected = np.tile(before, 3)[:, :count]
        np.testing.assert_allclose(after, expected, rtol=1e-5, atol=1e-6, err_msg=name)
        assert engine.search(SPACE.queries, 5, threads=1).max() < count
        assert engine.footprint().memory == pytest.approx(
            weight.memory_at(count, of=COUNT), rel=1e-3
        )


def test_codes_of_many_blocks_are_those_of_one() -> None:
    assert LEARNED.codebooks is not None
    parts = [np.arange(COUNT)[start::7] for start in range(7)]
    blocks = [(LEARNED.gallery[rows], IMAGES.gallery[rows]) for rows in parts]
    engine = CodeEngine(LEARNED.codebooks, iter(blocks))
    expected = LEARNED.codebooks.encode(LEARNED.gallery[np.concatenate(parts)])
    np.testing.assert_array_equal(engine.codes, expected)
