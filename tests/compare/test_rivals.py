"""Which rows there are, and that each can be built; what is left out without faiss."""

from __future__ import annotations

from pathlib import Path

import faiss
import numpy as np
import pytest

from made_up_comparisons import made_up_images, made_up_learned, made_up_space
from phpq.compare import rivals as module
from phpq.compare.engines import single_block
from phpq.compare.rivals import _rotation, list_rivals

IMAGES = made_up_images()


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    faiss.omp_set_num_threads(1)
    monkeypatch.setattr(module, "PQ_BYTES", (4,))
    monkeypatch.setattr(module, "OWN_BYTES", (2,))


def test_every_row_can_be_built_and_searched(tmp_path: Path) -> None:
    frozen, general = made_up_space(IMAGES), made_up_space(IMAGES, "whitened trunk", seed=2)
    rows, left_out, chosen = list_rivals(frozen, general, [made_up_learned(IMAGES)], IMAGES)
    names = [row.name for row in rows]
    assert len(set(names)) == len(names)
    assert not left_out
    assert {row.group for row in rows} == {"float", "compressed", "fast", "classify", "phpq"}
    for start in ("signs", "RaBitQ", "PQ 4", "OPQ 4", "IVFPQ", "HNSW", "linear probe", "phpq 1"):
        assert any(name.startswith(start) for name in names), start
    assert {row.name for row in rows if row.uses_labels} == {
        name for name in names if "then list" in name or "with its labels" in name
    }
    assert set(chosen.codewords.values()) <= {16, 32, 64, 128, 256}
    for number, row in enumerate(rows):
        make = row.fit(row.space.gallery, IMAGES.gallery, len(IMAGES.gallery))
        blocks = lambda space=row.space: single_block(space.gallery, IMAGES.gallery)  # noqa: E731
        engine = make(blocks, tmp_path / str(number))
        assert engine.rows == len(IMAGES.gallery), row.name
        ids = engine.search(row.space.queries, 3, threads=1)
        assert ids.shape == (len(row.space.queries), 3), row.name
        again = make(blocks, tmp_path / f"{number} again")  # what was fitted is not used up
        assert again.rows == engine.rows, row.name
        np.testing.assert_array_equal(again.search(row.space.queries, 3, threads=1), ids, row.name)


def test_without_faiss_its_rows_are_left_out_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "find_spec", lambda _: None)
    rows, left_out, _ = list_rivals(made_up_space(IMAGES), None, [], IMAGES)
    assert {row.group for row in rows} == {"float", "classify"}
    assert any("pip install 'phpq[compare]'" in reason for reason in left_out)


def test_without_a_frozen_trunk_the_general_embedding_stands_in() -> None:
    general = made_up_space(IMAGES, "general embedding")
    rows, left_out, _ = list_rivals(None, general, [], IMAGES)
    assert {row.space.name for row in rows} == {"general embedding"}
    assert "frozen trunk" in left_out[0]


def test_one_image_a_class_takes_the_usual_codewords_and_says_so() -> None:
    images = made_up_images(per_class=1)
    _, _, chosen = list_rivals(made_up_space(images), None, [], images)
    assert set(chosen.codewords.values()) == {256}
    assert chosen.notes


@pytest.mark.parametrize(("rows", "dim"), [(20, 64), (400, 48)])
def test_the_rotation_of_opq_keeps_lengths(rows: int, dim: int) -> None:
    vectors = np.random.default_rng(0).normal(size=(rows, dim)).astype(np.float32)
    turned = _rotation(vectors, 4).apply_py(vectors)
    assert turned.shape == (rows, dim)
    lengths = np.linalg.norm(vectors, axis=1)
    np.testing.assert_allclose(np.linalg.norm(turned, axis=1), lengths, rtol=1e-3)
