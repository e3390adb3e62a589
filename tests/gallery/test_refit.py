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
)
from phpq.additive import TRUST
from phpq.errors import ConfigError, FormatError
from phpq.gallery import GalleryStore
from phpq.gallery._part import find_part
from phpq.gallery.owned import BOOKS
from phpq.gallery.refit import describe_fit, outgrown
from phpq.gallery.repair import verify_store
from phpq.gallery.view import GalleryView, Page


def test_it_fits_and_encodes_all_rows_in_one_commit(tmp_path: Path) -> None:
    store = filled(tmp_path / "g", ("red", "green"))
    add(store, [row | {"year": 2000} for row in pictures(("blue", "grey"), 12, seed=1)])
    store.delete(["red/0/3"])
    add(store, [row | {"label": "green"} for row in pictures(("red",), 1)])  # another order
    before, ids = store.manifest, list(codes_of(store))
    version, seen = store.version, []
    old_view = view_of(store)
    answer = old_view.search_many(query_for("grey"), Page())[0]
    report = fit_again(store, progress=lambda *now: seen.append(now))
    assert store.version == version + 1
    assert (report.images, report.bits, report.trust, report.from_codes) == (43, 16, TRUST, 0)
    assert report.to_dict()["distortion"] == store.own_codebooks().fitted_distortion
    assert seen[-1] == ("encoding", 43, 43)
    after = store.manifest
    assert after.fit == after.books != before.books
    assert after.fitted_rows == 43
    assert after.common() == before.common()
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
    monkeypatch.setattr("phpq.additive.AdditiveCodebooks.colliding_classes", 2)
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
            seen = [(hit.id, hit.score) for one in found for hit in one]
            if answers.setdefault(opened.manifest.fit, seen) != seen:
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
