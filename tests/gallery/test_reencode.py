"""Encoding all rows anew: the sample that codebooks are fitted to, and a disk that is full.

What comes of it is in test_refit.py and test_upgrade.py.
"""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from made_up_galleries import FakeModel, make_own_store
from own_galleries import (
    KINDS,
    add,
    codes_of,
    expected_codes,
    filled,
    fit_again,
    pictures,
    write_pictures,
)
from phpq.errors import DataError
from phpq.gallery import GalleryStore, reencode


def test_memory_is_that_of_a_table_and_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reencode, "FIT_ROWS", 10)
    monkeypatch.setattr(reencode, "_MAX_ROWS", 14)
    numbers = np.array([0] * 40 + [1, 2, 3] + [-1] * 20)
    chosen = reencode._sample(numbers)
    assert 10 <= len(chosen) <= 14
    assert (np.diff(chosen) > 0).all()
    assert set(numbers[chosen]) == {-1, 0, 1, 2, 3}
    monkeypatch.setattr(reencode, "_MAX_ROWS", 11)
    assert len(reencode._sample(numbers)) == 11
    assert reencode._sample(numbers[:9]).tolist() == list(range(9))


def test_classes_that_the_sample_missed_are_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = filled(tmp_path / "g", ("red", "green"))
    add(store, pictures(("blue", "grey"), 1, seed=1))
    monkeypatch.setattr(reencode, "FIT_ROWS", 6)
    monkeypatch.setattr(reencode, "_MAX_ROWS", 6)
    fit_again(store)
    assert set(store.own_codebooks().class_names) == set(KINDS)
    assert codes_of(store) == expected_codes(store)


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make_own_store(tmp_path / "g", keep_embeddings=False)
    add(store, write_pictures(tmp_path / "files", tuple(KINDS), 5))
    version, model = store.version, FakeModel()
    with monkeypatch.context() as patched:
        patched.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=100))
        with pytest.raises(DataError, match=r"at least .* bytes .* and 100 are free"):
            fit_again(store)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    for place in ("phpq.gallery._embedded.write_bytes", "lance.fragment.write_fragments"):
        with monkeypatch.context() as patched:
            patched.setattr(place, full)
            with pytest.raises(DataError, match="is full"):
                fit_again(store)
        assert GalleryStore.open(store.folder).version == version
    reencode.reencode(store, lambda: model.model, reencode.Target())
    assert not model.batches  # they were embedded before the disk was full
    assert store.version == version + 1
