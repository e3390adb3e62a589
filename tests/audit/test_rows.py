"""Vectors of rows: what a model did to them by labels is undone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from made_up_galleries import GENERAL_DIM, make_own_store, make_store
from phpq.audit.rows import read_whitening, undo_whitening


def test_whitening_is_undone() -> None:
    generator = np.random.default_rng(0)
    features = generator.normal(size=(30, 8)).astype(np.float32)
    projection = generator.normal(size=(8, 8)).astype(np.float32)
    back = undo_whitening(features @ projection, projection)
    np.testing.assert_allclose(back, features, atol=1e-3)
    assert undo_whitening(features, None) is features
    headed = np.concatenate([features @ projection, np.ones((len(features), 2))], 1)
    np.testing.assert_allclose(undo_whitening(headed, projection), back, atol=1e-3)


def test_the_map_is_that_of_the_model_of_the_gallery(tmp_path: Path) -> None:
    store = make_own_store(tmp_path / "g")
    assert read_whitening(store) is None
    (store.folder / "model").mkdir()
    path = store.folder / "model" / "general.safetensors"
    projection = np.eye(GENERAL_DIM, dtype=np.float32)
    save_file({"projection": projection, "other": projection}, path)
    np.testing.assert_array_equal(read_whitening(store), projection)
    path.write_bytes(b"damaged")
    assert read_whitening(store) is None


@pytest.mark.parametrize("there", [True, False])
def test_learned_embeddings_are_taken_as_they_are(tmp_path: Path, there: bool) -> None:
    store = make_store(tmp_path / "g")
    if there:
        (store.folder / "model").mkdir()
        save_file({"projection": np.eye(6)}, store.folder / "model" / "general.safetensors")
    assert read_whitening(store) is None
