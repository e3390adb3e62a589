"""What rows are encoded again from: kept embeddings or images, and files that a kill leaves."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from made_up_galleries import FakeModel, make_own_store
from own_galleries import (
    KINDS,
    add,
    codes_of,
    filled,
    fit_again,
    query_for,
    view_of,
    write_pictures,
)
from phpq.gallery import GalleryStore, _embedded, refit
from phpq.gallery.owned import SIDE
from phpq.gallery.view import Page


def test_without_embeddings_it_reads_the_images(tmp_path: Path) -> None:
    source = write_pictures(tmp_path / "src", ("red", "green"), 6)
    kept = make_own_store(tmp_path / "kept")
    bare = make_own_store(tmp_path / "bare", keep_embeddings=False)
    for store in (kept, bare):
        add(store, source)
        add(store, write_pictures(source, ("blue",), 6))
    old = codes_of(bare)
    gone = sorted(source.rglob("*.png"))[0]
    gone.unlink()
    sorted(source.rglob("*.png"))[0].write_bytes(gone.name.encode())  # another content
    assert fit_again(kept).from_codes == 0
    report = fit_again(bare)
    assert (report.images, report.from_codes) == (18, 2)
    assert not (bare.folder / SIDE / "made-up").exists()
    assert "embedding" not in bare.dataset.schema.names
    # The others as if embeddings were kept: codebooks differ by two rows only, so compare classes.
    assert bare.own_codebooks().class_names == kept.own_codebooks().class_names
    found = view_of(bare).search_many(query_for("blue"), Page(top_k=6))[0]
    assert {hit.label for hit in found} == {"blue"}
    assert codes_of(bare).keys() == old.keys()
    missing = next(name for name in old if gone.name in name)
    record = bare.find([missing])[missing]
    (again,) = view_of(bare).search_many(
        bare.own_codebooks().decode(record.code[None]), Page(top_k=20)
    )
    assert missing in {hit.id for hit in again}


def test_from_images_it_is_what_it_is_from_embeddings(tmp_path: Path) -> None:
    source = write_pictures(tmp_path / "src", tuple(KINDS), 5)
    stores = [make_own_store(tmp_path / str(keep), keep_embeddings=keep) for keep in (True, False)]
    for store in stores:
        add(store, source)
        assert fit_again(store, trust=0.5).from_codes == 0
    assert stores[0].manifest.fit == stores[1].manifest.fit
    assert codes_of(stores[0]) == codes_of(stores[1])


def test_a_killed_refit_goes_on_with_what_it_embedded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_embedded, "_BLOCK", 4)
    source = write_pictures(tmp_path / "src", tuple(KINDS), 5)
    store = make_own_store(tmp_path / "g", keep_embeddings=False)
    add(store, source)
    twin = Path(shutil.copytree(store.folder, tmp_path / "twin"))
    model, codes = FakeModel(), codes_of(store)

    def stop(what: str, done: int, total: int) -> None:
        if done >= 9:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        refit.refit(store, lambda: model.model, progress=stop)
    assert codes_of(GalleryStore.open(store.folder)) == codes
    done = sum(model.batches)
    assert done == 12
    (store.folder / SIDE / "made-up" / "000000001.safetensors").write_bytes(b"half")
    refit.refit(store, lambda: model.model)
    assert sum(model.batches) - done == 8 + 4  # what was missing, and what was damaged
    other = GalleryStore.open(twin)
    fit_again(other)
    assert codes_of(store) == codes_of(other)
    assert not (store.folder / SIDE / "made-up").exists()


def test_compacting_removes_what_a_dead_refit_left(tmp_path: Path) -> None:
    store = filled(tmp_path / "g", ("red",))
    (store.folder / SIDE).mkdir()
    (store.folder / SIDE / "000000000.safetensors").write_bytes(b"x")
    store.compact()
    assert not (store.folder / SIDE).exists()
