"""A refit: fitted to what the gallery holds, from embeddings, images or codes; one commit."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from made_up_galleries import FakeModel, make_own_store, make_store
from own_galleries import (
    KINDS,
    add,
    codes_of,
    expected_codes,
    filled,
    fit_again,
    pictures,
    query_for,
    view_of,
    write_pictures,
)
from phpq.additive import TRUST
from phpq.errors import ConfigError, FormatError
from phpq.gallery import GalleryStore, _embedded, reencode, refit
from phpq.gallery._part import find_part
from phpq.gallery.owned import BOOKS, SIDE
from phpq.gallery.refit import describe_fit, outgrown
from phpq.gallery.repair import verify_store
from phpq.gallery.view import GalleryView, Page


def test_it_fits_and_encodes_all_rows_in_one_commit(tmp_path: Path) -> None:
    store = filled(tmp_path / "g", ("red", "green"))
    add(store, [row | {"year": 2000} for row in pictures(("blue", "grey"), 12, seed=1)])
    store.delete(["red/0/3"])
    add(store, [row | {"label": "green"} for row in pictures(("red",), 1)])  # another order
    before, ids = store.manifest, list(codes_of(store))
    version, told = store.version, []
    old_view = view_of(store)
    answer = old_view.search_many(query_for("grey"), Page())[0]
    report = fit_again(store, progress=lambda *now: told.append(now))
    assert store.version == version + 1
    assert (report.images, report.bits, report.trust, report.from_codes) == (43, 16, TRUST, 0)
    assert report.to_dict()["distortion"] == store.own_codebooks().fitted_distortion
    assert told[-1] == ("encoding", 43, 43)
    after = store.manifest
    assert after.fit == after.books != before.books
    assert after.fitted_rows == 43
    assert after.lasting() == before.lasting()
    assert list(codes_of(store)) == ids
    assert codes_of(store) == expected_codes(store)
    assert codes_of(GalleryStore.open(store.folder)) == codes_of(store)
    assert store.count("year = 2000") == 24
    assert store.own_codebooks().class_names == tuple(sorted(KINDS))
    find_part(store).codes()
    assert verify_store(store.folder).sound
    # The version before is still read, with its own codebooks.
    assert old_view.search_many(query_for("grey"), Page())[0] == answer
    again = GalleryView(GalleryStore.open(store.folder, version=version), FakeModel().codebooks)
    assert again.search_many(query_for("grey"), Page())[0] == answer
    # And it can be written to as ever.
    add(store, pictures(("grey",), 2, seed=7))
    assert codes_of(store) == expected_codes(store)
    store.compact()
    assert codes_of(store) == expected_codes(store)


def test_bits_and_trust_may_change(tmp_path: Path) -> None:
    store = filled(tmp_path / "g")
    reader = GalleryStore.open(store.folder)
    report = fit_again(store, bits=24, trust=0.0)
    assert (report.bits, report.trust) == (24, 0.0)
    assert (store.manifest.bits, reader.manifest.bits) == (24, 16)
    assert store.own_codebooks().class_names == ()
    assert codes_of(store) == expected_codes(store)
    assert len(codes_of(reader)["red/0/1"]) == 2
    reader.refresh()
    assert len(codes_of(reader)["red/0/1"]) == 3
    assert verify_store(store.folder).sound
    with pytest.raises(ConfigError, match="multiple of 8"):
        fit_again(store, bits=13)
    with pytest.raises(ConfigError, match="trust=2"):
        fit_again(store, trust=2)


def test_what_cannot_be_fitted_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="codebooks of its model"):
        fit_again(make_store(tmp_path / "models"))
    with pytest.raises(ConfigError, match="holds no images"):
        fit_again(make_own_store(tmp_path / "empty"))


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
    monkeypatch.setattr(_embedded, "_STRETCH", 4)
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


def test_memory_is_that_of_a_table_and_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reencode, "FIT_ROWS", 10)
    monkeypatch.setattr(reencode, "_MOST_ROWS", 14)
    numbers = np.array([0] * 40 + [1, 2, 3] + [-1] * 20)
    chosen = reencode._sample(numbers)
    assert 10 <= len(chosen) <= 14
    assert (np.diff(chosen) > 0).all()
    assert set(numbers[chosen]) == {-1, 0, 1, 2, 3}
    monkeypatch.setattr(reencode, "_MOST_ROWS", 11)
    assert len(reencode._sample(numbers)) == 11
    assert reencode._sample(numbers[:9]).tolist() == list(range(9))


def test_classes_that_the_sample_has_missed_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = filled(tmp_path / "g", ("red", "green"))
    add(store, pictures(("blue", "grey"), 1, seed=1))
    monkeypatch.setattr(reencode, "FIT_ROWS", 6)
    monkeypatch.setattr(reencode, "_MOST_ROWS", 6)
    fit_again(store)
    assert set(store.own_codebooks().class_names) == set(KINDS)
    assert codes_of(store) == expected_codes(store)


def test_it_says_when_a_refit_is_due(tmp_path: Path) -> None:
    store = make_own_store(tmp_path / "g")
    assert describe_fit(store).due is None
    assert not outgrown(store, 20)
    add(store, pictures(("red", "green"), 10))
    fit = describe_fit(store)
    assert (fit.due, fit.fitted_rows, fit.classes, fit.unknown_labels) == (None, 20, 2, 0)
    assert fit.distortion == pytest.approx(fit.distortion_at_fit, abs=1e-3)
    add(store, pictures(("grey",), 18, seed=3, labelled=False))
    due = describe_fit(store).due
    assert due is not None
    assert "its codes are off by" in due
    assert outgrown(store, 18)
    assert not outgrown(store, 0)  # hardly anything came: not worth a look
    add(store, pictures(("blue",), 3, seed=3))
    assert describe_fit(store).due == "it holds 41 images, and its codebooks were fitted to 20"
    fit_again(store)
    assert (describe_fit(store).due, outgrown(store, 41)) == (None, False)


def test_kinds_that_share_a_code_are_a_reason_however_few_images_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = filled(tmp_path / "g", ("red", "green"))
    assert not outgrown(store, 0)
    monkeypatch.setattr("phpq.additive.AdditiveCodebooks.crowded", 2)
    assert describe_fit(store).due == "2 of its kinds have the code of another"
    assert outgrown(store, 0)


def test_labels_that_come_to_a_gallery_without_are_a_reason(tmp_path: Path) -> None:
    store = make_own_store(tmp_path / "g")
    add(store, pictures(("red", "green"), 10, labelled=False))
    add(store, pictures(("blue",), 2))
    assert describe_fit(store).due == "its codebooks do not know 1 of its 1 labels"
    assert outgrown(store, 2)
    fit_again(store)
    assert store.own_codebooks().class_names == ("blue",)
    assert not outgrown(store, 2)


def test_lost_codebooks_are_fitted_anew_by_a_repair(tmp_path: Path) -> None:
    for keep in (True, False):
        store = filled(tmp_path / f"g{keep}", keep_embeddings=keep)
        shutil.rmtree(store.folder / BOOKS)
        report = verify_store(store.folder)
        assert not report.sound
        assert "phpq gallery refit" in report.problems[0]
        assert verify_store(store.folder, repair=True).sound is keep
        if keep:
            store.refresh()
            assert codes_of(store) == expected_codes(store)


def test_a_reader_during_refits_sees_one_fit_or_the_other(tmp_path: Path) -> None:
    store = filled(tmp_path / "g")
    asked = np.concatenate([query_for(kind) for kind in KINDS])
    answers: dict[str, Any] = {}
    problems: list[str] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            opened = GalleryStore.open(store.folder)
            found = GalleryView(opened, FakeModel().codebooks).search_many(asked, Page(top_k=40))
            told = [(hit.id, hit.score) for one in found for hit in one]
            if answers.setdefault(opened.manifest.fit, told) != told:
                problems.append(opened.manifest.fit)

    reader = threading.Thread(target=read)
    reader.start()
    fits = {store.manifest.fit}
    for trust in (0.2, 0.6, 0.4):
        fit_again(store, trust=trust)
        fits.add(store.manifest.fit)
    stop.set()
    reader.join()
    assert not problems
    assert set(answers) <= fits
    assert len(fits) == 4


def test_damage_is_named(tmp_path: Path) -> None:
    store = filled(tmp_path / "g")
    for path in (store.folder / "images.lance" / "data").glob("*.lance"):
        os.truncate(path, 10)
    with pytest.raises(FormatError, match="is damaged"):
        fit_again(GalleryStore.open(store.folder))
