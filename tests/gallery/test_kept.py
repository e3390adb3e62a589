"""Versions that stay for a rollback: kept until they are released, whatever is cleaned up."""

from __future__ import annotations

from pathlib import Path

import pytest

from made_up_galleries import make_record, make_store
from phpq.errors import FormatError
from phpq.gallery import GalleryStore
from phpq.gallery._kept import is_kept, keep_version, release_all_but


def test_a_version_is_kept_until_it_is_released(tmp_path: Path) -> None:
    store = make_store(tmp_path / "g")
    versions = []
    for number in range(3):
        store.put([make_record(f"i{number}", number)])
        versions.append(store.version)
        keep_version(store.dataset, store.version)
        keep_version(store.dataset, store.version)  # as good as once
    store.dataset.tags.create("mine", versions[0])
    assert all(is_kept(store.dataset, version) for version in versions)
    assert release_all_but(store.dataset, versions[1]) == [versions[1]]
    assert [is_kept(store.dataset, version) for version in versions] == [False, True, False]
    assert "mine" in store.dataset.tags.list()
    store.put([make_record("last")])
    assert release_all_but(store.dataset, 99) == []
    store.dataset.tags.delete("mine")
    store.compact()
    with pytest.raises(FormatError):
        GalleryStore.open(store.folder, version=versions[1])
